"""Acknowledging with a put: both happen or neither does, over any crash."""

import random
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.models.ack_model import BY_PUT, CHECKPOINT, PLAIN, WRONG, FoundError, play
from tests.rigs.history import Act, Acts
from tests.rigs.together import together
from tests.small_store import SMALL, few_maps
from tests.tiers import some
from timerstore import (
    Consumer,
    Delivery,
    InvalidArgumentError,
    ManualClock,
    PausedError,
    StoreFullError,
    TimerStore,
    TooLateError,
)
from timerstore.calls.consuming.delivery import NextPut
from timerstore.core.offsets import AHEAD
from timerstore.timelog.writing.compose import ACKS_TOPIC

START_MS = 1_800_000_000_000
SECOND = timedelta(seconds=1)
SCENES = (
    (PLAIN, BY_PUT, CHECKPOINT),
    (BY_PUT, BY_PUT, CHECKPOINT),
    (PLAIN, BY_PUT, BY_PUT, CHECKPOINT),
    (PLAIN, BY_PUT, CHECKPOINT, CHECKPOINT),
)


@pytest.mark.outside
@pytest.mark.parametrize("scene", SCENES[:3])
def test_the_model_holds(scene: tuple[str, ...]) -> None:
    assert play(scene) > 50


@pytest.mark.outside
@pytest.mark.parametrize("wrong", WRONG)
def test_the_model_finds(wrong: str) -> None:
    def play_all() -> None:
        for scene in SCENES:
            play(scene, wrong=wrong)

    with pytest.raises(FoundError):
        play_all()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS, force=True)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Any:
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock) as store:
        yield store


def handed_out(store: TimerStore, topic: str = "t", group: str = "g") -> list[Delivery]:
    """All that a group has not done, nor holds."""
    return list(store.consume(topic, group=group, timeout=0))


def test_the_next_one_is_what_was_asked_for(store: TimerStore, clock: ManualClock) -> None:
    for i in range(5):
        store.put(b"%d" % i, topic="t", key=f"k{i}")
    first, second, third, fourth, fifth = handed_out(store)
    described = {"key": "k", "tag": "tag", "properties": {"a": "b"}}
    id = first.ack_and_put(b"next", delay=SECOND, **described)
    timer = store.get(id)
    assert timer is not None
    assert (timer.body, timer.topic, timer.due_ms) == (b"next", "t", START_MS + 1_000)
    assert (timer.key, timer.tag, timer.properties) == ("k", "tag", {"a": "b"})
    in_level = second.ack_and_put(b"level", topic="u", delay_level=2)
    assert store.get(in_level).topic == "u"  # type: ignore[union-attr]
    at = third.ack_and_put(b"at", at=datetime.fromtimestamp(START_MS / 1000 + 3, UTC))
    ids = fourth.ack_and_put_many([{"body": b"x", "topic": "u"}, {"body": b"y", "delay": SECOND}])
    assert store.get(at) is not None and store.get(ids[0]) is None
    assert [d.id for d in handed_out(store, "u")] == ids[:1]
    clock.advance(5 * SECOND)
    assert [d.body for d in handed_out(store)] == [b"next", b"y", b"at"]
    assert [d.id for d in handed_out(store, "u")] == [in_level]
    fifth.ack()
    (row,) = [each for each in store.stats().groups if each.topic == "t"]
    assert (row.handled_count, row.lag_count) == (5, 3)
    assert not any(ACKS_TOPIC.decode() in each.topic for each in store.stats().groups)


def test_unless_one_is_pending(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "s"
    with TimerStore(path, config=SMALL, clock=clock) as store:
        known = store.put(b"known", topic="t", key="k", delay=SECOND)
        store.put_many([b"a", b"b", b"c"], topic="t")
        first, second, third = handed_out(store)
        put: Any = {"body": b"x", "key": "k", "delay": SECOND, "if_absent": True}
        assert first.ack_and_put(**put) == known and store.count() == 1
        other: Any = {"body": b"y", "topic": "u"}
        ids = second.ack_and_put_many([{**put, "key": "l"}, put, {**other, "delay": SECOND}])
        assert ids[1] == known and store.count() == 3
        assert [store.get_key("t", "l").id, store.get(ids[2]).topic] == [ids[0], "u"]  # type: ignore[union-attr]
        for wrong in ({**put, "key": None}, {**put, "if_absent": 1}):
            with pytest.raises(InvalidArgumentError):
                third.ack_and_put(**wrong)
        for again in (put, {**put, "topic": "t"}):  # its own topic, named or not
            with pytest.raises(InvalidArgumentError):
                third.ack_and_put_many([put, again])
        store.abandon()
    with TimerStore(path, config=SMALL, clock=clock) as store:
        assert [d.body for d in handed_out(store)] == [b"c"] and store.count() == 3


def test_only_once(store: TimerStore) -> None:
    store.put_many([b"a", b"b", b"c"], topic="t")
    acked, sent_back, done = handed_out(store)
    acked.ack()
    sent_back.nack(delay=SECOND)
    done.ack_and_put(b"next", delay=SECOND)
    count = store.count()
    for each in (acked, sent_back, done):
        with pytest.raises(TooLateError):
            each.ack_and_put(b"again")
    with pytest.raises(TooLateError):
        done.nack()
    done.ack()
    assert store.count() == count == 2


@pytest.mark.parametrize(
    "puts",
    [
        [],
        [b"x"],
        {"body": b"x"},
        b"x",
        None,
        [{}],
        [{"topic": "t"}],
        [{"body": "x"}],
        [{"body": b""}],
        [{"body": b"x"}, {"body": b"x", "topic": "a b"}],
        [{"body": b"x"}, {"body": b"x", "delay": "5"}],
        [{"body": b"x", "delay": SECOND, "delay_level": 1}],
        [{"body": b"x", "when": SECOND}],
        [{"body": b"x", "key": ""}],
        [{"body": b"x"}] * 2_000,
        [{"body": b"x" * 60_000}] * 80,
    ],
)
def test_bad_arguments_change_nothing(store: TimerStore, puts: Any) -> None:
    store.put(b"a", topic="t")
    (delivery,) = handed_out(store)
    end = store.core.engine.commitlog.end
    with pytest.raises(InvalidArgumentError):
        delivery.ack_and_put_many(puts)
    assert store.core.engine.commitlog.end == end
    delivery.ack_and_put(b"good")


def test_an_error_leaves_the_message_open(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "s"
    with TimerStore(path, config=SMALL, clock=clock) as store:
        store.put_many([b"a", b"b"], topic="t")
        paused, full = handed_out(store)
        store.pause("putting")
        with pytest.raises(PausedError):
            paused.ack_and_put(b"x")
        store.resume("putting")
        with pytest.MonkeyPatch.context() as patch:

            def refuse() -> None:
                raise StoreFullError("full")

            patch.setattr(store.putting.space, "check", refuse)
            with pytest.raises(StoreFullError):
                full.ack_and_put(b"x")
        store.flush()
        store.abandon()
    with TimerStore(path, config=SMALL, clock=clock) as store:
        again = handed_out(store)
        assert [d.body for d in again] == [b"a", b"b"]
        assert [each.ack_and_put(b"x", delay=SECOND) is None for each in again] == [False, False]
        assert store.count() == 2


def test_in_a_consumer(tmp_path: Path, clock: ManualClock) -> None:
    """A chain that goes on; what raises after it is done; what is retried goes on as well."""
    config = replace(SMALL, delay_levels="1s 1s 1s")
    with TimerStore(tmp_path / "s", config=config, clock=clock) as store:
        consumer, came = Consumer(store, "g"), list[tuple[bytes, int]]()

        @consumer.on("t")
        def handle(d: Delivery) -> None:
            came.append((d.body, d.attempt))
            n = int(d.body)
            if n == 2 and d.attempt == 0:
                raise ValueError("at once")
            d.ack_and_put(b"%d" % (n + 1), delay=SECOND)
            if n == 3:
                raise ValueError("too late")

        store.put(b"0", topic="t")
        with consumer:
            for _ in range(8):
                while consumer.step():
                    pass
                clock.advance(SECOND)
        expected = [(b"0", 0), (b"1", 0), (b"2", 0), (b"2", 1), (b"3", 0), (b"4", 0), (b"5", 0)]
        assert came[:7] == expected and store.count() <= 1
        assert not store.dead_letters("g")


def test_a_handler_that_took_too_long_puts_nothing(tmp_path: Path, clock: ManualClock) -> None:
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock) as store:
        consumer, told = Consumer(store, "g", timeout=SECOND), list[str]()

        @consumer.on("t")
        def handle(d: Delivery) -> None:
            if d.attempt == 0:
                clock.advance(2 * SECOND)
                consumer._workings.handling.tend()
                with pytest.raises(TooLateError) as e:
                    d.ack_and_put(b"next")
                told.append(str(e.value))

        store.put(b"a", topic="t")
        with consumer:
            consumer.step()
        assert len(told) == 1 and "took too long" in told[0]
        assert [timer.topic for timer in store.pending()] == ["%RETRY%g"]


@pytest.mark.parametrize("durability", ["group", "process"])
def test_what_is_ahead_outlasts_checkpoints(tmp_path: Path, durability: Any) -> None:
    """A message stays open; those behind it are done, also in lives that do not read the group."""
    config, path = replace(SMALL, durability=durability), tmp_path / "s"
    clock = ManualClock(START_MS, force=True)
    with TimerStore(path, config=config, clock=clock) as store:
        store.put_many([b"%d" % i for i in range(10)], topic="t")
        _held, *rest = handed_out(store)
        for d in rest[:4]:
            d.ack_and_put(b"next " + d.body, delay=SECOND)
        store.flush()
        rest[5].ack_and_put(b"next 6", delay=SECOND)
        store.abandon()
    for end in ("abandon", "close", "flush and abandon"):
        with TimerStore(path, config=config, clock=clock) as store:
            if end == "flush and abandon":
                store.flush()
            store.close() if end == "close" else store.abandon()
    with TimerStore(path, config=config, clock=clock) as store:
        assert [d.body for d in handed_out(store)] == [b"0", b"5", b"7", b"8", b"9"]
        assert store.count() == 5
        clock.advance(SECOND)
        for d in handed_out(store):
            d.ack()
        store.abandon()
    with TimerStore(path, config=config, clock=clock) as store:
        everything = handed_out(store)
        assert len(everything) == 10
        for d in everything:
            d.ack()
    content = (path / "config" / "consumerOffset.json").read_text()
    assert AHEAD not in content
    assert timerstore.verify(path, config=config).ok


def test_a_batch_that_was_torn_is_not_there(tmp_path: Path, clock: ManualClock) -> None:
    """The log ends anywhere in a record and its puts: nothing of them counts."""
    path = tmp_path / "s"
    with TimerStore(path, config=SMALL, clock=clock) as store:
        store.put_many([b"a", b"b"], topic="t")
        first, _ = handed_out(store)
        store.flush()
        begin = store.core.engine.commitlog.end
        first.ack_and_put_many(
            [
                {"body": b"x" * 99, "delay": SECOND},
                {"body": b"level", "delay_level": 3},
                {"body": b"y", "delay": SECOND},
            ]
        )
        ids = [timer.id for timer in store.pending()]
        places = [int(id[12:24], 16) & ~(1 << 47) for id in ids]
        end = store.core.engine.commitlog.end
        store.abandon()
    log = "commitlog/" + "0" * 20
    stops = {begin, begin + 1, begin + 90, *places, *(p + 50 for p in places)}
    for stop in sorted(stops | set(random.Random(1).sample(range(begin, end), 12))):
        image = tmp_path / f"at{stop}"
        shutil.copytree(path, image)
        with open(image / log, "r+b") as file:
            file.seek(stop)
            file.write(bytes(end - stop))
        for _ in range(2):
            with TimerStore(image, config=SMALL, clock=clock) as store:
                assert store.core.engine.commitlog.end == begin
                assert store.count() == 0
                store.abandon()
        with TimerStore(image, config=SMALL, clock=clock) as store:
            assert [d.body for d in handed_out(store)] == [b"a", b"b"]
            store.put(b"new", topic="t")
            assert [d.body for d in handed_out(store)] == [b"new"]
        assert timerstore.verify(image, config=SMALL).ok
        shutil.rmtree(image)
    with TimerStore(path, config=SMALL, clock=clock) as store:
        assert [d.body for d in handed_out(store)] == [b"b"]
        assert store.count() == 3


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("entries", [1, 7, 100])
def test_puts_over_many_segments_of_a_queue(
    tmp_path: Path, clock: ManualClock, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes together is there as a whole, however many segments its entries touch."""
    config = replace(
        SMALL,
        consumequeue_segment_bytes=20 * entries,
        commitlog_segment_bytes=1 << 14,
    )
    few_maps(monkeypatch)
    path, count = tmp_path / "s", 300
    with TimerStore(path, config=config, clock=clock) as store:
        store.put_many([b"first", b"second"], topic="t")
        first, second = handed_out(store)
        now = [NextPut(body=b"%d" % i, topic="u") for i in range(count)]
        assert len(first.ack_and_put_many(now)) == count
        assert [d.body for d in handed_out(store, "u")] == [each["body"] for each in now]
        later = [NextPut(body=b"%d" % i, topic="v", delay=SECOND) for i in range(count)]
        assert len(second.ack_and_put_many(later)) == count == store.count()
        store.abandon()
    with TimerStore(path, config=config, clock=clock) as store:
        clock.advance(SECOND)
        assert [d.body for d in handed_out(store, "v")] == [each["body"] for each in later]
        assert not handed_out(store)
    assert timerstore.verify(path, config=config).ok


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_many_threads(tmp_path: Path) -> None:
    """Each message has one put in its place, whoever tries, while checkpoints are made."""
    config = replace(SMALL, durability="group", flush_interval_ms=10)
    with TimerStore(tmp_path / "s", config=config) as store:
        store.put_many([b"%d" % i for i in range(200)], topic="t")
        deliveries = list[Delivery]()
        while len(deliveries) < 200:
            deliveries += store.pull("t", group="g", timeout=5)
        done, late = list[int](), list[int]()

        def work(step: int) -> None:
            for d in deliveries[::step]:
                try:
                    d.ack_and_put(b"next", delay=3600 * SECOND)
                    done.append(int(d.body))
                except TooLateError:
                    late.append(int(d.body))

        together(work, (1, -1, 1, -1))
        assert sorted(done) == list(range(200)) and len(late) == 600
        assert store.count() == 200
        store.abandon()
    with TimerStore(tmp_path / "s", config=config) as store:
        assert len(store.pull("t", group="g", timeout=0)) == 0


class Life(Acts):
    """Chains that go on by acknowledging with a put, in a store that is cut off again and again."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        durability: Any = self.rnd.choice(("group", "process"))
        self.config = replace(
            SMALL,
            durability=durability,
            commitlog_segment_bytes=self.rnd.choice((4096, 1 << 16)),
            delay_levels="1s 2s",
            retention_ms=self.rnd.choice((1, 3_600_000)),
        )
        self.held = list[Delivery]()
        self.chains = self.rnd.randrange(1, 6)
        self.open()
        for c in range(self.chains):
            self.store.put(b"%d:0" % c, topic="t")
        self.store.flush()

    def open(self) -> None:
        super().open()
        self.held = []
        self.keeps = False  # what is done behind an open message, with the next checkpoint

    def acts(self) -> list[tuple[int, Act]]:
        return [
            (1, self.pull),
            (3, self.take_one),
            (1, lambda: self.take_one(back=True)),
            (1, self.advance),
            (1, lambda: self.store.flush()),
            (1, lambda: self.store.put(b"noise" * self.rnd.randrange(1, 40), topic="t")),
        ]

    def pull(self) -> None:
        count = self.rnd.randrange(1, 5)
        self.held += self.store.pull("t", group="g", max_count=count, timeout=0)

    def advance(self) -> None:
        step_ms = self.rnd.randrange(1, 1_500)
        self.now_ms += step_ms
        self.clock.advance(timedelta(milliseconds=step_ms))

    def take_one(self, *, back: bool = False) -> None:
        if self.held:
            self.go_on(self.held.pop(self.rnd.randrange(len(self.held))), back=back)

    def go_on(self, d: Delivery, *, back: bool) -> None:
        if d.body.startswith(b"noise"):
            d.ack()
        elif back and self.keeps:  # at least once: what follows at once leaves no doubt
            d.nack(delay=self.rnd.choice((None, SECOND)))
            self.store.flush()
        else:
            chain, n = map(int, d.body.split(b":"))
            when = self.rnd.choice(({}, {"delay": SECOND}, {"delay_level": 2}))
            put: Any = {"body": b"%d:%d" % (chain, n + 1), **when}
            receipts: Any = [{"body": d.body, "topic": "receipts"}] if n % 3 == 0 else []
            d.ack_and_put_many([put, *receipts])
            self.keeps = True

    def end(self) -> None:
        """The process is killed, or the power is cut, perhaps within a checkpoint."""
        how = self.rnd.choice(("kill", "power", "power in a checkpoint", "close"))
        if how == "power in a checkpoint":
            self.is_cut_in(self.store.flush, 14)
        if how.startswith("power"):
            self.cut_power()
        elif how == "kill":
            self.store.abandon()
        else:
            self.store.close()

    def check(self) -> None:
        """Each chain has one token; each receipt that it should have left is there once."""
        store = self.store
        tokens = [timer.body for timer in store.pending() if timer.topic in ("t", "%RETRY%g")]
        fresh = list(store.consume("t", group="g", timeout=0))
        tokens = [each for each in tokens if b":" in each]
        tokens += [d.body for d in fresh if b":" in d.body]
        chains = dict(tuple(map(int, each.split(b":"))) for each in tokens)
        assert len(tokens) == len(chains) == self.chains, tokens
        found = sorted(
            d.body for d in store.consume("receipts", group=f"look{self.lives}", timeout=0)
        )
        expected = sorted(b"%d:%d" % (c, n) for c in chains for n in range(0, chains[c], 3))
        assert set(expected) >= set(found) if self.config.retention_ms == 1 else expected == found
        assert len(found) == len(set(found))
        self.held = fresh


@pytest.mark.parametrize("seed", some(range(12), 3))
def test_one_token_for_each_chain(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path, seed)
    try:
        for _ in range(6):
            life.happen(life.rnd.randrange(40))
            life.end()
            life.open()
            life.check()
    finally:
        life.store.abandon()
