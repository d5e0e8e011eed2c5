"""What became of a timer: each state, as far as the log is kept, at each limit."""

import contextlib
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.small_store import SMALL
from timerstore import (
    CorruptStoreError,
    Found,
    InvalidArgumentError,
    ManualClock,
    Retry,
    TimerStore,
    UnknownTimerError,
)
from timerstore.consumer.consumer import Consumer
from timerstore.testing.disk import QuietDisk
from timerstore.values.ids import format_id
from timerstore.watching import find as module

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
CONFIG = replace(SMALL, delay_levels="1s 5s 1s 1m")


class Shelf:
    """A store with its clock."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path, self.clock = path / "s", ManualClock()
        self.config = replace(CONFIG, **settings)
        self.open()

    def open(self) -> None:
        self.store = TimerStore(self.path, config=self.config, clock=self.clock, disk=QuietDisk())

    def kill(self) -> None:
        self.store.abandon()
        self.open()

    def fill(self, count: int, topic: str = "filler") -> None:
        """Append a lot, and have it consumed."""
        for _ in range(count):
            self.store.put_many([bytes(400)] * 50, topic=topic)
            while len(batch := self.store.pull(topic, timeout=0)):
                batch.ack()
            self.clock.advance(SECOND)


@pytest.fixture
def shelf(tmp_path: Path) -> Any:
    shelf = Shelf(tmp_path)
    yield shelf
    if not shelf.store.core.closed:
        shelf.store.close()


def groups(found: Found) -> dict[str, tuple[str, int]]:
    return {each.group: (each.state, each.attempt) for each in found.groups}


@pytest.mark.parametrize("end", ["", "kill"])
def test_a_life(shelf: Shelf, end: str) -> None:
    start_ms = shelf.clock.now_ms
    id = shelf.store.put(b"b", topic="t", key="k", delay=5 * SECOND)
    told = {"id": id, "due_ms": start_ms + 5_000, "topic": "t", "key": "k", "put_ms": start_ms}
    assert shelf.store.find(id) == Found(state="pending", **told)
    assert shelf.store.find(id.lower()) == Found(state="pending", **told)
    shelf.clock.advance(9 * SECOND)
    if end:
        shelf.kill()
    found = shelf.store.find(id.lower())
    row = shelf.store.core.engine.queues.row(b"t")
    offset = int(shelf.store.core.engine.queues.read(row, 0, 1)[0]["offset"])
    fired = Found(state="fired", fired_ms=start_ms + 5_000, offset=offset, **told)
    assert found == fired


def test_cancelled_or_moved(shelf: Shelf) -> None:
    start_ms = shelf.clock.now_ms
    ids = [shelf.store.put(b"%d" % i, topic="t", key="k", delay=5 * SECOND) for i in range(3)]
    shelf.clock.advance(SECOND)
    assert shelf.store.cancel(ids[0])
    new = shelf.store.reschedule(ids[1], delay=9 * SECOND)
    newer = shelf.store.put(b"new", topic="t", key="k", delay=9 * SECOND, replace=True)
    replaced = [id for id in (*ids[2:], new) if shelf.store.get(id) is None]
    told = {"due_ms": start_ms + 5_000, "topic": "t", "key": "k", "put_ms": start_ms}
    told["cancelled_ms"] = start_ms + 1_000

    def check() -> None:
        assert shelf.store.find(ids[0]) == Found(ids[0], "cancelled", **told)
        assert shelf.store.find(ids[1]) == Found(ids[1], "moved", moved_to=new, **told)
        (old,) = replaced
        found = shelf.store.find(old)
        assert (found.state, found.moved_to) == ("moved", newer)

    check()
    shelf.clock.advance(5 * SECOND)
    check()
    shelf.kill()
    check()
    shelf.clock.advance(HOUR)  # its slots hold later times by now
    check()


def test_far_away_timers_hop_with_their_deletes(shelf: Shelf) -> None:
    far = 400 * SECOND  # ten windows
    fired, cancelled, moved = (shelf.store.put(b"%d" % i, topic="t", delay=far) for i in range(3))
    assert shelf.store.cancel(cancelled)
    new = shelf.store.reschedule(moved, delay=far - SECOND)
    shelf.clock.advance(far / 2)
    timer = shelf.store.get(fired)
    assert timer is not None and timer.roll_count == 0  # its message stays where it is
    assert shelf.store.find(fired).state == "pending"
    for _ in range(2):
        found = shelf.store.find(moved)
        assert (found.state, found.moved_to) == ("moved", new)
        assert shelf.store.find(cancelled).state == "cancelled"
        shelf.clock.advance(far)
    assert shelf.store.find(fired).state == shelf.store.find(new).state == "fired"


def test_delay_levels(shelf: Shelf) -> None:
    fired, cancelled = (shelf.store.put(b"x", topic="t", delay_level=2) for _ in range(2))
    assert shelf.store.cancel(cancelled)
    assert shelf.store.find(fired).state == "pending"
    assert shelf.store.find(cancelled).state == "cancelled"
    shelf.clock.advance(9 * SECOND)
    found = shelf.store.find(fired)
    assert (found.state, found.fired_ms, found.due_ms) == ("fired", *(found.due_ms,) * 2)
    assert shelf.store.find(cancelled).state == "cancelled"


def test_groups(shelf: Shelf) -> None:
    store, clock = shelf.store, shelf.clock
    id, other = (store.put(b"%d" % i, topic="t", delay=SECOND) for i in range(2))
    store.pull("t", group="late", timeout=0)
    store.pull("elsewhere", group="other", timeout=0)
    clock.advance(SECOND)
    assert groups(store.find(id)) == {"late": ("waiting", 0)}
    batch = store.pull("t", group="mail", timeout=0)
    assert groups(store.find(id)) == {"late": ("waiting", 0), "mail": ("handed out", 0)}
    first, second = batch
    assert {first.id, second.id} == {id, other}
    mine = first if first.id == id else second
    mine.ack()
    assert groups(store.find(id))["mail"] == ("done", 0)
    assert groups(store.find(other))["mail"] == ("handed out", 0)
    store.flush()
    shelf.kill()
    store = shelf.store
    state = "done" if mine is first else "waiting"  # what was not committed comes again
    assert groups(store.find(id))["mail"] == (state, 0)
    assert groups(store.find(other))["mail"][0] == "waiting"


@pytest.mark.parametrize("level", [True, False])
def test_what_was_sent_back(shelf: Shelf, level: bool) -> None:
    store, clock = shelf.store, shelf.clock
    id = store.put(b"x", topic="t")
    consumer = Consumer(store, "mail", max_attempts=1)
    consumer.subscribe(
        "t", lambda d: Retry(delay_level=2) if d.attempt == 0 else Retry(delay_level=1)
    )
    if level:
        assert consumer.step() == 1
    else:
        (delivery,) = store.pull("t", group="mail", timeout=0)
        delivery.nack(5 * SECOND)
    assert groups(store.find(id)) == {"mail": ("sent back", 1)}
    clock.advance(6 * SECOND)
    assert groups(store.find(id)) == {"mail": ("waiting", 1)}
    assert consumer.step() == 1
    assert groups(store.find(id))["mail"][0] == "dead"
    assert [each.id for each in store.dead_letters("mail")] == [id]
    assert store.retry_dead_letters("mail") == 1
    clock.advance(SECOND)
    assert groups(store.find(id)) == {"mail": ("waiting", 0)}
    consumer.close()
    (delivery,) = store.pull("t", group="mail", timeout=0)
    assert groups(store.find(id)) == {"mail": ("handed out", 0)}
    delivery.ack()
    assert groups(store.find(id)) == {"mail": ("done", 0)}


def test_what_was_removed_is_unknown(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, retention_ms=1_000)
    store, id = shelf.store, shelf.store.put(b"x", topic="t", delay=SECOND)
    cancelled = store.put(b"x", topic="t", delay=SECOND)
    store.cancel(cancelled)
    shelf.clock.advance(2 * SECOND)
    store.pull("t", timeout=0).ack()
    assert store.find(id).state == "fired"
    shelf.fill(20)
    for _ in range(3):
        store.flush()
        shelf.clock.advance(SECOND)
    assert store.stats().commitlog_start > 0
    for each in (id, cancelled):
        found = store.find(each)
        assert (found.state, found.topic, found.groups) == ("unknown", None, ())
        assert found.why is not None and "removed" in found.why
    store.close()


def test_the_first_message_is_gone_and_the_copy_is_kept(tmp_path: Path) -> None:
    """Whatever topic it was of."""
    shelf = Shelf(tmp_path, retention_ms=1_000)
    store = shelf.store
    id = store.put(b"x", topic="t", delay=HOUR)
    shelf.fill(20)
    shelf.clock.advance(HOUR)
    for _ in range(3):
        store.flush()
        shelf.clock.advance(SECOND)
    store.clean()
    shelf.clock.advance(60 * SECOND)
    store.flush()
    assert store.stats().commitlog_start > 0
    found = store.find(id)
    assert (found.state, found.topic) == ("fired", "t")
    assert found.fired_ms == found.due_ms
    store.close()


def test_the_limit_of_a_look(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    store = shelf.store
    store.pause("firing")
    id = store.put(b"mine", topic="t", delay=SECOND)
    shelf.clock.advance(2 * SECOND)
    assert store.find(id).state == "pending"
    store.resume("firing")
    shelf.clock.advance(SECOND)
    monkeypatch.setattr(module, "LOOKED_MAX", 5)
    monkeypatch.setattr(module, "_NEAR_MAX", 3)
    store.put_many([b"x"] * 20, topic="t", at_ms=shelf.clock.now_ms)
    ids = list(store.put_many([b"x"] * 20, topic="t", at_ms=shelf.clock.now_ms))
    assert store.find(id).state == "fired"
    found = store.find(ids[-1])
    assert found.state == "unknown" and found.why is not None and " 5 " in found.why
    assert found.topic == "t"
    monkeypatch.setattr(module, "LOOKED_MAX", 1_000)
    assert store.find(ids[-1]).state == "fired"


def test_a_clock_that_went_back(shelf: Shelf) -> None:
    store = shelf.store
    id = store.put(b"x", topic="t", delay=SECOND)
    shelf.clock.advance(2 * SECOND)
    shelf.clock.advance(-HOUR)
    ids = [store.put(b"x", topic="t") for _ in range(30)]
    assert {store.find(each).state for each in (id, *ids)} == {"fired"}


def test_damage_is_passed_by(shelf: Shelf) -> None:
    store = shelf.store
    ids = [store.put(b"x", topic="t", delay=SECOND) for _ in range(3)]
    shelf.clock.advance(2 * SECOND)
    found = store.find(ids[1])
    assert found.offset is not None
    log = store.core.engine.commitlog
    log.ensure(0).view[found.offset + 88] ^= 1
    damaged = store.find(ids[1])
    assert damaged.state == "unknown" and damaged.why is not None and "verify" in damaged.why
    assert store.find(ids[0]).state == store.find(ids[2]).state == "fired"
    log.ensure(0).view[found.offset + 88] ^= 1
    assert store.find(ids[1]) == found


def test_no_byte_of_the_log_is_trusted(shelf: Shelf) -> None:
    store, draw = shelf.store, np.random.default_rng(7)
    ids = [store.put(b"x", topic="t", delay=SECOND) for _ in range(3)]
    store.cancel(ids[2])
    store.reschedule(ids[1], delay=2 * SECOND)
    shelf.clock.advance(5 * SECOND)
    log = store.core.engine.commitlog
    view = log.ensure(0).view
    before = view[: log.end].copy()
    for _ in range(60):
        at = draw.integers(0, log.end, 40)
        view[at] ^= draw.integers(1, 256, 40, np.uint8)
        for id in ids:
            with contextlib.suppress(UnknownTimerError, CorruptStoreError):
                assert isinstance(store.find(id), Found)
        view[: log.end] = before


def test_ids_that_are_none(shelf: Shelf) -> None:
    store = shelf.store
    id = store.put(b"x", delay=SECOND)
    tag = store.core.engine.store_tag
    for bad in (
        format_id(shelf.clock.now_ms, 1 << 40, tag),
        format_id(shelf.clock.now_ms, int(id[12:24], 16) + 8, tag),
        format_id(shelf.clock.now_ms + 1, int(id[12:24], 16), tag),
    ):
        with pytest.raises(UnknownTimerError):
            store.find(bad)
    with pytest.raises(InvalidArgumentError):
        store.find(5)  # type: ignore[arg-type]
    found = store.find("a-brokers-key")
    assert (found.state, found.due_ms) == ("unknown", None)
    assert found.why is not None and "broker" in found.why


def test_read_only(shelf: Shelf) -> None:
    store = shelf.store
    ids = [store.put(b"x", topic="t", delay=i * SECOND) for i in (1, 1, 1_000)]
    store.cancel(ids[1])
    shelf.clock.advance(3 * SECOND)
    store.pull("t", group="g", timeout=0).ack()
    told = [asdict(store.find(id)) for id in ids]
    assert [each["state"] for each in told] == ["fired", "cancelled", "pending"]
    store.close()
    with timerstore.open(shelf.path, read_only=True) as look:
        assert [asdict(look.find(id)) for id in ids] == told
