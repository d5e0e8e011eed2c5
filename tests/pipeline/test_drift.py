"""Drift: what a run is compared with, what differs by chance alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore import pipeline
from timerstore.pipeline.loadrules import robust_score
from timerstore.pipeline.storetables import DUE_BINS, StoreTables
from timerstore.pipeline.thresholds import Thresholds
from timerstore.pipeline.timerules import references, stability_index, time_findings

DAY_MS = 86_400_000
BINS = st.lists(st.integers(0, 5_000), min_size=3, max_size=12)


def profile(*counts: int) -> list[int]:
    return [*counts, *([0] * (DUE_BINS - len(counts)))]


def row(day: int, due: list[int]) -> dict[str, Any]:
    told = dict.fromkeys(("due_profile", "late_profile", "load_profile"), due)
    return {"at_ms": day * DAY_MS + 5, "pending": sum(due), "precision_ms": 1_000, **told}


def seen(today: dict[str, Any], history: list[dict[str, Any]]) -> StoreTables:
    empty = {
        name: pipeline.TABLES[name].schema.empty_table()
        for name in ("due", "groups", "slot_load", "lateness")
    }
    return StoreTables(today, empty, history)


def drifted(today: dict[str, Any], history: list[dict[str, Any]]) -> set[str]:
    found = time_findings(seen(today, history), Thresholds())
    return {each.rule for each in found if each.verdict != "ok"}


WEEKDAY, SUNDAY = profile(900, 50, 50), profile(50, 50, 900)


def test_a_week_repeats() -> None:
    """A Sunday may be as Sundays are, though all days before were otherwise; a Tuesday may not."""
    history = [row(day, SUNDAY if day % 7 == 6 else WEEKDAY) for day in range(27)][::-1]
    assert drifted(row(27, SUNDAY), history) == set()
    assert drifted(row(27, WEEKDAY), history) == set()
    assert drifted(row(28, WEEKDAY), [row(27, SUNDAY), *history]) == set()
    wrong = drifted(row(29, SUNDAY), [row(28, WEEKDAY), row(27, SUNDAY), *history])
    assert wrong == {"drift_due", "drift_lateness", "drift_load"}


def test_references() -> None:
    history = [row(day, WEEKDAY) for day in range(40)][::-1]
    last, weekly = references(seen(row(40, WEEKDAY), history))
    assert [each["at_ms"] // DAY_MS for each in last] == [39, 38, 37, 36, 35, 34, 33]
    assert [each["at_ms"] // DAY_MS for each in weekly] == [33, 26, 19, 12]
    assert references(seen(row(0, WEEKDAY), [])) == []


def test_too_few_runs_or_timers_are_not_judged() -> None:
    assert drifted(row(5, SUNDAY), [row(4, WEEKDAY)]) == set()
    assert drifted(row(5, profile(1, 0, 20)), [row(4, WEEKDAY), row(3, WEEKDAY)]) == {
        "drift_pending"
    }
    few = [row(4, profile(20)), row(3, profile(20))]
    assert drifted(row(5, profile(1, 0, 20)), few) == set()


@given(BINS)
def test_the_same_does_not_drift(counts: list[int]) -> None:
    assert stability_index(counts, counts) == 0
    assert stability_index([10 * each for each in counts], counts) < 0.1 or sum(counts) < 1_000


@given(BINS, BINS)
def test_both_ways_it_is_the_same(a: list[int], b: list[int]) -> None:
    length = min(len(a), len(b))
    there, back = stability_index(a[:length], b[:length]), stability_index(b[:length], a[:length])
    assert there == pytest.approx(back) and there >= 0


def test_chance_is_no_drift() -> None:
    """Of a hundred pairs of samples of one distribution nearly none is told."""
    rng = np.random.default_rng(5)
    weights = rng.dirichlet(np.ones(20))
    pairs = rng.multinomial(1_000, weights, (100, 2))
    found = [stability_index(a.tolist(), b.tolist()) for a, b in pairs]
    assert sum(each > 0.1 for each in found) == 0


@pytest.mark.parametrize(
    ("load", "around", "empty", "score"),
    [
        (105, [4] * 600, 0, 50.5),
        (9, [], 600, 9.0),
        (9, [], 0, 0.0),
        (1_000, [0, 10, 20, 30, 1_000_000], 0, 980 / (1.4826 * 10)),
    ],
)
def test_robust_scores(load: int, around: list[int], empty: int, score: float) -> None:
    """A peak nearby lifts neither the median nor the deviation."""
    assert robust_score(load, np.array(around, np.int64), empty) == pytest.approx(score)
