"""Pictures of spreads: plain numbers, bars where their time begins, true words."""

import re
from collections import Counter
from typing import Any

import pytest

from tests.tiers import some
from timerstore.validation import firerate, plots
from timerstore.validation.spread import Spread
from timerstore.validation.timeaxis import DAY_MS, HOUR_MS, LAST_MS, MINUTE_MS

BEGIN_MS = 1_795_440_000_000  # 2026-11-23 13:20 UTC

pytestmark = pytest.mark.outside  # drawing is plain Python: one mode is enough


def spread(
    due: dict[int, int], *, topics: int = 1, lateness: dict[int, int] | None = None, **more: Any
) -> Spread:
    """A spread of timers, given by what is due so many ms from the beginning."""
    hours: dict[str, Counter[int]] = {f"topic{i}": Counter() for i in range(topics)}
    minutes: Counter[int] = Counter()
    for i, (after_ms, count) in enumerate(due.items()):
        hours[f"topic{i % topics}"][(BEGIN_MS + after_ms) // HOUR_MS * HOUR_MS] += count
        minutes[(BEGIN_MS + after_ms) // MINUTE_MS * MINUTE_MS] += count
    slots = sorted(((BEGIN_MS + ms, count) for ms, count in due.items()), key=lambda s: -s[1])
    late = lateness or {}
    values: dict[str, Any] = {
        "from_ms": BEGIN_MS,
        "pending_count": sum(due.values()),
        "rolled_count": 0,
        "roll_unit_count": 0,
        "topics": {name: sum(counts.values()) for name, counts in hours.items() if counts},
        "hours": {name: dict(counts) for name, counts in hours.items()},
        "minutes": dict(sorted(minutes.items())),
        "slot_count": len(due),
        "slot_max": max(due.values(), default=0),
        "slot_mean": sum(due.values()) / max(1, len(due)),
        "slot_gini": 0.5,
        "heaviest": tuple(slots[:20]),
        "fired_count": sum(late.values()),
        "lateness": late,
        "fire_rate_per_s": None,
    }
    return Spread(**values | more)


KINDS = {
    "empty": spread({}),
    "one timer": spread({5 * HOUR_MS: 1}),
    "one instant": spread({50_000: 50_000}, lateness={0: 9}),
    "an hour": spread({n * 7_000: 1 + n % 3 for n in range(500)}, topics=2, lateness={0: 1, 7: 9}),
    "a fortnight": spread({n * HOUR_MS: n for n in range(1, 336)}, topics=12, lateness={5_000: 2}),
    "90 days": spread({n * HOUR_MS: 3 for n in range(2_160)}, fire_rate_per_s=1e6),
    "five years": spread({n * DAY_MS: 2 for n in range(1_826)}, roll_unit_count=1_800),
    "a few far ahead": spread({0: 1_000, MINUTE_MS: 1_000, 1_000 * DAY_MS: 3}),
    "past due": spread({-3 * DAY_MS: 7}, lateness={0: 1, 3 * DAY_MS: 1, 400 * DAY_MS: 1}),
    "the last year": spread({LAST_MS - BEGIN_MS: 1, 10**17: 1}),
    "short slots": spread({250: 3, 300: 1}, precision_ms=50),
}


def written(axis: Any) -> list[str]:
    labels = [*axis.get_xticklabels(), *axis.get_yticklabels()]
    return [label.get_text() for label in labels] + [
        axis.xaxis.get_offset_text().get_text(),
        axis.yaxis.get_offset_text().get_text(),
    ]


@pytest.mark.parametrize("name", some(KINDS, 3))
def test_every_picture_has_plain_numbers(name: str) -> None:
    found = KINDS[name]
    assert str(found) == repr(found)
    for sentence in str(found).splitlines():
        assert re.fullmatch(r".+\.", sentence) and "nan" not in sentence
    for plot in (plots.plot_hours, plots.plot_horizon, lambda each: plots.plot_spread(each, name)):
        figure = plot(found)
        figure.draw_without_rendering()
        for axis in figure.get_axes():
            for text in written(axis):
                assert not re.search(r"10\^|×|e[+-]?\d|\$", text), text


@pytest.mark.parametrize(
    ("name", "bars", "width_ms"),
    [
        ("an hour", 59, MINUTE_MS),
        ("a fortnight", 57, 6 * HOUR_MS),
        ("90 days", 91, DAY_MS),
        ("one instant", 1, MINUTE_MS),
    ],
)
def test_bars_begin_where_their_time_does(name: str, bars: int, width_ms: int) -> None:
    found = KINDS[name]
    (axis,) = plots.plot_horizon(found).get_axes()
    begins = {round(bar.get_x()) for bar in axis.patches}
    assert len(begins) == bars
    assert {round(bar.get_width()) for bar in axis.patches} == {width_ms}
    assert all(begin % width_ms == 0 for begin in begins)
    assert sum(bar.get_height() for bar in axis.patches) == found.pending_count
    assert axis.get_ylim()[0] == 0


def test_what_lies_far_ahead_is_said() -> None:
    figure = plots.plot_horizon(KINDS["a few far ahead"])
    (axis,) = figure.get_axes()
    assert axis.get_xlim()[1] < BEGIN_MS + DAY_MS
    said = " ".join(text.get_text() for text in figure.texts) + figure.get_suptitle()
    assert "3 of them are due later than this plot shows" in " ".join(said.split())


def test_timers_without_a_slot_are_named() -> None:
    assert "wheel" not in str(KINDS["an hour"])
    found = spread({0: 5, 3_000: 4}, pending_count=1_009)
    assert "1,000 timers are not in the wheel yet, so they are not counted." in str(found)


def test_the_busiest_stand_in_the_order_of_time() -> None:
    (axis,) = plots.plot_busiest(KINDS["a fortnight"]).get_axes()
    assert [label.get_text() for label in axis.get_yticklabels()][::9] == [
        "03:20:00",
        "12:20:00",
    ]
    (axis,) = plots.plot_busiest(KINDS["short slots"]).get_axes()
    assert axis.get_yticklabels()[0].get_text() == "13:20:00.250"


def test_lateness_shows_the_share_at_once_and_marks_quantiles() -> None:
    found = spread({}, lateness={0: 900, 1: 60, 8: 39, 30: 1})
    (axis,) = plots.plot_lateness(found).get_axes()
    said = {text.get_text() for text in axis.texts}
    assert {"90 %", "6 %", "3.9 %", "0.1 %", "p50 0 ms", "p99 8 ms"} <= said
    assert axis.patches[0].get_height() == pytest.approx(90)
    assert (
        "90 % in the millisecond in which they were due, 99 % within 8 ms, the last 30 ms"
        in str(found)
    )


def test_the_rate_of_this_machine() -> None:
    assert firerate.measure_fire_rate(count=2_000) > 0
    found = spread({0: 6_000}, fire_rate_per_s=1_000.0)
    assert "100 a second: 10 % of what this machine fires." in str(found)
    assert "fires 1,000 timers a second: for the busiest second it needs 6 s." in str(found)
    assert found.next_hour["peak_share"] == pytest.approx(0.1)
