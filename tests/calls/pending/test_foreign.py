"""Timers that a broker wrote: cancelled, moved, named by what `pending` lists; its odd topics."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.models.ledger import read_messages
from tests.rigs import broker
from tests.small_store import SMALL
from timerstore import Config, InvalidArgumentError, ManualClock, TimerStore, TooLateError
from timerstore.errors import UnknownTimerError
from timerstore.testing.disk import QuietDisk

pytestmark = pytest.mark.slow

START_MS = broker.PUT_MS
SECOND = timedelta(seconds=1)
ODD = "тема заказа"
KEYS = ["AC1C000700002A9F00000000000001" + f"{i:02X}" for i in range(8)]
LONG_KEY = "FE80" * 14


def write(path: Path) -> None:
    """Eight timers, one a second from the tenth on; one that must roll; one of an odd topic."""
    messages = [
        broker.timer("t", b"%d" % i, START_MS + 10_000 + 1_000 * i, key)
        for i, key in enumerate(KEYS)
    ]
    messages.append(broker.timer("t", b"far", START_MS + 200_500, LONG_KEY))
    messages.append(broker.timer(ODD, b"odd", START_MS + 20_300, "odd-key"))
    messages.append(broker.timer("other", b"same key", START_MS + 12_000, KEYS[2]))
    messages.append(broker.at_level("t", b"level", 1, "level-key"))
    broker.write_store(path, messages, 1 << 16)


def open_store(path: Path, clock: ManualClock) -> TimerStore:
    return timerstore.open(path, clock=clock, config=SMALL)


def bodies(store: TimerStore, topic: str) -> list[bytes]:
    return [d.body for d in store.pull(topic, timeout=0)]


@pytest.mark.parametrize("how", ["close", "abandon"])
@pytest.mark.parametrize("when", [0, 9, 40])
def test_each_is_cancelled_by_the_id_that_is_listed(tmp_path: Path, how: str, when: int) -> None:
    """Also over reopening, also one that rolls, and over any time between."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    write(path)
    store = open_store(path, clock)
    clock.advance(when * SECOND)
    listed = {timer.id: timer for timer in store.pending()}
    count = store.count()
    assert count == len(listed) + (KEYS[2] in listed)
    chosen = [id for id in (KEYS[1], LONG_KEY, "odd-key") if id in listed]
    for id in chosen:
        assert store.cancel(id)
        assert store.cancel(id)  # asked again, it is still so
        assert store.get(id) is None
    assert store.count() == count - len(chosen)
    getattr(store, how)()
    store = open_store(path, clock)
    assert store.count() == count - len(chosen)
    assert not set(chosen) & {timer.id for timer in store.pending()}
    clock.advance(400 * SECOND)
    fired = bodies(store, "t") + bodies(store, ODD) + bodies(store, "other")
    wanted = {b"%d" % i for i in range(8)} | {b"far", b"odd", b"same key", b"level"}
    wanted -= {listed[id].body for id in chosen}
    assert sorted(fired) == sorted(wanted)
    assert store.count() == 0 and store.stats().cancelled_count == 0
    store.close()
    assert timerstore.verify(path, config=SMALL).ok


def test_a_key_of_two_topics_stands_for_both(tmp_path: Path) -> None:
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    write(path)
    with open_store(path, clock) as store:
        with pytest.raises(InvalidArgumentError, match="timers of several topics"):
            store.reschedule(KEYS[2], delay=SECOND)
        assert store.cancel_many([KEYS[2], KEYS[0], KEYS[2]]).all()
        clock.advance(60 * SECOND)
        assert bodies(store, "other") == []
        assert not {b"0", b"2"} & set(bodies(store, "t"))


def test_an_id_that_is_none_leaves_all_pending(tmp_path: Path) -> None:
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    write(path)
    with open_store(path, clock) as store:
        ours, count = store.put(b"ours", delay=60 * SECOND), store.count()
        unknown = f"{ours[:12]}{0:012X}{ours[24:]}"
        for wrong in ("nobody", "0" * 32, unknown):
            for ids in ([ours, KEYS[0], wrong], [wrong, KEYS[0], ours], [ours, wrong]):
                with pytest.raises(UnknownTimerError):
                    store.cancel_many(ids)
                assert store.count() == count
        assert store.cancel_many([ours, KEYS[0], ours]).all() and store.count() == count - 2


@pytest.mark.parametrize("how", ["close", "abandon"])
def test_each_is_moved(tmp_path: Path, how: str) -> None:
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    write(path)
    store = open_store(path, clock)
    count = store.count()
    moved = {
        store.reschedule(key, delay=300 * SECOND): body
        for key, body in ((KEYS[0], b"0"), (LONG_KEY, b"far"), ("odd-key", b"odd"))
    }
    with pytest.raises(TooLateError):
        store.reschedule(KEYS[0], delay=SECOND)
    given = {"delay": 300 * SECOND, "body": b"changed", "properties": {"a": "b"}}
    other = store.reschedule(KEYS[1], **given)
    changed = store.get(other)
    assert (changed.body, changed.properties, changed.key) == (b"changed", {"a": "b"}, "order")
    assert store.count() == count
    getattr(store, how)()
    store = open_store(path, clock)
    assert store.count() == count
    clock.advance(299 * SECOND)
    assert not {b"0", b"far"} & set(bodies(store, "t")) and not bodies(store, ODD)
    clock.advance(SECOND)
    got = {d.id: d.body for topic in ("t", ODD) for d in store.pull(topic, timeout=0)}
    assert got == moved | {other: b"changed"}
    assert all(d.key == "order" for d in store.pull(ODD, group="new", timeout=0))
    store.close()
    assert timerstore.verify(path, config=SMALL).ok


def test_what_is_over_or_in_a_level_is_told(tmp_path: Path) -> None:
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    write(path)
    with open_store(path, clock) as store:
        with pytest.raises(InvalidArgumentError, match="delay level"):
            store.cancel("level-key")
        for id in ("nonsense", "0" * 32):
            with pytest.raises(UnknownTimerError):
                store.cancel(id)
            with pytest.raises(UnknownTimerError):
                store.reschedule(id, delay=SECOND)
        clock.advance(11 * SECOND)
        with pytest.raises(UnknownTimerError):
            store.cancel(KEYS[0])  # fired: nothing tells it from one that never was


def test_a_torn_move_is_finished(tmp_path: Path) -> None:
    """A replacement whose delete was torn off: recovery finds the broker's timer by its key."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    write(path)
    store = open_store(path, clock)
    count = store.count()
    store.flush()
    store.reschedule(KEYS[3], delay=300 * SECOND)
    store.abandon()
    delete = read_messages(path)[-1]
    assert delete.properties["TIMER_DEL_UNIQKEY"] == f"t+{KEYS[3]}"
    file = path / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[delete.offset : delete.offset + delete.size_bytes] = bytes(delete.size_bytes)
    file.write_bytes(data)
    with open_store(path, clock) as store:
        assert store.core.findings.repaired_reschedule
        assert store.count() == count
        clock.advance(299 * SECOND)
        assert b"3" not in bodies(store, "t")
        clock.advance(SECOND)
        assert bodies(store, "t") == [b"3"]


def test_a_brokers_roll_of_a_replacement_is_no_torn_move(tmp_path: Path) -> None:
    """A broker that is killed may leave it as the log's last message; the delete stands before."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    moved, old_ms, new_ms = {"TIMER_REPLACES": KEYS[0]}, START_MS + 60_000, START_MS + 200_500
    messages = [
        broker.timer("t", b"1", old_ms, KEYS[0]),
        broker.timer("t", b"1", new_ms, KEYS[1], moved),
        broker.timer("t", b"", old_ms, KEYS[2], {"TIMER_DEL_UNIQKEY": f"t+{KEYS[0]}"}),
        broker.timer("t", b"1", new_ms, KEYS[1], moved | {"TIMER_ROLL_TIMES": "1"}),
    ]
    broker.write_store(path, messages, 1 << 16)
    with open_store(path, clock) as store:
        assert not store.core.findings.repaired_reschedule
        assert store.count() == len(list(store.pending())) == 1
        clock.advance(300 * SECOND)
        assert (bodies(store, "t"), store.count()) == ([b"1"], 0)


@pytest.mark.parametrize(
    ("replaced", "topic"), [(KEYS[5], "t"), ("", "t"), (KEYS[0], "other"), (KEYS[0], None)]
)
def test_a_replacement_of_nothing_is_no_torn_move(
    tmp_path: Path, replaced: str, topic: str | None
) -> None:
    """Its timer is gone, or it names none: recovery appends no delete."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    last = broker.timer("t", b"1", START_MS + 20_000, KEYS[1], {"TIMER_REPLACES": replaced})
    if topic is None:
        del last.properties["REAL_TOPIC"]
    else:
        last.properties["REAL_TOPIC"] = topic
    broker.write_store(path, [broker.timer("t", b"0", START_MS + 10_000, KEYS[0]), last], 1 << 16)
    with open_store(path, clock) as store:
        assert not store.core.findings.repaired_reschedule
        clock.advance(30 * SECOND)
        assert b"0" in bodies(store, "t")


def test_what_a_store_holds_can_be_named(tmp_path: Path) -> None:
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    write(path)
    with open_store(path, clock) as store:
        assert store.count(ODD) == 1
        assert [timer.topic for timer in store.pending(topic=ODD)] == [ODD]
        seen = []
        consumer = timerstore.Consumer(store, "workers")
        consumer.on(ODD)(lambda d: seen.append((d.topic, d.body)))
        with consumer:
            clock.advance(30 * SECOND)
        assert seen == [(ODD, b"odd")]
        (delivery,) = store.pull(ODD, group="g", timeout=0)
        delivery.nack()
        clock.advance(SECOND)
        (delivery,) = store.pull(ODD, group="g", timeout=0)
        assert (delivery.topic, delivery.attempt) == (ODD, 1)
        assert len(store.pull(ODD, group="h", timeout=0)) == 1
        with pytest.raises(InvalidArgumentError, match="not due yet"):
            store.pull("rmq_sys_wheel_timer", timeout=0)
        delivery.nack(timedelta(milliseconds=1_234))
        clock.advance(timedelta(milliseconds=1_233))
        assert not store.pull(ODD, group="g", timeout=0)
        clock.advance(timedelta(milliseconds=1))  # not at the end of a broker's slot
        assert [d.attempt for d in store.pull(ODD, group="g", timeout=0)] == [2]
        for bad in ("", "a/b", ".", "..", "a\0", "x" * 256, 5):
            with pytest.raises(InvalidArgumentError):
                store.pull(bad, timeout=0)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError):
            store.put(b"x", topic=ODD)


@pytest.mark.slow
def test_golden_timers(golden: Callable[[str], Path]) -> None:
    """A real broker's: a third cancelled, a third moved, over a crash; none of these fires."""
    path = golden("pending")
    messages = read_messages(path)
    newest = max(message.stored_ms for message in messages)
    levels = {m.properties["UNIQ_KEY"] for m in messages if m.topic == broker.LEVELS}
    clock, config = ManualClock(newest, force=True), Config(durability="process")
    store = TimerStore(path, config=config, clock=clock, disk=QuietDisk())
    listed = [each for each in store.pending() if each.id not in levels][20:]
    count = store.count()
    assert len(listed) > 30
    chosen, moved = listed[:30:3], listed[1:30:3]
    assert store.cancel_many([timer.id for timer in chosen]).all()
    ids = {store.reschedule(timer.id, delay=timedelta(seconds=30)): timer for timer in moved}
    assert store.count() == count - len(chosen)
    store.abandon()
    store = TimerStore(path, config=config, clock=clock, disk=QuietDisk())
    assert store.count() == count - len(chosen)
    clock.advance(timedelta(days=11))
    fired: dict[str, list[bytes]] = {}
    for message in read_messages(path):
        if "TIMER_DEQUEUE_MS" in message.properties and message.stored_ms > newest:
            fired.setdefault(message.properties["UNIQ_KEY"], []).append(message.body)
    for timer in listed[:30]:
        late = timer in chosen or timer in moved
        assert fired.get(timer.id, []) == ([] if late else [timer.body])
    for id, timer in ids.items():
        assert fired[id] == [timer.body]
    assert store.count() == 0 and store.stats().cancelled_count == 0
    store.close()
