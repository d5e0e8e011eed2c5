"""Timers by their key: looked for, cancelled, put on condition."""

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.rigs.history import Act, Acts
from tests.small_store import SMALL
from timerstore import Config, InvalidArgumentError, ManualClock, Timer, TimerStore
from timerstore.jit.kernel import INTERPRETED
from timerstore.services.engine import key_files
from timerstore.testing.disk import QuietDisk

START_MS = 1_800_000_000_000
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@pytest.fixture(params=[True, False], ids=["index", "scan"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TimerStore]:
    """A store on a manual clock, with the index and without."""
    config = replace(SMALL, key_index=request.param)
    clock = ManualClock(START_MS, force=True)
    with TimerStore(tmp_path / "s", config=config, clock=clock, disk=QuietDisk()) as store:
        yield store


def advance(store: TimerStore, by: timedelta) -> None:
    clock = store.core.clock
    assert isinstance(clock, ManualClock)
    clock.advance(by)


@pytest.mark.parametrize("is_there", [False, True], ids=["none", "one pending"])
@pytest.mark.parametrize("condition", ["if_absent", "replace"])
def test_a_delay_counts_from_when_it_is_put(
    store: TimerStore, condition: str, is_there: bool
) -> None:
    """Who waited for others of the key puts for no time at which one of theirs has fired.

    Else a recurring job that two threads start ran twice for one time: the first one's timer had
    fired, and been carried on, when the second one's was put, for the same time.
    """
    if is_there:
        store.put(b"1", topic="t", delay=HOUR, key="k")
    found, given = list[str](), {condition: True}
    put = threading.Thread(
        target=lambda: found.append(
            store.put(b"2", topic="t", delay=10 * SECOND, key="k", **given)  # type: ignore[arg-type]
        )
    )
    with store.timers.keyed.lock.guard():
        put.start()
        time.sleep(0.1)
        advance(store, 30 * SECOND)
    put.join(60)
    timer = store.get(found[0])
    assert timer is not None
    was_put = condition == "replace" or not is_there
    assert timer.due_ms == START_MS + (40_000 if was_put else 3_600_000)


@pytest.mark.parametrize("order", ["level first", "level last", "levels around"])
def test_what_waits_in_a_level_hides_no_timer_that_can_be_replaced(
    store: TimerStore, order: str
) -> None:
    """`put(replace=True)` takes the one that is in no level, wherever it stands."""
    levels = {"level first": "LT", "level last": "TL", "levels around": "LTL"}[order]
    ids = [
        store.put(b"l", topic="t", delay_level=4, key="k")
        if each == "L"
        else store.put(b"t", topic="t", delay=HOUR, key="k")
        for each in levels
    ]
    new = store.put(b"n", topic="t", delay=2 * HOUR, key="k", replace=True)
    assert store.get(ids[levels.index("T")]) is None
    timer = store.get(new)
    assert timer is not None and timer.body == b"n"
    assert store.count("t") == len(levels)


def test_a_timer_is_found_until_it_fires(store: TimerStore) -> None:
    id = store.put(b"a", topic="t", delay=10 * SECOND, key="user:7", tag="g", properties={"n": "1"})
    assert store.get_key("t", "user:7") == store.get(id)
    assert store.get_key("other", "user:7") is None
    assert store.get_key("t", "user") is None
    advance(store, 9 * SECOND)
    assert store.get_key("t", "user:7") is not None
    advance(store, SECOND)
    assert store.get_key("t", "user:7") is None
    advance(store, 9 * SECOND)
    assert store.get_key("t", "user:7") is None


@pytest.mark.parametrize("key", ["two words", " around ", "  ", "äö😀", "a b a", "x" * 3_000])
def test_any_text_is_a_key(store: TimerStore, key: str) -> None:
    """Blanks separate the keys that a broker finds; for us it is one, whatever it holds."""
    id = store.put(b"a", topic="t", delay=HOUR, key=key)
    store.put(b"b", topic="t", delay=HOUR, key=key + " more")
    found = store.get_key("t", key)
    assert found is not None and found.id == id
    assert store.put(b"c", topic="t", delay=HOUR, key=key, if_absent=True) == id
    assert store.cancel_key("t", key) == 1
    assert store.get_key("t", key) is None


def test_keys_with_one_hash_are_two(store: TimerStore) -> None:
    ids = [store.put(b"a", topic="t", delay=HOUR, key=key) for key in ("FB", "Ea")]
    found = [store.get_key("t", key) for key in ("FB", "Ea")]
    assert [each.id for each in found if each] == ids


def test_put_if_absent(store: TimerStore) -> None:
    first = store.put(b"a", topic="t", delay=5 * SECOND, key="k", if_absent=True)
    assert store.put(b"b", topic="t", delay=HOUR, key="k", if_absent=True) == first
    other = store.put(b"c", topic="u", delay=HOUR, key="k", if_absent=True)
    assert other != first and store.count() == 2
    advance(store, 5 * SECOND)
    second = store.put(b"d", topic="t", delay=5 * SECOND, key="k", if_absent=True)
    assert second not in (first, other)
    assert store.cancel(second)
    assert store.put(b"e", topic="t", delay=HOUR, key="k", if_absent=True) != second
    assert [d.body for d in store.pull("t", timeout=0)] == [b"a"]


def test_replace(store: TimerStore) -> None:
    first = store.put(b"a", topic="t", delay=HOUR, key="k", replace=True)
    second = store.put(
        b"b", topic="t", delay=2 * HOUR, key="k", tag="g", properties={"n": "1"}, replace=True
    )
    third = store.put(b"c", topic="t", delay=5 * SECOND, key="k", replace=True)
    assert len({first, second, third}) == 3 and store.count() == 1
    found = store.get_key("t", "k")
    assert found is not None
    assert (found.id, found.body, found.tag, found.properties) == (third, b"c", None, {})
    store.put(b"d", topic="t", delay=5 * SECOND, key="k", tag="h", replace=True)
    advance(store, HOUR * 3)
    (delivery,) = store.pull("t", timeout=0)
    assert (delivery.body, delivery.key, delivery.tag) == (b"d", "k", "h")


def test_of_what_is_put_without_asking_there_may_be_several(store: TimerStore) -> None:
    ids = [store.put(b"%d" % i, topic="t", delay=HOUR * (9 - i), key="k") for i in range(5)]
    level = store.put(b"level", topic="t", delay_level=3, key="k")
    store.put(b"other", topic="t", delay=HOUR, key="k2")
    found = list(store.pending(topic="t", key="k"))
    assert [timer.id for timer in found] == [level, *reversed(ids)]
    bounded = store.pending(topic="t", key="k", start_ms=found[1].due_ms, limit=2)
    assert [timer.id for timer in bounded] == ids[:2:-1]
    assert list(store.pending(topic="t", key="k", end_ms=found[0].due_ms)) == []
    newest = store.get_key("t", "k")
    assert newest is not None and newest.id in (ids[4], level)
    assert store.cancel_key("t", "k") == 6
    assert store.cancel_key("t", "k") == 0 and store.count() == 1


def test_a_level_keeps_its_order(store: TimerStore) -> None:
    id = store.put(b"a", topic="t", delay_level=3, key="k", if_absent=True)
    assert store.put(b"b", topic="t", delay_level=3, key="k", if_absent=True) == id
    with pytest.raises(InvalidArgumentError, match="delay level"):
        store.put(b"c", topic="t", delay=HOUR, key="k", replace=True)
    advance(store, timedelta(hours=3))
    assert store.get_key("t", "k") is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"if_absent": True}, "Pass key as well"),
        ({"key": "k", "if_absent": True, "replace": True}, "one of them"),
        ({"key": "k", "replace": True, "delay_level": 1}, "delay level"),
        ({"key": "k", "if_absent": "yes"}, "True or False"),
        ({"key": "", "if_absent": True}, "not empty"),
        ({"key": "k", "if_absent": True, "topic": "not good"}, "topic"),
        ({"key": "k", "replace": True, "body": b""}, "body is empty"),
    ],
)
def test_what_is_refused(store: TimerStore, given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        store.put(**({"body": b"x", "topic": "t"} | given))  # type: ignore[arg-type]
    assert store.count() == 0


def test_what_is_no_key(store: TimerStore) -> None:
    with pytest.raises(InvalidArgumentError, match="Pass topic"):
        store.pending(key="k")
    for call in (store.get_key, store.cancel_key):
        with pytest.raises(InvalidArgumentError):
            call("t", "")
        with pytest.raises(InvalidArgumentError):
            call(7, "k")  # type: ignore[arg-type]


def check_keys(store: TimerStore) -> int:
    """Each key finds what a listing shows, and nothing else; return how many are pending."""
    expected: dict[tuple[str, str], list[Timer]] = {}
    for timer in store.pending():
        if timer.key is not None:
            expected.setdefault((timer.topic, timer.key), []).append(timer)
    for (topic, key), timers in expected.items():
        found = list(store.pending(topic=topic, key=key))
        assert [each.due_ms for each in found] == [each.due_ms for each in timers]
        assert {(each.id, each.body) for each in found} == {(each.id, each.body) for each in timers}
        assert len(found) == len(timers)
        newest = store.get_key(topic, key)
        assert newest is not None and newest.id in {each.id for each in timers}
    for topic in "ab":
        for key in ("k0", "k1", "k2", "k3 4"):
            if (topic, key) not in expected:
                assert store.get_key(topic, key) is None
    return sum(map(len, expected.values()))


class Keys(Acts):
    """What happens to a few keys."""

    config = replace(SMALL, commitlog_segment_bytes=4_096, retention_ms=0, cleaning_slack_bytes=0)

    def acts(self) -> list[tuple[int, Act]]:
        return [
            (2, self.put),
            (1, lambda: self.put(if_absent=True)),
            (1, lambda: self.put(replace=True)),
            (1, self.put_at_a_level),
            (1, lambda: self.store.cancel_key(*self.some())),
            (1, lambda: advance(self.store, timedelta(seconds=self.rnd.choice([1, 1, 8, 60])))),
            (1, lambda: self.store.pull(self.some()[0], timeout=0).ack()),
            (1, self.store.flush),
        ]

    def some(self) -> tuple[str, str]:
        return self.rnd.choice("ab"), self.rnd.choice(["k0", "k1", "k2", "k3 4"])

    def put(self, **how: bool) -> None:
        topic, key = self.some()
        in_levels = [int(t.id[12], 16) & 8 for t in self.store.pending(topic=topic, key=key)]
        if not how.get("replace") or not any(in_levels):
            delay = self.rnd.choice([1, 3, 30, 200, 900]) * SECOND
            self.store.put(b"x", topic=topic, delay=delay, key=key, **how)

    def put_at_a_level(self) -> None:
        topic, key = self.some()
        self.store.put(b"x", topic=topic, delay_level=self.rnd.randrange(1, 4), key=key)


@pytest.mark.slow
@pytest.mark.timeout(120, method="signal")
@pytest.mark.parametrize("number", range(2))
def test_nothing_is_missed_after_any_end(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed, killed, or its power cut: what is pending is found by its key."""
    monkeypatch.setattr(key_files, "ROOM_MIN", 8)
    monkeypatch.setattr(key_files, "ROOM_MAX", 32)
    keys, most, count = Keys(tmp_path, number), 0, 12 if INTERPRETED else 40
    for _ in range(6):
        keys.open()
        most = max(most, check_keys(keys.store))
        ending = keys.rnd.choice([keys.store.close, keys.store.abandon, keys.cut_power])
        if ending != keys.cut_power:
            keys.happen(count)
            most = max(most, check_keys(keys.store))
        elif not keys.is_cut_in(lambda: keys.happen(count), 150):
            most = max(most, check_keys(keys.store))
        keys.now_ms = keys.clock.now_ms
        ending()
    assert most > 3


@pytest.mark.long
@pytest.mark.timeout(60, method="signal")
def test_many_at_once_make_one(tmp_path: Path) -> None:
    """Threads that put a few keys if absent, move or cancel them: never are two pending."""
    with timerstore.open(tmp_path / "s", config=Config(durability="process")) as store:
        keys, faults, stop = ["a", "b", "c"], list[str](), threading.Event()

        def worker(seed: int) -> None:
            rnd = random.Random(seed)
            for _ in range(30 if INTERPRETED else 300):
                key = rnd.choice(keys)
                how = rnd.choice(["absent", "absent", "replace", "cancel", "move"])
                delay = timedelta(milliseconds=rnd.choice([2, 20, 3_600_000]))
                if how == "cancel":
                    store.cancel_key("t", key)
                elif how == "move":
                    if found := store.get_key("t", key):
                        with contextlib.suppress(timerstore.TooLateError):
                            store.reschedule(found.id, delay=HOUR)
                else:
                    given = {"if_absent": True} if how == "absent" else {"replace": True}
                    store.put(b"x", topic="t", delay=delay, key=key, **given)

        def watch() -> None:
            while not stop.is_set():
                found = [timer.key for timer in store.pending(topic="t")]
                if len(found) != len(set(found)):
                    faults.append(str(found))

        threads = [threading.Thread(target=worker, args=(seed,)) for seed in range(6)]
        watcher = threading.Thread(target=watch)
        for thread in (watcher, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        watcher.join()
        assert faults == []
        while any(timer.due_ms < store.health().now_ms + 60_000 for timer in store.pending()):
            time.sleep(0.01)  # what fires between two looks is in one of them
        check_keys(store)


@pytest.mark.timeout(60, method="signal")
def test_a_timer_that_is_copied_during_a_look(tmp_path: Path) -> None:
    """The copy was not there when the look began, the first message is gone when it comes there."""
    config = replace(SMALL, precision_ms=100, commitlog_segment_bytes=1 << 14, retention_ms=0)
    with TimerStore(tmp_path / "s", config=config) as store:
        first = store.put(b"a", topic="t", delay=HOUR, key="k")
        store.put_many([b"x" * 1_000] * 40, topic="u")
        for d in store.consume("u", timeout=1):
            d.ack()
        second = store.put(b"b", topic="t", delay=HOUR, key="k")
        store.flush()
        keyed, cleaner = store.timers.keyed, store.core.upkeep.cleaner
        cleaner.wait_slots = 2
        floor, search = store.core.engine.world.cleaning, keyed._search.next

        def slow(key: bytes, topic: bytes, how: int) -> int:
            keyed._search.next = search  # type: ignore[method-assign]
            said = search(key, topic, how)
            while floor.floor == 0:
                cleaner.run(at_once=True, until=1 << 62)
                time.sleep(0.05)
            return said

        keyed._search.next = slow  # type: ignore[method-assign]
        assert {timer.id for timer in store.pending(topic="t", key="k")} == {first, second}
        assert store.cancel_key("t", "k") == 2 and store.get_key("t", "k") is None


@pytest.mark.timeout(60, method="signal")
def test_a_segment_that_goes_during_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cleaning removes between two looks at it is no damage."""
    config = replace(
        SMALL,
        precision_ms=100,
        wheel_slot_count=1 << 16,
        roll_window_slots=40_000,  # nothing rolls
        commitlog_segment_bytes=1 << 14,
        retention_ms=0,
    )
    with TimerStore(tmp_path / "s", config=config) as store:
        ids = [store.put(b"a", topic="t", delay=HOUR, key=f"k{i}") for i in range(10)]
        store.put_many([b"x" * 12_000] * 40, topic="u")
        for d in store.consume("u", timeout=1):
            d.ack()
        store.core.upkeep.cleaner.wait_slots = 2
        log = store.core.engine.commitlog
        existing, asked = log.existing, list[int]()

        def late(number: int) -> object:
            if not asked:
                asked.append(number)
                store.clean()
            return existing(number)

        monkeypatch.setattr(log, "existing", late)
        for id in ids:  # a service may have opened the segment again since it was let go
            log.retire(0)
            assert store.cancel(id) and store.get(id) is None
            if asked:
                break
        assert asked == [0] and log.start > 0


def test_a_put_waits_for_nobody_with_the_lock(store: TimerStore) -> None:
    """A call within one of the same thread, as a signal's handler makes it, is refused."""
    store.put(b"a", topic="t", delay=HOUR, key="k")
    with store.core.engine.keys.lock.guard():
        store.put(b"b", topic="t", delay=HOUR, key="k")
        for call in (
            lambda: store.get_key("t", "k"),
            lambda: store.cancel_key("t", "k"),
            lambda: store.put(b"c", topic="t", key="k", if_absent=True),
            lambda: list(store.pending(topic="t", key="k")),
            store.flush,
        ):
            with pytest.raises(timerstore.TimerStoreError, match="inside another call"):
                call()
    assert len(list(store.pending(topic="t", key="k"))) == 2


def test_rescheduled_and_put_back(store: TimerStore) -> None:
    id = store.put(b"a", topic="t", delay=SECOND, key="k")
    moved = store.reschedule(id, delay=HOUR)
    found = store.get_key("t", "k")
    assert found is not None and found.id == moved
    advance(store, HOUR)
    (delivery,) = store.pull("t", timeout=0)
    delivery.nack(HOUR)  # it waits under its group's retry topic
    assert store.get_key("t", "k") is None
