"""Drift: what a run is compared with, what differs by chance alone."""

import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import how_many
from timerstore import pipeline
from timerstore.audit import ask
from timerstore.audit.rule import Finding, of_rows
from timerstore.pipeline.judging import DUE_BINS, Looked, RunOptions, open_engine
from timerstore.pipeline.tablefiles import TableFiles
from timerstore.pipeline.thresholds import Thresholds

pytestmark = pytest.mark.slow
DAY_MS = 86_400_000
BINS = st.lists(st.integers(0, 5_000), min_size=3, max_size=12)
DRIFT = [rule for rule in pipeline.DISTRIBUTION_RULES if rule.name.startswith("drift")]


def profile(*counts: int) -> list[int]:
    return [*counts, *([0] * (DUE_BINS - len(counts)))]


def row(day: int, due: list[int]) -> dict[str, Any]:
    told = dict.fromkeys(("due_profile", "late_profile", "load_profile"), due)
    return {"at_ms": day * DAY_MS + 5, "pending": sum(due)} | told


def asked(
    stores: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]],
    spark: Any = None,
    baseline: dict[str, Any] | None = None,
) -> dict[tuple[str, str], Finding]:
    """What the rules about drift say of stores with these rows: today's, earlier ones."""
    looked = [Looked(name, today, history, baseline) for name, (today, history) in stores.items()]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        options = RunOptions(TableFiles(folder, "one", "2027-01-04"), Thresholds(), 0)
        with open_engine(looked, options, spark) as engine:
            for rule in DRIFT:
                rows = ask(engine, rule, rule.limits)
                for name in stores:
                    found[name, rule.name] = of_rows(rule, rule.limits, rows.get(name, []))
    return found


def drifted(today: dict[str, Any], history: list[dict[str, Any]]) -> set[str]:
    found = asked({"store": (today, history)})
    return {rule for (_, rule), each in found.items() if each.verdict != "ok"}


WEEKDAY, SUNDAY = profile(900, 50, 50), profile(50, 50, 900)


def test_a_week_repeats() -> None:
    """A Sunday may be as Sundays are, though all days before were otherwise; a Tuesday may not."""
    history = [row(day, SUNDAY if day % 7 == 6 else WEEKDAY) for day in range(27)][::-1]
    assert drifted(row(27, SUNDAY), history) == set()
    assert drifted(row(27, WEEKDAY), history) == set()
    assert drifted(row(28, WEEKDAY), [row(27, SUNDAY), *history]) == set()
    wrong = drifted(row(29, SUNDAY), [row(28, WEEKDAY), row(27, SUNDAY), *history])
    assert wrong == {"drift_due", "drift_lateness", "drift_load"}


def test_a_run_is_compared_with_seven_and_with_four_of_its_weekday() -> None:
    near = [row(day, WEEKDAY) for day in range(33, 40)][::-1]
    found = asked({"store": (row(40, WEEKDAY), [*near, row(32, SUNDAY)])})
    assert "7 earlier runs" in found["store", "drift_due"].says
    weekly = [row(day, SUNDAY if day in (12, 19, 26, 33) else WEEKDAY) for day in range(5, 40)]
    found = asked({"store": (row(40, SUNDAY), weekly[::-1])})
    assert "4 earlier runs" in found["store", "drift_due"].says


def test_too_few_runs_or_timers_are_not_judged() -> None:
    assert drifted(row(5, SUNDAY), [row(4, WEEKDAY)]) == set()
    assert drifted(row(5, profile(1, 0, 20)), [row(4, WEEKDAY), row(3, WEEKDAY)]) == {
        "drift_pending"
    }
    few = [row(4, profile(20)), row(3, profile(20))]
    assert drifted(row(5, profile(1, 0, 20)), few) == set()


def test_growth_by_a_twentieth_a_day_is_told() -> None:
    """No day differs much from the one before it."""
    history = [row(day, profile(int(1_000 * 1.05**day))) for day in range(35)][::-1]
    assert drifted(row(35, profile(int(1_000 * 1.05**35))), history) == {"drift_trend"}
    steady = [row(day, profile(1_000 + 90 * (day % 7 == 3))) for day in range(35)][::-1]
    assert drifted(row(35, profile(1_000)), steady) == set()


def stability_index(now: list[int], before: list[int]) -> float:
    """As `drift.sql` works it out, step by step."""
    pairs = [(a, b) for a, b in zip(now, before, strict=True) if a or b]
    all_a, all_b = sum(a for a, _ in pairs), sum(b for _, b in pairs)
    if not all_a or not all_b:
        return 0.0
    found = -(len(pairs) - 1) * (1 / all_a + 1 / all_b)
    for a, b in pairs:
        p, q = (a + 0.5) / (all_a + len(pairs) / 2), (b + 0.5) / (all_b + len(pairs) / 2)
        found += (p - q) * float(np.log(p / q))
    return max(0.0, found)


@settings(max_examples=how_many("DRIFTS", 6, 60))
@given(st.lists(st.tuples(BINS, BINS), min_size=1, max_size=20))
def test_the_index_is_worked_out(pairs: list[tuple[list[int], list[int]]]) -> None:
    stores, expected = {}, {}
    for number, (a, b) in enumerate(pairs):
        history = [row(4, profile(*b)), row(3, profile(*b))]
        stores[str(number)] = row(5, profile(*a)), history
        is_judged = sum(a) >= 1_000
        twice = [2 * each for each in profile(*b)]
        expected[str(number)] = stability_index(profile(*a), twice) if is_judged else 0.0
    found = asked(stores)
    values = {name: found[name, "drift_due"].value for name in stores}
    assert values == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_chance_is_no_drift() -> None:
    """Of a hundred pairs of samples of one distribution none is told."""
    rng = np.random.default_rng(5)
    weights = rng.dirichlet(np.ones(20))
    stores = {}
    for number in range(100):
        a, b, c = (profile(*map(int, rng.multinomial(1_000, weights))) for _ in range(3))
        stores[str(number)] = row(5, a), [row(4, b), row(3, c)]
    found = asked(stores)
    assert all(found[name, "drift_due"].value < 0.1 for name in stores)
