"""The system's clock steps while a store is followed: nothing is missing, times stay exact."""

from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.copies.test_follow import Followed

pytestmark = pytest.mark.timeout(120)
HOUR_MS = 3_600_000
STEPS_MS = (0, 500, -HOUR_MS, 700, 60_000, 2 * HOUR_MS, 900, -90_000, 0, 4_000)
"""By how much the clock moves before each put."""


def lives(kept: Followed) -> list[tuple[int, int]]:
    """Put and ship while the clock steps; return (time of the point, timers by then)."""
    points = list[tuple[int, int]]()
    for step_ms in STEPS_MS:
        kept.clock.advance(timedelta(milliseconds=step_ms))
        kept.store.put_many([b"x"] * 3, topic="t", delay_ms=200 * HOUR_MS)
        kept.clock.advance(timedelta(milliseconds=100))
        kept.follower.step()
        assert kept.follower.status.error is None
        points.append((kept.follower.status.shipped_ms, kept.store.count()))
        kept.clock.advance(timedelta(milliseconds=100))
        (copy,) = kept.store.stats().copies
        assert copy.lag_ms == copy.lag_bytes == 0
    return points


def test_a_time_that_came_twice_means_the_later_one(tmp_path: Path) -> None:
    kept = Followed(tmp_path, f"file://{tmp_path}/objects")
    points = lives(kept)
    assert len({time_ms for time_ms, _ in points}) == len(points)
    for at_ms in [time_ms + after for time_ms, _ in points for after in (0, 50)]:
        if at_ms < points[0][0]:
            continue
        wanted = [count for time_ms, count in points if time_ms <= at_ms][-1]
        report = kept.restore(at_ms=at_ms)
        assert report.ok and report.pending_count == wanted, (at_ms, points)
        kept.restored.rename(tmp_path / f"at{at_ms}")
    assert kept.count_restored() == 3 * len(STEPS_MS)


@pytest.mark.parametrize("wrong_ms", [-HOUR_MS, HOUR_MS, 900 * HOUR_MS])
def test_points_are_thinned_by_a_clock_that_is_wrong(tmp_path: Path, wrong_ms: int) -> None:
    """History may go by it, but never the last point, nor what that needs."""
    kept = Followed(tmp_path, f"file://{tmp_path}/objects", keep_ms=2 * HOUR_MS)
    lives(kept)
    for step_ms in (wrong_ms, 100, -wrong_ms, 100):
        kept.clock._now_ms += step_ms  # only the follower looks at it: nothing fires
        kept.follower._cared_s -= 61
        kept.store.put(b"x", topic="t", delay_ms=2_000 * HOUR_MS)
        kept.follower.step()
        assert kept.follower.status.error is None
        assert timerstore.verify(str(kept.dest)).ok
    assert kept.count_restored() == 3 * len(STEPS_MS) + 4
