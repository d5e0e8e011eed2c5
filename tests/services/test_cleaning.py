"""Cleaning small stores: what is copied, what goes, what stays, what a reopened store finds."""

import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.models.ledger import read_messages
from tests.small_store import small
from timerstore import Config, ManualClock, TimerStore
from timerstore.offline.verify import verify
from timerstore.services.cleaning.cleaning import Cleaner
from timerstore.services.world.state import PASS_COUNT_MAX
from timerstore.validation import validate

SECOND = timedelta(seconds=1)
START_MS = 1_800_000_000_000
SMALL = small(4_096, 200, 520, roll_window_slots=60, wheel_slot_count=1_024, cleaning_slack_bytes=0)


def open_small(path: Path, clock: ManualClock, config: Config = SMALL) -> TimerStore:
    return TimerStore(path, config=config, clock=clock)


def drain(store: TimerStore) -> list[bytes]:
    bodies: list[bytes] = []
    while len(batch := store.pull("default", timeout=0)):
        bodies += batch.bodies.to_pylist()
        batch.ack()
    return bodies


def put_far(store: TimerStore, count: int = 5) -> list[str]:
    ids = [store.put(b"far %d" % i, delay=(500 + i) * SECOND) for i in range(count)]
    store.core.play_now()  # each has its unit
    return ids


def live_on(store: TimerStore, clock: ManualClock, times: int = 20) -> list[bytes]:
    """Short timers that fire and are consumed, with a checkpoint now and then."""
    got: list[bytes] = []
    for _ in range(times):
        store.put_many([b"short"] * 20, delay_ms=1_000)
        clock.advance(2 * SECOND)
        got += drain(store)
        store.flush()
    return got


def copy_some(store: TimerStore, units_at_once: int, times: int = 1) -> int:
    """Copy so many times, out of the oldest segment; return how many messages were copied."""
    cleaner, words = store.core.upkeep.cleaner, store.core.engine.world.cleaning
    cleaner.stopped, cleaner.units_at_once = False, units_at_once
    for _ in range(times):
        before = words.copied_count
        while words.copied_count == before:
            assert cleaner.step()
    return words.copied_count


def clean_all(store: TimerStore) -> None:
    while store.core.upkeep.cleaner.step():
        pass


def bodies(store: TimerStore) -> list[bytes]:
    return [timer.body for timer in store.pending()]


def is_sound(path: Path) -> bool:
    return verify(path).ok and validate(path).ok


@pytest.mark.whole
def test_far_timers_do_not_keep_the_log(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        ids = put_far(store)
        live_on(store, clock, 60)
        found = store.stats().cleaning
        assert found.copied_count >= 5 and found.segment_count > 0 and found.removed_count > 0
        assert store.core.engine.commitlog.end - store.core.engine.commitlog.start < 200_000
        assert store.core.engine.timerlog.end - store.core.engine.timerlog.start < 40_000
        assert bodies(store) == [b"far %d" % i for i in range(5)]
        for i, id in enumerate(ids):
            timer = store.get(id)
            assert timer is not None and timer.body == b"far %d" % i
        assert store.cancel(ids[0])
        later = store.reschedule(ids[1], delay=700 * SECOND)
        assert store.get(ids[1]) is None and store.get(later) is not None
        assert is_sound(tmp_path / "s")
    assert is_sound(tmp_path / "s")
    with open_small(tmp_path / "s", clock) as store:
        assert store.count() == 4
        clock.advance(800 * SECOND)
        assert drain(store) == [b"far 2", b"far 3", b"far 4", b"far 1"]
        assert store.stats().unreadable_count == 0


@pytest.mark.whole
@pytest.mark.parametrize("abandon", [False, True])
def test_a_pass_goes_on_in_the_next_life(tmp_path: Path, abandon: bool) -> None:
    clock = ManualClock(START_MS, force=True)
    store = open_small(tmp_path / "s", clock)
    put_far(store, 40)
    store.core.upkeep.cleaner.stopped = True
    live_on(store, clock, 3)
    copied = copy_some(store, 3, 3)
    assert 0 < copied < 40
    assert len(bodies(store)) == store.count() == 40
    store.abandon() if abandon else store.close()
    assert is_sound(tmp_path / "s")
    config = dataclasses.replace(SMALL, cleaning_slack_bytes=1 << 30)  # nothing is worth it
    with open_small(tmp_path / "s", clock, config) as store:
        assert len(bodies(store)) == store.count() == 40
        live_on(store, clock, 12)  # but that segment is finished: the copies cursor waits for it
        assert store.core.engine.world.cleaning.floor >= 4_096
        checkpoint = store.core.flusher.last
        assert checkpoint is not None and checkpoint.scan_from > 4_096
        clock.advance(600 * SECOND)
        assert sorted(drain(store)) == sorted(b"far %d" % i for i in range(40))


def open_with_cancelled(path: Path, clock: ManualClock, *, again: bool) -> TimerStore:
    """Open a store with 20 cancelled timers, before or after which it is opened again."""
    store = open_small(path, clock)
    assert store.cancel_many(put_far(store, 20)).all()
    store.core.upkeep.cleaner.stopped = True
    live_on(store, clock, 3)
    if again:
        store.abandon()
        store = open_small(path, clock)
    store.core.upkeep.cleaner.stopped = False
    store.flush()
    clean_all(store)
    return store


@pytest.mark.parametrize("again", [False, True])
def test_what_was_cancelled_is_not_copied_and_stays_cancelled(tmp_path: Path, again: bool) -> None:
    clock = ManualClock(START_MS, force=True)
    store = open_with_cancelled(tmp_path / "s", clock, again=again)
    clock.advance(20 * SECOND)
    store.flush()
    store.flush()
    assert store.core.engine.commitlog.start > 0
    left = 20 if again else 0  # deletes of an earlier life are copied, and then they are ours
    assert store.stats().cleaning.copied_count == left
    assert store.stats().cancelled_count <= left
    store.abandon()
    with open_small(tmp_path / "s", clock) as store:
        assert store.count() == 0 and bodies(store) == []
        assert store.stats().cancelled_count <= left
        clock.advance(600 * SECOND)
        assert b"far 0" not in drain(store)
        assert store.stats().cancelled_count == 0


def test_a_dropped_delete_still_stops_what_was_left_to_fire(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    store = open_with_cancelled(tmp_path / "s", clock, again=False)
    assert store.stats().cancelled_count > 0 or store.core.engine.commitlog.start > 0
    store.abandon()  # the floor may be durable, or not
    with open_small(tmp_path / "s", clock) as store:
        assert store.count() == 0 and bodies(store) == []
        clock.advance(600 * SECOND)
        assert not any(body.startswith(b"far") for body in drain(store))


def test_cancelled_timers_do_not_count_as_pending(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        ids = put_far(store, 40)
        store.flush()
        before = store.stats().cleaning.pending_bytes
        assert before is not None
        store.core.upkeep.cleaner.stopped = True
        assert store.cancel_many(ids[:20]).all()
        store.core.play_now()
        assert store.stats().cleaning.pending_bytes == pytest.approx(before / 2, rel=0.1)


def test_what_has_fired_in_a_slot_that_did_not_pass_is_not_pending(tmp_path: Path) -> None:
    """A pass that begins then reads the units, of which none says that it has fired."""
    with open_small(tmp_path / "s", ManualClock()) as store:
        store.put_many([bytes(500)] * 20)
        assert len(drain(store)) == 20
        cleaner = store.core.upkeep.cleaner
        assert cleaner.waits_bytes == 0
        cleaner.learn()
        assert cleaner.waits_bytes == 0


@pytest.mark.parametrize("at_once", [7, 1_000])
def test_what_waits_is_counted_as_units_say(tmp_path: Path, at_once: int) -> None:
    """Whatever a pass copied or dropped, however little the log's segment had room for; killed."""
    clock = ManualClock(START_MS, force=True)
    store = open_small(tmp_path / "s", clock)
    assert store.cancel_many(put_far(store, 60)[::3]).all()
    cleaner = store.core.upkeep.cleaner
    for _ in range(5):
        live_on(store, clock, 1)
        store.core.play_now()
        copied_count = copy_some(store, at_once)
        recount = Cleaner(store.core.engine, cleaner.reach)
        recount.learn()
        assert cleaner.waits_bytes == recount.waits_bytes
    assert copied_count > 100
    store.core.play_now()
    waits_bytes, topics = cleaner.waits_bytes, store.stats().topics
    store.abandon()
    with open_small(tmp_path / "s", clock) as store:
        assert store.core.engine.world.done.count and store.stats().topics == topics
        cleaner = store.core.upkeep.cleaner
        cleaner.learn()
        assert cleaner.waits_bytes == waits_bytes
        clean_all(store)
        clock.advance(700 * SECOND)
        drain(store)
        assert cleaner.waits_bytes == 0


def test_the_first_message_of_a_log_is_not_passed_over(tmp_path: Path) -> None:
    """It is all that waits in its segment, as units of an earlier life say."""
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        put_far(store, 1)
        store.core.upkeep.cleaner.stopped = True
        live_on(store, clock, 3)
    with open_small(tmp_path / "s", clock) as store:
        live_on(store, clock, 3)
        clean_all(store)
        assert store.core.engine.world.cleaning.floor > 0
        clock.advance(600 * SECOND)
        assert b"far 0" in drain(store)


def test_only_what_is_worth_it(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    config = dataclasses.replace(SMALL, cleaning_slack_bytes=100_000)
    with open_small(tmp_path / "s", clock, config) as store:
        put_far(store)
        live_on(store, clock, 3)
        assert store.stats().cleaning.copied_count == 0
        live_on(store, clock, 30)
        assert store.stats().cleaning.copied_count > 0


def test_pending_units_count_as_taken(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        put_far(store, 400)
        engine, over_bytes = store.core.engine, 0
        while (found := store.stats().cleaning).copied_count == 0:
            taken_bytes = sum(each.end - each.start for each in (engine.commitlog, engine.timerlog))
            over_bytes = taken_bytes - 2 * (found.pending_bytes or 0)
            live_on(store, clock, 1)
        assert over_bytes < 2 * 4_096  # the units alone are 20,800 bytes


@pytest.mark.whole
def test_hops_alone_begin_no_copying(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    config = dataclasses.replace(SMALL, roll_window_slots=2)
    with open_small(tmp_path / "s", clock, config) as store:
        put_far(store, 50)
        for _ in range(3):
            clock.advance(30 * SECOND)
            store.flush()
        engine = store.core.engine
        assert engine.timerlog.end > 90 * 50 * 52
        assert store.stats().cleaning.copied_count == 0


@pytest.mark.parametrize("first", ["a", "b"])
def test_the_topic_that_is_furthest_behind_counts(tmp_path: Path, first: str) -> None:
    """Whichever of two queues is asked about first."""
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        for topic in sorted("ab", reverse=first == "b"):
            store.put(b"old", topic=topic)
        clock.advance(SECOND)
        store.pull("a", group="g", timeout=0).ack()
        for _ in range(10):
            store.put_many([b"a"] * 20, topic="a")
            clock.advance(SECOND)
            store.pull("a", group="g", timeout=0, max_count=15).ack()
            store.flush()
        assert [each.body for each in store.pull("b", timeout=0)] == [b"old"]


def test_nothing_is_copied_once_it_is_stopped(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        cleaner, words = store.core.upkeep.cleaner, store.core.engine.world.cleaning
        cleaner.stopped = True
        put_far(store, 40)
        live_on(store, clock, 3)
        copied_count = copy_some(store, 3)
        cleaner.stop()
        assert not cleaner.step()
        store.flush()
        assert words.copied_count == copied_count < 40
        cleaner.resume()
        assert cleaner.step()


def test_the_copies_cursor_stays_at_the_first_copy_of_a_pass(tmp_path: Path) -> None:
    """Until the floor has moved: recovery learns from it which source has its copy."""
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        put_far(store, 40)
        store.core.upkeep.cleaner.stopped = True
        live_on(store, clock, 3)
        before = store.core.engine.commitlog.end
        copied_count = copy_some(store, 3, 4)
        store.core.upkeep.cleaner.stopped = True
        store.flush()
        copies = [each for each in read_messages(tmp_path / "s") if each.offset >= before]
        checkpoint = store.core.flusher.last
        assert checkpoint is not None and checkpoint.scan_from <= copies[0].offset
        assert len(copies) == copied_count > 4


def test_not_at_all(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    config = dataclasses.replace(SMALL, cleaning=False)
    with open_small(tmp_path / "s", clock, config) as store:
        put_far(store)
        live_on(store, clock, 4)
        assert store.stats().cleaning.copied_count == 0 and store.core.engine.commitlog.start == 0
        store.clean()  # by hand it is done all the same
        assert store.stats().cleaning.copied_count >= 5
        assert store.core.engine.commitlog.start > 20_000


def test_what_is_due_soon_is_left(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        soon = [store.put(b"soon", delay=8 * SECOND) for _ in range(5)]
        put_far(store, 5)
        store.put_many([b"x"] * 30)
        clock.advance(SECOND / 1_000)
        drain(store)
        store.core.upkeep.cleaner.leave_slots = 10
        store.flush()
        for _ in range(10):
            store.core.upkeep.cleaner.step()
        assert store.stats().cleaning.copied_count == 5
        assert store.core.engine.world.cleaning.floor == 0  # the read cursor has not passed them
        assert all(store.get(id) is not None for id in soon)
        clock.advance(15 * SECOND)
        assert drain(store) == [b"soon"] * 5
        store.flush()
        assert store.core.engine.world.cleaning.floor > 0


def test_enqueue_get_is_told_of_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may sleep for longer than the copies can wait."""
    clock, told_ms = ManualClock(START_MS, force=True), []
    with open_small(tmp_path / "s", clock) as store:
        put_far(store)
        store.core.upkeep.cleaner.stopped = True
        live_on(store, clock)
        store.core.upkeep.cleaner.stopped = False
        monkeypatch.setattr(store.core.engine, "wake_for", told_ms.append)
        soonest_ms = (
            store.core.engine.world.dequeue_get.claimed_slot + store.core.upkeep.cleaner.leave_slots
        ) * 1_000
        clean_all(store)
        assert set(told_ms) == {soonest_ms} and store.stats().cleaning.copied_count == 5


def test_passes_are_bounded(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        for _ in range(10 * PASS_COUNT_MAX):  # the floor waits for the one that is due soon
            store.put_many([b"far", b"soon"], delay_ms=[500_000, 1_000])
        store.core.play_now()
        store.flush()
        for _ in range(20 * PASS_COUNT_MAX):
            store.core.upkeep.cleaner.step()
        assert store.core.engine.world.cleaning.pass_count == PASS_COUNT_MAX
        assert not store.core.upkeep.cleaner.step()
        assert store.count() == len(bodies(store)) == 20 * PASS_COUNT_MAX


def test_a_message_that_is_damaged_is_named(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        ids = put_far(store, 30)
        at = int(ids[3][12:24], 16)
        store.core.engine.commitlog.view(at)[95] ^= 1
        clean_all(store)
        assert store.count() == 29
        assert [each["offset"] for each in store.stats().damage] == [at]
        clock.advance(600 * SECOND)
        assert len(drain(store)) == 29


@pytest.mark.whole
def test_a_pass_leaves_as_much_as_the_last_one_took(tmp_path: Path) -> None:
    """What is claimed meanwhile ends it where it stands."""
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        put_far(store, 60)
        cleaner, left = store.core.upkeep.cleaner, []
        cleaner.units_at_once = 1
        for seconds in (1, 1, 5, 0, 0):
            count = store.stats().cleaning.segment_count
            while store.stats().cleaning.segment_count == count:
                assert cleaner.step()
                if cleaner._walk is not None:
                    clock.advance(seconds * SECOND)
                    seconds = 0
            left.append(cleaner.leave_slots)
        assert left == [1, 1, 5, 0, 0]
        clean_all(store)
        assert store.count() == len(bodies(store)) == 60
        clock.advance(700 * SECOND)
        assert len(drain(store)) == 60


def test_it_needs_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(START_MS, force=True)
    with open_small(tmp_path / "s", clock) as store:
        put_far(store, 60)
        store.flush()

        def full() -> None:
            raise timerstore.StoreFullError("no room")

        with monkeypatch.context() as patch:
            patch.setattr(store.core.engine, "prepare_commitlog", full)
            with pytest.raises(timerstore.StoreFullError):
                clean_all(store)
            store.flush()
        clean_all(store)
        assert store.count() == len(bodies(store)) == 60
        clock.advance(700 * SECOND)
        assert len(drain(store)) == 60


@pytest.mark.parametrize("called", [True, False], ids=["called", "by itself"])
def test_it_ends_whatever_is_put_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: bool
) -> None:
    """It goes as far as the log went when it was called; the copies themselves come behind that."""
    clock = ManualClock(START_MS)
    with open_small(tmp_path / "s", clock) as store:
        far = put_far(store, 200)
        live_on(store, clock)
        hops = 0

        def busy(_: int) -> None:
            nonlocal hops
            hops += 1
            assert hops < 200, "it copies its own copies, without an end"
            live_on(store, clock, 1)

        monkeypatch.setattr(store.core.engine, "wake_for", busy)
        if called:
            store.clean()
        else:
            monkeypatch.setattr(store.core.upkeep.cleaner, "_is_worth_it", lambda start: True)
            store.flush()
        assert hops > 0
        assert set(far) <= {timer.id for timer in store.pending()}
