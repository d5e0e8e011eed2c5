"""A near wheel that is full: what finds no room waits, and nothing is lost, doubled, early."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.ledger import read_ledger
from tests.naive_services import MARKS_DELETE, PLACES, PLAIN, Late, Log
from tests.rigs.waiting import wait_until
from tests.services.alone import DEQUEUE_GET, PRECISION_MS, START_MS, START_SLOT, Alone
from tests.services.test_dequeue_get import link, taken
from tests.small_store import SMALL
from tests.tiers import how_many
from tests.wheel_checks import check_near
from timerstore import ManualClock, TimerStore
from timerstore.jit.kernel import INTERPRETED
from timerstore.services.engine import engine as engine_module
from timerstore.testing.ledger import check_store
from timerstore.wheel import near
from timerstore.wheel.near import CHUNK_ENTRIES, CHUNK_WORDS, NearWheel

SLOT_MS = 1_000


@contextmanager
def chunks(count: int) -> Iterator[None]:
    """Stores that are opened meanwhile have so many chunks in their near wheel."""

    def narrow(precision_ms: int, _count_max: int, slot_count: int) -> NearWheel:
        made = near.new_near_wheel(precision_ms, 0, slot_count)
        few = np.zeros(CHUNK_WORDS * (count + 1), np.int64)  # one is never used
        arrays = [getattr(made, name) for name, kind in NearWheel.__annotations__.items()
                  if kind == "Words"]  # fmt: skip
        arrays[2] = few
        return NearWheel(*arrays)

    with patch.object(engine_module, "new_near_wheel", narrow):
        yield


def handed_on(alone: Alone) -> list[int]:
    """The numbers of what was linked, as they came to the dequeue ring."""
    return [taken(row).message & 0xFFFF for row in alone.since("dequeue", 0)]


def link_all(alone: Alone, units: list[tuple[int, int, int]]) -> None:
    """Link (slot, ms within it, magic)."""
    log = Log(alone.tag, PRECISION_MS, alone.engine.commitlog.segment_bytes)
    for i, (slot, within_ms, magic) in enumerate(units):
        link(alone, log, i, magic, (slot, within_ms), 0)


def test_a_claim_waits_while_earlier_slots_drain_and_keeps_the_order() -> None:
    with chunks(4), Alone(DEQUEUE_GET) as alone:
        link_all(alone, [(slot, 10 * i, PLAIN) for slot in range(2) for i in range(4)])
        alone.step(START_MS - 1)
        assert (alone.cursor("claimed"), alone.cursor("walked")) == (START_SLOT + 2, START_SLOT + 1)
        alone.push("late", [Late(START_SLOT, PLAIN, 100, 77, START_MS + 5)])
        alone.step(START_MS - 1)  # one bucket's chunk has room for nine more, and another has none
        assert alone.waiting("late") == 1 and alone.need == ("", 0)
        for ms in range(0, 200, 5):
            for _ in range(3):
                alone.step(START_MS + ms)
        assert sorted(handed_on(alone)) == [*range(8), 100]
        assert [each for each in handed_on(alone) if each != 100] == [*range(8)]


def test_a_slot_that_holds_more_than_there_is_room_for_fires_in_parts() -> None:
    with chunks(3), Alone(DEQUEUE_GET) as alone:
        link_all(alone, [(0, i % 7, PLAIN) for i in range(100)])
        parts = []
        for ms in [*range(8)] * 30:
            before = len(handed_on(alone))
            alone.step(START_MS + ms)
            parts.append([each % 7 for each in handed_on(alone)[before:]])
        assert sorted(handed_on(alone)) == [*range(100)]
        for part in parts:  # each in the order of due times
            assert part == sorted(part)
        check_near(alone.engine.near)


@pytest.mark.parametrize("behind", [0, 1], ids=["deletes last", "deletes first"])
def test_deletes_alone_do_not_fill_it_for_ever(behind: int) -> None:
    with chunks(3), Alone(DEQUEUE_GET) as alone:
        magics = [PLAIN, PLAIN | MARKS_DELETE]
        link_all(alone, [(0, 0, magics[(i < 50) == bool(behind)]) for i in range(100)])
        for ms in [*range(0, 300, 5)]:
            for _ in range(10):
                alone.step(START_MS + ms)
        timers = [i for i in range(100) if (i < 50) != bool(behind)]
        found = handed_on(alone)
        assert sorted(found[:50]) == timers and len({*found}) == len(found)
        # The read cursor passes the slot once what was handed on is settled: what was let go is not
        # waited for.
        assert alone.slot_column("chain")[START_SLOT % PLACES] == len(found)
        assert 0 < len(found) - 50 <= 3 * CHUNK_ENTRIES
        check_near(alone.engine.near)


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 3_000), st.integers(1, 60)),
        st.tuples(st.just("put"), st.integers(40_000, 130_000), st.integers(1, 60)),
        st.tuples(st.just("cancel"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("tick"), st.integers(0, 3_000), st.just(0)),
        st.tuples(st.just("tick"), st.just(50_000), st.just(0)),
        st.tuples(st.just("back"), st.integers(0, 2_500), st.just(0)),
        st.tuples(st.just("kill"), st.integers(0, 5_000), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=4 if INTERPRETED else how_many("FULL_NEAR", 40, 300))
@given(acts=ACTS, count=st.integers(2, 8))
@pytest.mark.timeout(600)
def test_any_history_with_little_room(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int, int]], count: int
) -> None:
    path = tmp_path_factory.mktemp("near") / "0"
    clock = ManualClock(START_MS)
    with chunks(count):
        store = TimerStore(path, config=SMALL, clock=clock)
        pending: list[str] = []
        for kind, ms, many in acts:
            if kind == "put":
                due = [clock.now_ms + ms + i * 37 % 1_300 for i in range(many)]
                pending += store.put_many([b"x"] * many, topic="t", at_ms=due)
            elif kind == "cancel":
                store.cancel_many(pending[:ms])
                del pending[:ms]
            elif kind == "tick":
                clock.advance(timedelta(milliseconds=ms))
            elif kind == "back":
                clock.advance(timedelta(milliseconds=-ms))
            else:
                following = path.with_name(str(int(path.name) + 1))
                shutil.copytree(path, following, ignore=shutil.ignore_patterns("lock"))
                store.abandon()
                path, clock = following, ManualClock(clock.now_ms + ms)
                store = TimerStore(path, config=SMALL, clock=clock)
            check_near(store.core.engine.near)
            judge(store, path)
        clock.advance(timedelta(seconds=300))
        judge(store, path)
        assert not any(root.pending for root in read_ledger(path).roots.values())
        store.close()


def judge(store: TimerStore, path: Path) -> None:
    """Nothing was fired twice, early, or after it was cancelled; the counts agree."""
    ledger = read_ledger(path)
    ledger.check()
    check_store(store, ledger)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_threads_fire_all_that_is_due_at_once(tmp_path: Path) -> None:
    count = 2_000 if INTERPRETED else 15_000
    with chunks(20), TimerStore(tmp_path / "s", config=SMALL) as store:
        due_ms = time.time_ns() // 1_000_000 + 2_500
        for _ in range(10):
            store.put_many([b"x"] * (count // 10), topic="t", at_ms=due_ms)
        wait_until(lambda: store.stats().fired_count == count)
    read_ledger(tmp_path / "s").check()


@pytest.mark.timeout(60)
def test_a_store_closes_while_it_waits_and_says_that_it_does(tmp_path: Path) -> None:
    with chunks(2):
        with TimerStore(tmp_path / "s", config=SMALL) as store:
            store.pause("firing", duration=timedelta(hours=1))
            store.put_many([b"x"] * 1_000, topic="t", delay_ms=1)
            wanted = "room in the near wheel"
            wait_until(lambda: store.stats().services[DEQUEUE_GET].waits_for == wanted)
        with TimerStore(tmp_path / "s", config=SMALL) as store:
            wait_until(lambda: store.stats().fired_count == 1_000)
