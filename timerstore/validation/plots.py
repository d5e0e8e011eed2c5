"""Pictures of how timers are spread, all in one style. Needs Matplotlib: the extra `plots`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from timerstore.validation.spread import HOUR_MS, MINUTE_MS, Spread

DAY_MS: Final = 24 * HOUR_MS
COLOURS: Final = ("#2f6f8f", "#d98c3f", "#5a9367", "#a65461", "#7a6ba8", "#8a8a8a")
BAD: Final = "#b3261e"
HEAT: Final = "YlGnBu"
DAYS_MAX: Final = 60
TOPICS_MAX: Final = 8
STYLE: Final[Any] = {
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "timerstore",
}


@contextmanager
def _figure(rows: int = 1, columns: int = 1, *, size: tuple[float, float]) -> Iterator[Any]:
    """Yield a figure with its axes as an array; it is shown where it is returned, not before."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
        yield figure, axes
        plt.close(figure)


def plot_spread(spread: Spread, verdict: str) -> Any:
    """Return four pictures: the horizon, the load of the next hour, the slots, the lateness."""
    with _figure(2, 2, size=(10, 6.5)) as (figure, axes):
        figure.suptitle(f"{verdict}: {spread.pending_count:,} timers pending")
        draw_horizon(axes[0, 0], spread)
        draw_next_hour(axes[0, 1], spread)
        draw_slots(axes[1, 0], spread)
        draw_lateness(axes[1, 1], spread)
    return figure


def plot_horizon(spread: Spread) -> Any:
    """Return the heat map of due times: hour × day."""
    with _figure(size=(8, 4)) as (figure, axes):
        draw_horizon(axes[0, 0], spread)
    return figure


def plot_next_hour(spread: Spread) -> Any:
    """Return the firing load of the next hour, minute by minute."""
    with _figure(size=(8, 3)) as (figure, axes):
        draw_next_hour(axes[0, 0], spread)
    return figure


def plot_slots(spread: Spread) -> Any:
    """Return the heaviest slots."""
    with _figure(size=(8, 3)) as (figure, axes):
        draw_slots(axes[0, 0], spread)
    return figure


def plot_topics(spread: Spread) -> Any:
    """Return the pending timers of each topic, day by day."""
    with _figure(size=(8, 3)) as (figure, axes):
        draw_topics(axes[0, 0], spread)
    return figure


def plot_lateness(spread: Spread) -> Any:
    """Return the distribution of lateness."""
    with _figure(size=(8, 3)) as (figure, axes):
        draw_lateness(axes[0, 0], spread)
    return figure


def plot_lines(
    x: Sequence[float], lines: dict[str, Sequence[float]], *, title: str, x_name: str, y_name: str
) -> Any:
    """Return lines over a common axis, in the style of all others."""
    with _figure(size=(8, 3)) as (figure, axes):
        axis = axes[0, 0]
        for (name, values), colour in zip(lines.items(), COLOURS, strict=False):
            axis.plot(x, values, color=colour, label=name)
        _name(axis, title, x_name, y_name)
        axis.legend()
    return figure


# --- what is drawn


def draw_horizon(axis: Any, spread: Spread) -> None:
    """Draw how many timers fall due in each hour, a column for each day."""
    cells: dict[int, int] = {}
    for hours in spread.hours.values():
        for hour_ms, count in hours.items():
            cells[hour_ms] = cells.get(hour_ms, 0) + count
    _name(axis, "Timers due, by hour and day", "day (UTC)", "hour (UTC)")
    if not cells:
        _say_nothing(axis, "nothing is pending")
        return
    first = min(cells) // DAY_MS
    days = int(min(DAYS_MAX, max(cells) // DAY_MS - first + 1))
    grid = np.zeros((24, days))
    beyond = 0
    for hour_ms, count in cells.items():
        day = hour_ms // DAY_MS - first
        if day < days:
            grid[hour_ms % DAY_MS // HOUR_MS, day] += count
        else:
            beyond += count
    from matplotlib.colors import LogNorm

    # A campaign of 30,000 timers and a usual hour of 500 are both to be seen.
    norm = LogNorm(vmin=1, vmax=max(2, int(grid.max())))
    image = axis.imshow(
        np.where(grid > 0, grid, np.nan), aspect="auto", origin="lower", cmap=HEAT, norm=norm
    )
    axis.figure.colorbar(image, ax=axis, label="timers")
    step = max(1, days // 7)
    ticks = list(range(0, days, step))
    axis.set_xticks(ticks, [_day((first + day) * DAY_MS) for day in ticks])
    axis.set_yticks(range(0, 24, 6), [f"{hour:02d}:00" for hour in range(0, 24, 6)])
    axis.grid(visible=False)
    if beyond:
        axis.set_xlabel(f"day (UTC); {beyond:,} timers lie further ahead")


def draw_next_hour(axis: Any, spread: Spread) -> None:
    """Draw the timers of each minute of the next hour, with what the machine fires beside it."""
    begin = spread.from_ms // MINUTE_MS
    counts = [spread.minutes.get((begin + minute) * MINUTE_MS, 0) for minute in range(61)]
    axis.bar(range(61), [count / 60 for count in counts], width=1, color=COLOURS[0])
    share = spread.next_hour["peak_share"]
    title = f"Load of the next hour: its peak is {share:.2%} of {spread.fire_rate_per_s:,.0f}/s"
    _name(axis, title, f"minutes from {_minute(spread.from_ms)} UTC", "timers a second")
    axis.set_xlim(-0.5, 60.5)
    if not any(counts):
        _say_nothing(axis, "nothing is due in the next hour")


def draw_slots(axis: Any, spread: Spread) -> None:
    """Draw the heaviest slots beside the mean."""
    title = f"Heaviest slots: up to {spread.skew:,.1f} × the mean, Gini {spread.slot_gini:.2f}"
    _name(axis, title, "slots, the heaviest first", "units in the slot")
    if not spread.heaviest:
        _say_nothing(axis, "no slot ahead holds a timer")
        return
    counts = [count for _, count in spread.heaviest]
    axis.bar(range(len(counts)), counts, color=COLOURS[1])
    axis.axhline(spread.slot_mean, color=COLOURS[5], linestyle="--", label="mean of all used slots")
    axis.set_yscale("log")
    named = range(0, len(counts), 4)
    axis.set_xticks(named, [_second(spread.heaviest[i][0]) for i in named])
    axis.legend()


def draw_topics(axis: Any, spread: Spread) -> None:
    """Draw the timers of each day, a colour for each topic."""
    _name(axis, "Timers due, by day and topic", "day (UTC)", "timers")
    days = sorted(spread.days)[:DAYS_MAX]
    if not days:
        _say_nothing(axis, "nothing is pending")
        return
    shown = [*spread.topics][: TOPICS_MAX if len(spread.topics) <= TOPICS_MAX else TOPICS_MAX - 1]
    rest = [topic for topic in spread.topics if topic not in shown]
    bottom = np.zeros(len(days))
    names = [(name, [name]) for name in shown] + ([("others", rest)] if rest else [])
    for i, (name, topics) in enumerate(names):
        heights = np.array([_of_day(spread, topics, day) for day in days], float)
        colour = COLOURS[i % len(COLOURS)]
        label = name if len(name) <= 24 else name[:23] + "…"
        axis.bar(range(len(days)), heights, bottom=bottom, color=colour, label=label)
        bottom += heights
    step = max(1, len(days) // 7)
    axis.set_xticks(range(0, len(days), step), [_day(day) for day in days[::step]])
    axis.legend()


def _of_day(spread: Spread, topics: Sequence[str], day_ms: int) -> int:
    return sum(
        count
        for topic in topics
        for hour_ms, count in spread.hours[topic].items()
        if hour_ms // DAY_MS * DAY_MS == day_ms
    )


def draw_lateness(axis: Any, spread: Spread) -> None:
    """Draw which share of the fired messages was later than so much."""
    _name(axis, f"Lateness of {spread.fired_count:,} fired", "later than, ms", "share of messages")
    if not spread.lateness:
        _say_nothing(axis, "nothing was fired")
        return
    values = np.array(sorted(spread.lateness))
    counts = np.array([spread.lateness[value] for value in values.tolist()])
    later = 1 - np.cumsum(counts) / counts.sum()
    floor = 0.5 / counts.sum()
    axis.step(values + 1, np.maximum(later, floor), where="post", color=COLOURS[2])
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(left=1)
    axis.set_ylim(floor, 1.5)
    late = spread.lateness_quantiles
    axis.set_title(
        f"Lateness of {spread.fired_count:,} fired: p50 {late['p50']} ms, p99 {late['p99']:,} ms"
    )


def _name(axis: Any, title: str, x: str, y: str) -> None:
    axis.set_title(title)
    axis.set_xlabel(x)
    axis.set_ylabel(y)


def _say_nothing(axis: Any, text: str) -> None:
    axis.text(0.5, 0.5, text, ha="center", va="center", transform=axis.transAxes)


def _day(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%d %b}"


def _minute(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%d %b %H:%M}"


def _second(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%d %b\n%H:%M:%S}"
