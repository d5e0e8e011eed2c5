"""Dead letters: listed without being consumed, put back one by one."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.small_store import SMALL
from tests.watched import StoppedHereError, Watched
from timerstore import Consumer, InvalidArgumentError, ManualClock, Retry, TimerStore
from timerstore.calls.consuming import dead_letters, delivery
from timerstore.core.offsets import AHEAD
from timerstore.testing.disk import QuietDisk

SECOND = timedelta(seconds=1)


class Ward:
    """A store whose consumer gives up what it gets, unless it is told to be kind."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.kind = path, ManualClock(), False
        self.got: list[tuple[bytes, int]] = []
        self.open()

    def open(self) -> None:
        self.clock = ManualClock(self.clock.now_ms)
        self.store = TimerStore(self.path, config=SMALL, clock=self.clock, disk=QuietDisk())
        self.consumer = Consumer(self.store, "g", max_attempts=0)
        self.consumer.subscribe("t", self.handle)

    def handle(self, delivery: timerstore.Delivery) -> Retry | None:
        self.got.append((delivery.body, delivery.attempt))
        return None if self.kind else Retry(delay_level=-1)

    def lose(self, *bodies: bytes) -> list[str]:
        ids = [self.store.put(body, topic="t", key="k" + body.decode()) for body in bodies]
        assert self.consumer.step() == len(bodies)
        return ids

    def letters(self) -> list[bytes]:
        return [each.body for each in self.store.dead_letters("g")]

    def counted(self) -> int:
        (row,) = (each for each in self.store.stats().groups if each.topic == "t")
        return row.dead_letter_count

    def reopen(self, *, crash: bool) -> None:
        if crash:
            self.store.abandon()
        else:
            self.store.close()
        self.open()


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    ward = Ward(tmp_path / "store")
    yield ward
    ward.store.close()


def test_a_dead_letter_says_what_it_was(ward: Ward) -> None:
    options = {"key": "k", "tag": "red", "properties": {"a": "b"}}
    id = ward.store.put(b"body", topic="t", **options)  # type: ignore[arg-type]
    ward.clock.advance(5 * SECOND)
    ward.consumer.step()
    (found,) = ward.store.dead_letters("g")
    assert (found.id, found.topic, found.body) == (id, "t", b"body")
    assert (found.key, found.tag, found.properties) == ("k", "red", {"a": "b"})
    assert (found.attempts, found.died_ms) == (1, ward.clock.now_ms)
    assert ward.consumer.dead_letters() == [found]
    assert ward.store.dead_letters("other") == []


def test_listing_consumes_nothing(ward: Ward) -> None:
    ward.lose(b"1", b"2", b"3")
    assert ward.letters() == ward.letters() == [b"1", b"2", b"3"]
    assert [each.body for each in ward.store.dead_letters("g", 2)] == [b"1", b"2"]
    assert ward.store.dead_letters("g", 0) == []
    for skip in range(5):
        found = ward.store.dead_letters("g", 2, skip=skip)
        assert [each.body for each in found] == [b"1", b"2", b"3"][skip : skip + 2]
    assert ward.consumer.retry_dead_letters(1) == 1
    assert ward.letters() == [b"2", b"3"] and ward.counted() == 2
    ward.store.close()
    with timerstore.open(ward.path, read_only=True, clock=ManualClock()) as looking:
        assert [each.body for each in looking.dead_letters("g")] == [b"2", b"3"]
        with pytest.raises(timerstore.ReadOnlyError):
            looking.retry_dead_letters("g")


@pytest.mark.parametrize("crash", [False, True])
def test_single_ones_are_put_back_for_good(ward: Ward, crash: bool) -> None:
    ids = ward.lose(b"0", b"1", b"2", b"3", b"4")
    ward.got.clear()
    assert ward.store.retry_dead_letters("g", ids=[ids[3], ids[1], "0" * 32]) == 2
    assert ward.letters() == [b"0", b"2", b"4"] and ward.counted() == 3
    assert [each.body for each in ward.store.dead_letters("g", skip=1)] == [b"2", b"4"]
    assert ward.store.retry_dead_letters("g", ids=[ids[1]]) == 0
    ward.reopen(crash=crash)
    assert ward.counted() == 3
    assert ward.letters() == [b"0", b"2", b"4"]
    ward.kind = True
    ward.consumer.step()
    assert sorted(ward.got) == [(b"1", 0), (b"3", 0)]
    assert ward.consumer.retry_dead_letters(ids=[ids[0]]) == 1  # the offset may pass the first two
    ward.reopen(crash=crash)
    assert ward.letters() == [b"2", b"4"]
    assert ward.store.retry_dead_letters("g") == 2 and ward.letters() == []
    ward.reopen(crash=crash)
    assert ward.letters() == [] and ward.counted() == 0
    ward.consumer.step()
    content = ward.path / "config" / "consumerOffset.json"
    ward.store.flush()
    assert AHEAD not in json.loads(content.read_text())


@pytest.mark.parametrize("limit", ["count", "bytes"])
def test_more_than_at_once(ward: Ward, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if limit == "count":
        monkeypatch.setattr(dead_letters, "_AT_ONCE", 3)
    else:
        monkeypatch.setattr(delivery, "CONSUME_BYTES", 3)
    ids = ward.lose(*(b"%d" % i for i in range(10)))
    assert ward.store.retry_dead_letters("g", 7, ids=ids[1:]) == 7
    assert ward.letters() == [b"0", b"8", b"9"]


def test_what_somebody_reads_is_left_alone(ward: Ward) -> None:
    ids = ward.lose(b"0", b"1", b"2")
    batch = ward.store.pull("%DLQ%g", group="g", max_count=2, timeout=0)
    assert ward.letters() == [b"0", b"1", b"2"]  # not done yet
    assert ward.store.retry_dead_letters("g", ids=ids) == 1
    batch.ack()
    assert ward.letters() == []


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("some", [False, True])
def test_one_that_fails_stays(
    ward: Ward, monkeypatch: pytest.MonkeyPatch, some: bool, crash: bool
) -> None:
    lost = ward.lose(b"0", b"1", b"2")
    ids = lost if some else None
    send_to, calls = dead_letters.send_to, []

    def send(*args: object, **options: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise StoppedHereError
        send_to(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(dead_letters, "send_to", send)
    with pytest.raises(StoppedHereError):
        ward.store.retry_dead_letters("g", ids=ids)
    monkeypatch.undo()
    assert ward.letters() == [b"1", b"2"]
    if crash:
        ward.reopen(crash=True)
        assert ward.letters() == [b"1", b"2"]
    assert ward.store.retry_dead_letters("g", ids=ids) == 2


def test_what_lies_behind_the_queue_is_forgotten(ward: Ward) -> None:
    # A power cut may take the entry: another message comes in its place, and is not done.
    ids = ward.lose(b"0", b"1", b"2")
    ward.store.retry_dead_letters("g", ids=[ids[1]])
    ward.store.close()
    path = ward.path / "config" / "consumerOffset.json"
    content = json.loads(path.read_text())
    content[AHEAD] = {"%DLQ%g@g": {"0": [[1, 2], [3, 4]], "7": [[0, 1]]}}
    path.write_text(json.dumps(content))
    ward.open()
    assert ward.store.core.offsets.ahead["%DLQ%g@g"] == {"0": [(1, 2)], "7": []}
    ward.store.put(b"3", topic="t")
    assert ward.consumer.step() == 2  # with the one that was put back
    assert sorted(ward.letters()) == [b"0", b"1", b"2", b"3"]


def test_damage_is_passed_by(ward: Ward, caplog: pytest.LogCaptureFixture) -> None:
    ward.lose(b"0", b"first-of-them", b"2")
    engine = ward.store.core.engine
    (row,) = engine.queues.rows(b"%DLQ%g")
    offset = int(engine.queues.read(row, 1, 1)[0]["offset"])
    engine.commitlog.view(offset)[100] ^= 1
    assert ward.letters() == [b"0", b"2"]
    assert str(offset) in caplog.text


@pytest.mark.parametrize("some", [False, True])
def test_none_is_lost_wherever_putting_back_stops(tmp_path: Path, some: bool) -> None:
    """At each event of the disk: what is no letter any more comes again, at least once."""
    stop_at, events = 0, 1
    while stop_at < events:
        clock, disk = ManualClock(), Watched()
        store = TimerStore(tmp_path / str(stop_at), config=SMALL, clock=clock, disk=disk)
        consumer = Consumer(store, "g", max_attempts=0)
        consumer.subscribe("t", lambda d: Retry(delay_level=-1))
        ids = [store.put(b"%d" % i, topic="t") for i in range(4)]
        assert consumer.step() == 4
        store.flush()
        disk.events.clear()
        disk.stop_at = stop_at
        chosen = ids[1:3] if some else None
        try:
            assert store.retry_dead_letters("g", ids=chosen) == (2 if some else 4)
        except StoppedHereError:
            events = stop_at + 2
        disk.stop_at = -1
        store.abandon()
        clock = ManualClock(clock.now_ms)
        with TimerStore(tmp_path / str(stop_at), config=SMALL, clock=clock) as store:
            letters = [each.body for each in store.dead_letters("g")]
            again = store.pull("t", group="g", timeout=0).bodies.to_pylist()
            assert {*letters, *again} == {b"0", b"1", b"2", b"3"}
            assert len(set(again)) == len(again) and len(set(letters)) == len(letters)
            (row,) = (each for each in store.stats().groups if each.topic == "t")
            assert row.dead_letter_count == len(letters)
        stop_at += 1
    assert stop_at > 3
    assert letters == ([b"0", b"3"] if some else []) and len(again) == (2 if some else 4)


# --- why


class Clinic(Ward):
    """A store whose handlers fail as their message says."""

    def open(self) -> None:
        super().open()
        self.consumer = Consumer(self.store, "g", max_attempts=2)
        self.consumer.subscribe("t", self.fail)
        self.consumer.start()

    def fail(self, delivery: timerstore.Delivery) -> Retry | None:
        if delivery.body == b"retry":
            return Retry(delay_level=-1)
        if delivery.body == b"slow":
            self.clock.advance(timedelta(minutes=16))
            return None
        raise json.JSONDecodeError(f"attempt {delivery.attempt}", "x", 0)


@pytest.mark.parametrize("crash", [False, True])
def test_a_letter_says_why_and_since_when(tmp_path: Path, crash: bool) -> None:
    clinic = Clinic(tmp_path)
    start_ms = clinic.clock.now_ms
    trace = "0af7651916cd43dd8448eb211c80319c"
    told = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "a": "b"}
    clinic.store.put(b"x", topic="t", delay=SECOND, properties=told)
    clinic.clock.advance(2 * SECOND)
    clinic.consumer.close()
    clinic.store.flush()
    clinic.reopen(crash=crash)  # what it failed first is carried by its retry
    clinic.clock.advance(timedelta(hours=1))
    (letter,) = clinic.store.dead_letters("g")
    assert (letter.attempts, letter.topic, letter.properties) == (3, "t", told)
    assert (letter.first_failed_ms, letter.died_ms) == (start_ms + 1_000, start_ms + 41_000)
    assert letter.error_type == "json.decoder.JSONDecodeError"
    assert letter.error_text == "attempt 2: line 1 column 1 (char 0)"
    assert letter.trace_id == trace
    # Put back it is as new.
    assert clinic.consumer.retry_dead_letters() == 1
    (again,) = clinic.store.consume("t", group="g", timeout=0)
    assert (again.attempt, again.properties) == (0, told)
    assert "TIMER_ERROR_TEXT" not in again._handed.message(again._i).properties
    again.nack(SECOND)
    clinic.clock.advance(timedelta(hours=1))
    (letter,) = clinic.store.dead_letters("g")
    assert letter.first_failed_ms == start_ms + 3_602_000
    clinic.consumer.close()
    clinic.store.close()


@pytest.mark.parametrize(
    ("body", "error_type", "error_text"),
    [(b"retry", "retry", ""), (b"slow", "timeout", "the handler had not ended after 900000 ms")],
)
def test_what_raised_nothing_says_so(
    tmp_path: Path, body: bytes, error_type: str, error_text: str
) -> None:
    clinic = Clinic(tmp_path)
    clinic.store.put(body, topic="t")
    clinic.clock.advance(timedelta(hours=2))
    (letter,) = clinic.store.dead_letters("g")
    assert (letter.error_type, letter.error_text) == (error_type, error_text)
    clinic.consumer.close()
    clinic.store.close()


# --- dropped


@pytest.mark.parametrize("crash", [False, True])
def test_what_is_dropped_is_gone(ward: Ward, crash: bool) -> None:
    ids = ward.lose(b"0", b"1", b"2", b"3")
    assert ward.store.drop_dead_letters("g", ids=[ids[2], "0" * 32]) == 1
    ward.reopen(crash=crash)
    assert ward.letters() == [b"0", b"1", b"3"]
    assert ward.consumer.drop_dead_letters(1) == 1
    assert ward.letters() == [b"1", b"3"] and ward.counted() == 2
    assert ward.store.drop_dead_letters("g") == 2
    ward.reopen(crash=crash)
    ward.kind = True
    assert (
        ward.letters() == []
        and ward.store.retry_dead_letters("g") == 0
        and ward.consumer.step() == 0
    )
    with pytest.raises(InvalidArgumentError):
        ward.store.drop_dead_letters("no/group")


def test_what_dies_again_at_once_is_left(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "_AT_ONCE", 3)
    ward.lose(*(b"%d" % i for i in range(7)))
    real, again = dead_letters.part_of, list[int]()

    def die(*args: object) -> object:
        if len(again) < 20:
            again.append(ward.consumer.step())
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(dead_letters, "part_of", die)
    assert ward.store.retry_dead_letters("g") == 7
    assert len(ward.letters()) == sum(again)


@pytest.mark.parametrize("some", [False, True])
def test_a_pause_of_consuming_keeps_no_letter(ward: Ward, some: bool) -> None:
    ids = ward.lose(b"0", b"1")
    ward.store.pause("consuming")
    assert ward.store.retry_dead_letters("g", ids=ids[:1] if some else None, limit=1) == 1
    assert ward.store.drop_dead_letters("g", ids=ids[1:] if some else None) == 1
    assert ward.letters() == []
