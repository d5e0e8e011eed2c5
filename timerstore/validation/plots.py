"""Pictures of how timers are spread, all in one style. Needs Matplotlib: the extra `plots`.

Each has a sentence above it that says what is to be seen. Bars begin at nothing, and on a time axis
where their time begins; the colours are those of Okabe and Ito, which the colour-blind tell apart.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from timerstore.validation import spread as spreads
from timerstore.validation import words
from timerstore.validation.spread import Spread
from timerstore.validation.timeaxis import (
    DAY_MS,
    HOUR_MS,
    LAST_MS,
    MINUTE_MS,
    Step,
    bucket_for,
    shown,
    ticks,
)

COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a8a")
DARK: Final = "#333333"
GREY: Final = "#555555"
STRONG: Final = "#d55e00"
HEAT: Final = "viridis_r"
DAYS_MIN: Final = 7
DAYS_MAX: Final = 60
TOPICS_MAX: Final = len(COLOURS)
NAMED_BARS_MAX: Final = 12
"""Bars that still have room for their number."""
BUSIEST_MAX: Final = 10
SHOWN_SHARE: Final = 0.98
"""Which part of the timers a time axis must show if the others lie far behind them."""
FAR: Final = 4
"""How many times as long the whole span is, if those others are left to a sentence."""
LATE_MS: Final = (0, 1, 2, 3, 6, 11, 21, 51, 101, 201, 501, 1_001)
"""Where buckets of lateness begin, up to a second."""
VERY_LATE_MS: Final = (
    *(0, 1, 10, 100, 1_000, 10_000, 60_000, 600_000),
    *(HOUR_MS, 6 * HOUR_MS, DAY_MS, 10 * DAY_MS, 100 * DAY_MS),
)
"""The same if something was later than that."""
PAD_INCHES: Final = 0.08
STYLE: Final[Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 100,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": PAD_INCHES,
    "figure.constrained_layout.w_pad": PAD_INCHES,
    "figure.facecolor": "white",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "timerstore",
}


@contextmanager
def _figure(*, height: float, width: float = 9) -> Iterator[Any]:
    """Yield a figure with one pair of axes; it is shown when it is returned, not before."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(width, height))
        yield figure, figure.subplots()
        plt.close(figure)


def plot_spread(spread: Spread, title: str) -> Any:
    """Return four pictures: what is due when, the next hour, the busiest seconds, the lateness."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(11, 8))
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        parts: Any = figure.subfigures(2, 2)
        draws = (draw_horizon, draw_next_hour, draw_busiest, draw_lateness)
        for part, draw in zip(parts.flat, draws, strict=True):
            draw(part.subplots(), spread)
        plt.close(figure)
    return figure


def plot_horizon(spread: Spread) -> Any:
    """Return how many timers fall due when, by topic."""
    with _figure(height=3.6) as (figure, axis):
        draw_horizon(axis, spread)
    return figure


def plot_hours(spread: Spread) -> Any:
    """Return which hours of which days are busy, as a map."""
    with _figure(height=4) as (figure, axis):
        draw_hours(axis, spread)
    return figure


def plot_next_hour(spread: Spread) -> Any:
    """Return what falls due in the next hour, minute by minute."""
    with _figure(height=3.4) as (figure, axis):
        draw_next_hour(axis, spread)
    return figure


def plot_busiest(spread: Spread) -> Any:
    """Return the seconds in which most falls due."""
    with _figure(height=3.6) as (figure, axis):
        draw_busiest(axis, spread)
    return figure


def plot_lateness(spread: Spread) -> Any:
    """Return how late was what was fired."""
    with _figure(height=3.6) as (figure, axis):
        draw_lateness(axis, spread)
    return figure


def plot_lines(
    x: Sequence[float],
    lines: dict[str, Sequence[float]],
    *,
    title: str,
    says: str,
    x_name: str,
    y_name: str,
) -> Any:
    """Return lines over a common axis, in the style of all others."""
    with _figure(height=3.8) as (figure, axis):
        for (name, values), colour in zip(lines.items(), COLOURS, strict=False):
            axis.plot(x, values, color=colour, marker="o", markersize=4, label=name)
        _plain_numbers(axis.xaxis)
        _plain_numbers(axis.yaxis)
        _name(axis, title, says, x_name, y_name)
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.legend()
    return figure


# --- what is drawn


def draw_horizon(axis: Any, spread: Spread) -> None:
    """Draw how many timers fall due in each bucket of time, a colour for each topic."""
    if not spread.minutes:
        _say_nothing(axis, "Timers due, over time", "No timer is pending.")
        return
    first, last, beyond = _shown_span(spread.minutes)
    step = bucket_for(first, last)
    says = spreads.pending_words(spread)
    if beyond:
        says += f" {beyond:,} of them are due later than this plot shows."
    if step.ms < HOUR_MS:  # topics are counted by the hour
        _draw_bars(axis, step, {"": _buckets(step, spread.minutes, last)})
    else:
        _draw_bars(axis, step, _by_topic(spread, step, last))
    _name(axis, f"Timers due per {step.name}", says, "", "timers")


def draw_hours(axis: Any, spread: Spread) -> None:
    """Draw how many timers fall due in each hour, a column for each day."""
    title = "Busy hours: each column is a day"
    cells: Counter[int] = Counter()
    for hours in spread.hours.values():
        cells.update({min(hour_ms, LAST_MS): count for hour_ms, count in hours.items()})
    if not cells:
        _say_nothing(axis, title, "No timer is pending.")
        return
    first = min(cells) // DAY_MS
    days = int(min(DAYS_MAX, max(DAYS_MIN, max(cells) // DAY_MS - first + 1)))
    grid = np.full((24, days), np.nan)
    for hour_ms, count in cells.items():
        if hour_ms // DAY_MS - first < days:
            grid[hour_ms % DAY_MS // HOUR_MS, hour_ms // DAY_MS - first] = count
    edges = [(first + day) * DAY_MS for day in range(days + 1)]
    norm, places = _colours_of(int(np.nanmax(grid)), float(np.nanmedian(grid)))
    image = axis.pcolormesh(edges, range(25), grid, cmap=HEAT, norm=norm, edgecolor="white", lw=0.3)
    bar = axis.figure.colorbar(image, ax=axis, label="timers in the hour", ticks=places)
    bar.ax.minorticks_off()
    bar.ax.set_yticks(places, [f"{count:,}" for count in places])
    _time_axis(axis, edges[0], edges[-1])
    axis.set_yticks(range(0, 25, 6), [f"{hour:02d}:00" for hour in range(0, 25, 6)])
    axis.set_ylim(24, 0)
    axis.grid(visible=False)
    hour_ms, count = max(cells.items(), key=lambda item: item[1])
    says = f"The darker, the more. The busiest hour is {shown(hour_ms, '%-d %b %Y %H:00')} UTC"
    says += f", with {words.counted(count, 'timer')}."
    beyond = sum(count for hour_ms, count in cells.items() if hour_ms // DAY_MS - first >= days)
    if beyond:
        says += f" {words.counted(beyond, 'timer')} fall due after these {days} days."
    _name(axis, title, says, "", "hour of the day (UTC)")


def _colours_of(most: int, median: float) -> tuple[Any, list[int]]:
    """Return how counts become colours, with some to name: by their size, or by their order."""
    from matplotlib.colors import LogNorm, Normalize

    if most <= 8 * median:
        return Normalize(0, most), [0, most] if most < 4 else [most * i // 4 for i in range(5)]
    # A campaign of 30,000 timers and a usual hour of 500 are both to be seen.
    named = (10**power * digit for power in range(19) for digit in (1, 3))
    return LogNorm(1, most), [count for count in named if count <= most]


def draw_next_hour(axis: Any, spread: Spread) -> None:
    """Draw the timers of each minute of the next hour."""
    title = "The next hour: timers due per minute"
    step, begin = Step("minute", MINUTE_MS), spread.from_ms // MINUTE_MS * MINUTE_MS
    counts = {ms: spread.minutes.get(ms, 0) for ms in step.begins(begin, begin + HOUR_MS)}
    if not any(counts.values()):
        _say_nothing(axis, title, spreads.next_hour_words(spread))
        return
    _draw_bars(axis, step, {"": counts}, at_least=0)
    _name(axis, title, spreads.next_hour_words(spread), "", "timers")


def draw_busiest(axis: Any, spread: Spread) -> None:
    """Draw the slots that hold most, in the order of their times."""
    title = f"The busiest {words.slot_name(spread.precision_ms)}s".replace("mss", "ms")
    if not spread.heaviest:
        _say_nothing(axis, title, "No timer is pending.")
        return
    if spread.slot_max == 1:
        _say_nothing(axis, title, spreads.busiest_words(spread))
        return
    busiest = sorted(spread.heaviest[:BUSIEST_MAX])
    counts, places = [count for _, count in busiest], range(len(busiest))
    first = spread.heaviest[0]
    colours = [STRONG if slot == first else COLOURS[4] for slot in busiest]
    bars = axis.barh(places, counts, color=colours, height=0.75)
    axis.bar_label(bars, [f"{count:,}" for count in counts], padding=4, fontsize=9)
    days = {ms // DAY_MS for ms, _ in busiest}
    form = "%-d %b %H:%M:%S" if len(days) > 1 else "%H:%M:%S"
    axis.set_yticks(places, [words.slot_time(ms, spread.precision_ms, form) for ms, _ in busiest])
    axis.set_ylim(max(len(busiest), 4) - 0.5, -0.5)
    axis.set_xlim(0, max(counts) * 1.15)
    _plain_numbers(axis.xaxis)
    axis.grid(visible=False, axis="y")
    what = "timers that fire or hop" if spread.roll_unit_count else "timers"
    _name(axis, title, spreads.busiest_words(spread), what, "")


def draw_lateness(axis: Any, spread: Spread) -> None:
    """Draw which part of the fired messages was how late."""
    title = "How late timers were fired"
    if not spread.fired_count:
        _say_nothing(axis, title, "No timer has fired yet.")
        return
    late = spread.lateness_quantiles
    ladder = LATE_MS if late["max"] < LATE_MS[-1] else VERY_LATE_MS
    last = max(4, int(np.searchsorted(ladder, late["max"], side="right")) - 1)
    begins = ladder[: last + 1]
    values = np.array([*spread.lateness])
    where = np.searchsorted(begins, values, side="right") - 1
    counts = np.bincount(where, [*spread.lateness.values()], len(begins))
    parts = 100 * counts / counts.sum()
    bars = axis.bar(range(len(begins)), parts, color=COLOURS[0], width=0.9)
    shown_parts = [words.share(count, counts.sum()) if count else "" for count in counts]
    axis.bar_label(
        bars, [each.replace("under ", "<") for each in shown_parts], padding=2, fontsize=8
    )
    axis.set_xticks(range(len(begins)), _late_names(ladder, len(begins)), fontsize=9)
    marks: dict[int, list[str]] = {}
    for name in ("p50", "p99"):
        place = int(np.searchsorted(begins, late[name], side="right")) - 1
        marks.setdefault(place, []).append(f"{name} {words.duration(late[name])}")
    for place, names in marks.items():
        axis.annotate(
            ", ".join(names),
            (place, parts[place] + max(parts) * 0.08),
            (place if place else -0.45, max(parts) * 1.22),
            ha="center" if place else "left",
            color=STRONG,
            arrowprops={"arrowstyle": "->", "color": STRONG},
        )
    axis.set_ylim(0, max(parts) * 1.32)
    tick = 25 if max(parts) > 50 else 10 if max(parts) > 20 else 5
    axis.set_yticks([each for each in range(0, 101, tick) if each <= max(parts) * 1.1])
    axis.set_xlim(-0.6, len(begins) - 0.4)
    axis.grid(visible=False, axis="x")
    after = "fired so long after its due time"
    after += "" if ladder is LATE_MS else ", at most"
    _name(axis, title, spreads.lateness_words(spread), after, "% of all")


def _late_names(ladder: Sequence[int], count: int) -> list[str]:
    """Return what a bucket of lateness holds: its only value, or its first and last."""
    names = []
    for i in range(count):
        begin, stop = ladder[i], ladder[i + 1] if i + 1 < len(ladder) else None
        if stop is None:
            names.append("more")
        elif stop - begin == 1:
            names.append(words.duration(begin))
        elif ladder is LATE_MS:
            names.append(f"{begin}–{stop - 1}\nms")
        else:
            names.append(words.duration(stop).replace(" ", "\n"))
    return names


# --- what several of them need


def _shown_span(minutes: dict[int, int]) -> tuple[int, int, int]:
    """Return the first and the last minute to show, and how many timers fall due behind it.

    A few that are due long after all others would press these into one bar.
    """
    times = np.minimum(np.array(sorted(minutes)), LAST_MS)
    ends = np.cumsum([minutes[ms] for ms in sorted(minutes)])
    first, last = int(times[0]), int(times[-1])
    most = int(times[np.searchsorted(ends, SHOWN_SHARE * ends[-1])])
    if last - first <= FAR * max(most - first, HOUR_MS):
        return first, last, 0
    near = times <= most + max(most - first, HOUR_MS) // 2
    return first, int(times[near][-1]), int(ends[-1] - ends[near][-1])


def _buckets(step: Step, counts: dict[int, int], last_ms: int) -> dict[int, int]:
    found: Counter[int] = Counter()
    for ms, count in counts.items():
        if min(ms, LAST_MS) <= last_ms:
            found[step.floor(min(ms, LAST_MS))] += count
    return found


def _by_topic(spread: Spread, step: Step, last_ms: int) -> dict[str, dict[int, int]]:
    """Return what falls due in each bucket, by topic, the smallest topics as one."""
    topics = [*spread.topics]
    shown_count = TOPICS_MAX if len(topics) <= TOPICS_MAX else TOPICS_MAX - 1
    found: dict[str, dict[int, int]] = {}
    for topic in topics[:shown_count]:
        name = topic if len(topic) <= 24 else topic[:23] + "…"
        found[name] = _buckets(step, spread.hours[topic], last_ms)
    if topics[shown_count:]:
        rest: Counter[int] = Counter()
        for topic in topics[shown_count:]:
            rest.update(spread.hours[topic])
        found[f"{len(topics) - shown_count} others"] = _buckets(step, rest, last_ms)
    return found


def _draw_bars(
    axis: Any, step: Step, series: dict[str, dict[int, int]], *, at_least: int = 16
) -> None:
    """Draw bars from where their buckets begin to where these end, series upon each other."""
    begins = sorted({ms for counts in series.values() for ms in counts})
    first, last = begins[0], step.after(begins[-1])
    # Few buckets get some empty ones around them: a bar as wide as the picture says nothing.
    around = max(0, at_least - len([*step.begins(first, last - 1)])) // 2
    first, last = step.after(first, -around), step.after(last, around)
    widths = [step.after(ms) - ms for ms in begins]
    base = np.zeros(len(begins))
    for (name, counts), colour in zip(series.items(), COLOURS, strict=False):
        heights = np.array([counts.get(ms, 0) for ms in begins], float)
        edge = {"edgecolor": "white", "linewidth": 0.4}
        axis.bar(begins, heights, widths, base, align="edge", color=colour, label=name, **edge)
        base += heights
    used = [(ms, width, top) for ms, width, top in zip(begins, widths, base, strict=True) if top]
    if len(used) <= NAMED_BARS_MAX // 2:
        for ms, width, top in used:
            near_edge = ms - first < (last - first) // 20
            place = (ms, top) if near_edge else (ms + width / 2, top)
            text: dict[str, Any] = {"xytext": (0, 2), "textcoords": "offset points", "fontsize": 9}
            axis.annotate(f"{top:,.0f}", place, ha="left" if near_edge else "center", **text)
    axis.set_ylim(0, base.max() * 1.12)
    _plain_numbers(axis.yaxis)
    _time_axis(axis, first, last)
    axis.grid(visible=False, axis="x")
    if len(series) > 1:
        axis.legend(
            fontsize=8, ncols=4, loc="upper left", bbox_to_anchor=(-0.02, -0.16), columnspacing=1.2
        )


def _time_axis(axis: Any, first_ms: int, last_ms: int) -> None:
    places, labels = ticks(first_ms, last_ms)
    axis.set_xticks(places, labels)
    axis.set_xlim(first_ms, last_ms)


def _plain_numbers(axis: Any, *, choose: bool = True) -> None:
    """Write whole numbers in full, at whole places."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if choose:
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _name(axis: Any, title: str, says: str, x: str, y: str) -> None:
    """Write a title, below it in words what is to be seen, and the axes' names."""
    part = axis.get_figure(root=False)
    width = part.bbox.width / part.figure.dpi  # inches
    is_panel = part.figure is not part
    lines = textwrap.wrap(says.replace(" %", "\u00a0%"), int(width * 14))
    if is_panel:  # neighbours keep their tops in line
        lines += [""] * (2 - len(lines))
    # The first line is the title's, which is larger and bold.
    text = "\n".join([" ", *lines])
    x_left = 0.12 / width
    part.suptitle(text, x=x_left, ha="left", fontsize=9.5, color=GREY, linespacing=1.3)
    y_top = 1 - PAD_INCHES / (part.bbox.height / part.figure.dpi)
    style = {"fontsize": 11, "fontweight": "bold", "color": DARK}
    part.text(x_left, y_top, title, ha="left", va="top", **style)
    axis.set_xlabel(x)
    axis.set_ylabel(y)


def _say_nothing(axis: Any, title: str, text: str) -> None:
    _name(axis, title, "", "", "")
    axis.set_axis_off()
    axis.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axis.transAxes)
