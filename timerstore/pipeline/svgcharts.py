"""Charts as SVG that stands in a page: no library draws them, no script, no file beside it.

A chart has a title that says what is to be seen, and each mark has a text that shows when the mouse
points at it. Colours are those of `timerstore/validation/plots.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from timerstore.validation.plots import COLOURS
from timerstore.validation.timeaxis import shown, ticks
from timerstore.validation.words import duration

WIDTH: Final = 920
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 16, 12, 40
_HEAD: Final = 30
"""The space above the cells of a heat map for the names of its columns."""
_GREY: Final = "#666"
_HEAT: Final = ("#f4f7fb", "#cfe1f2", "#93c3df", "#4b97c9", "#1764ab", "#08306b")
"""From few to many."""
_GRID: Final = "#e4e4e4"
_EMPTY: Final = "#fafafa"
_LIMITS: Final = {"warn": "#b25e00", "fail": "#b3261e"}
_LATE_TICKS_MS: Final = (10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000)


class Frame(NamedTuple):
    """Where a chart's values lie on its surface."""

    x_low: float
    x_high: float
    y_high: float
    height: int
    y_low: float = 0.0

    def x(self, value: float) -> float:
        """Return the place of a value from left to right."""
        span = max(self.x_high - self.x_low, 1e-9)
        return _LEFT + (value - self.x_low) / span * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Return the place of a value from top to bottom."""
        span = max(self.y_high - self.y_low, 1e-9)
        return self.height - _BOTTOM - (value - self.y_low) / span * (self.height - _TOP - _BOTTOM)


def _svg(height: float, parts: Iterable[str], label: str) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="11" '
        f'font-family="system-ui, sans-serif" fill="{_GREY}">{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "0") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-dasharray="{dashes}"/>'
    )


def _box(x: float, y: float, width: float, height: float, colour: str, told: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" '
        f'fill="{colour}"><title>{escape(told)}</title></rect>'
    )


def round_steps(high: float, count: int = 4) -> list[float]:
    """Return a few round numbers from 0 up to a height.

    >>> round_steps(9_300)
    [0, 2500, 5000, 7500]
    """
    if high <= 0:
        return [0]
    raw = high / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= raw * 0.999)
    found: list[float] = []
    while len(found) * step <= high * 1.0001:
        found.append(len(found) * step)
    return [int(each) if float(each).is_integer() else each for each in found]


def short_number(value: float) -> str:
    """Return a number with few digits.

    >>> short_number(1_250_000), short_number(12_000), short_number(0.25)
    ('1.25 M', '12 k', '0.25')
    """
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def _axes(frame: Frame, y_ticks: Iterable[tuple[float, str]]) -> Iterator[str]:
    for value, text in y_ticks:
        y = frame.y(value)
        yield _line(_LEFT, y, WIDTH - _RIGHT, y, _GRID)
        yield _text(_LEFT - 8, y + 4, text, "end")
    places, labels = ticks(int(frame.x_low), int(frame.x_high))
    for place, label in zip(places, labels, strict=True):
        x = frame.x(place)
        yield _line(x, frame.height - _BOTTOM, x, frame.height - _BOTTOM + 4, _GREY)
        anchor = "end" if x > WIDTH - 40 else "middle"
        for i, each in enumerate(label.split("\n")):
            yield _text(x, frame.height - _BOTTOM + 18 + 14 * i, each, anchor)


def legend(names: Sequence[str], colours: Sequence[str] = COLOURS) -> str:
    """Return names with their colours."""
    marks = (
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in zip(names, colours, strict=False)
    )
    return f'<p class="legend">{"".join(marks)}</p>'


def stacked_bars(
    bars: Mapping[int, Mapping[str, int]], names: Sequence[str], step_ms: int, label: str
) -> str:
    """Return bars over time; each is what it counts by name, drawn in the order of `names`."""
    first, last = min(bars), max(bars) + step_ms
    high = max(sum(counts.values()) for counts in bars.values())
    frame = Frame(first, last, high, 260)
    parts = [*_axes(frame, ((value, short_number(value)) for value in round_steps(high)))]
    for begin_ms, counts in sorted(bars.items()):
        below = 0
        for name, colour in zip(names, COLOURS, strict=False):
            count = counts.get(name, 0)
            if count:
                x, top = frame.x(begin_ms), frame.y(below + count)
                width = frame.x(begin_ms + step_ms) - x - 0.6
                told = f"{_when(begin_ms)}: {count:,} {name}"
                parts.append(_box(x, top, width, frame.y(below) - top, colour, told))
                below += count
    return _svg(frame.height, parts, label)


def lines(
    series: Mapping[str, Sequence[tuple[int, float]]],
    label: str,
    *,
    is_lateness: bool = False,
    limits: Mapping[str, float] | None = None,
) -> str:
    """Return lines over time; lateness in ms on a logarithmic axis; `limits`: levels by name."""
    points = [point for each in series.values() for point in each]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    if first == last:
        first, last = first - 43_200_000, last + 43_200_000
    scale = _log if is_lateness else float
    limits = limits or {}
    most = (
        max(max(y for _, y in points), *limits.values(), 1e-9)
        if limits
        else max(y for _, y in points)
    )
    high = scale(max(most, 1.0 if is_lateness else 1e-9)) * 1.05
    frame = Frame(first, last, high, 220)
    if is_lateness:
        marks = [(_log(0), "0 ms"), *((_log(ms), duration(ms)) for ms in _LATE_TICKS_MS)]
        marks = [(at, text) for at, text in marks if at <= high]
    else:
        marks = [(value, short_number(value)) for value in round_steps(high)]
    parts = [*_axes(frame, marks)]
    for name, level in limits.items():
        y = frame.y(scale(level))
        parts.append(_line(_LEFT, y, WIDTH - _RIGHT, y, _LIMITS[name], "5 4"))
        parts.append(_text(WIDTH - _RIGHT, y - 4, name, "end"))
    for (name, each), colour in zip(series.items(), COLOURS, strict=False):
        places = [(frame.x(x), frame.y(scale(y)), x, y) for x, y in each]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y, when, value in places:
            shown = duration(value) if is_lateness else f"{value:,.4g}"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}">'
                f"<title>{escape(f'{_when(when)}: {name} {shown}')}</title></circle>"
            )
    return _svg(frame.height, parts, label)


def _log(ms: float) -> float:
    return math.log10(1 + ms)


def _when(ms: int) -> str:
    return shown(int(ms), "%-d %b %Y %H:%M")


def heat_map(
    columns: Sequence[Sequence[int]],
    column_names: Sequence[str],
    row_names: Sequence[str],
    told: Sequence[Sequence[str]],
    *,
    high: int,
    label: str,
) -> str:
    """Return cells that are darker the more they count, on a logarithmic scale up to `high`."""
    cell_height, gap = 11, 1
    width = (WIDTH - _LEFT - _RIGHT) / len(columns)
    parts = []
    for row, name in enumerate(row_names):
        if name:
            parts.append(_text(_LEFT - 8, _HEAD + row * cell_height + 9, name, "end"))
    for i, column in enumerate(columns):
        x = _LEFT + i * width
        if column_names[i]:
            parts.append(_text(x + width / 2, _HEAD - 8, column_names[i]))
        for row, count in enumerate(column):
            colour = _shade(count, high)
            y = _HEAD + row * cell_height
            parts.append(_box(x, y, width - gap, cell_height - gap, colour, told[i][row]))
    return _svg(_HEAD + cell_height * len(row_names), parts, label)


def _shade(count: int, high: int) -> str:
    if not count:
        return _EMPTY
    part = math.log1p(count) / max(math.log1p(high), 1e-9)
    return _HEAT[min(len(_HEAT) - 1, int(part * len(_HEAT)))]


def heat_legend(high: int) -> str:
    """Return what the shades of a heat map stand for."""
    steps = len(_HEAT)
    begins = [math.ceil(math.expm1(i / steps * math.log1p(high))) for i in range(steps)]
    names = [f"from {max(1, begin):,}" for begin in begins]
    return legend(names, _HEAT)
