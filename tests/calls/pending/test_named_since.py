"""A verdict that the log has overtaken is not acted on: the timer is looked for anew."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.small_store import SMALL
from timerstore import ManualClock, TimerStore, TooLateError
from timerstore.calls.pending import cancel as cancelling
from timerstore.calls.pending.cancel import reschedule
from timerstore.calls.pending.is_pending import Verdict
from timerstore.calls.pending.timers import UNCHANGED

START_MS = 1_800_000_000_000
MINUTE = timedelta(minutes=1)


def fire(store: TimerStore, clock: ManualClock, ids: list[str]) -> None:
    clock.advance(MINUTE)


def cancel_one(store: TimerStore, clock: ManualClock, ids: list[str]) -> None:
    store.core.engine.uncounted.clear()  # the short way
    assert store.cancel(ids[1])


def put_others(store: TimerStore, clock: ManualClock, ids: list[str]) -> None:
    """Over several segments, and more than is read under the lock."""
    store.put_many([b"other" * 20] * 1_000, topic="other", delay=MINUTE)


def nothing(store: TimerStore, clock: ManualClock, ids: list[str]) -> None:
    pass


Meanwhile = Callable[[TimerStore, ManualClock, list[str]], None]


def looked_for(
    store: TimerStore,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    meanwhile: Meanwhile,
) -> tuple[list[str], list[int]]:
    """Have timers looked for, and something happen behind the first look; return the looks."""
    ids = [store.put(b"%d" % i, topic="t", delay=timedelta(seconds=i + 1)) for i in range(4)]
    store.core.engine.uncounted.add(-1)  # so any message may be a damaged copy
    looks, judge = list[int](), module.judge

    def judged(*arguments: Any) -> Verdict:
        found: Verdict = judge(*arguments)
        looks.append(len(found.pending))
        if len(looks) == 1:
            meanwhile(store, clock, ids)
        return found

    monkeypatch.setattr(module, "judge", judged)
    return ids, looks


@pytest.mark.parametrize(
    ("meanwhile", "done", "looks"),
    [
        (nothing, [True] * 4, [4]),
        (put_others, [True] * 4, [4]),
        (cancel_one, [True] * 4, [4, 1]),
        (fire, [False] * 4, [4, 4]),
    ],
)
def test_many_are_cancelled(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Meanwhile,
    done: list[bool],
    looks: list[int],
) -> None:
    clock = ManualClock(START_MS)
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock) as store:
        ids, looked = looked_for(store, clock, monkeypatch, cancelling, meanwhile)
        assert store.cancel_many(ids[::-1])[::-1].tolist() == done
        assert looked == looks
        clock.advance(MINUTE)
        fired = [each.body for each in store.pull("t", timeout=0, max_count=9)]
        assert fired == [b"%d" % i for i in range(4) if not done[i]]
        assert store.count() == 0


@pytest.mark.parametrize("meanwhile", [nothing, put_others, cancel_one, fire])
def test_one_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile
) -> None:
    clock = ManualClock(START_MS)
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock) as store:
        ids, looked = looked_for(store, clock, monkeypatch, cancelling, meanwhile)
        if meanwhile in (cancel_one, fire):
            with pytest.raises(TooLateError):
                find_and_move(store, ids[1])
            assert looked == [1, 1]
        else:
            find_and_move(store, ids[1])
            assert looked == [1]
        clock.advance(MINUTE)
        fired = [each.body for each in store.pull("t", timeout=0, max_count=9)]
        left = 3 if meanwhile is cancel_one else 4
        assert len(fired) == len(set(fired)) == left
        assert store.count("t") == 0


def find_and_move(store: TimerStore, id: str) -> None:
    """Move a timer the long way."""
    now_ms = store.core.clock.now_ms
    reschedule(store.core, id, now_ms + 20_000, now_ms, UNCHANGED)
