"""The charts of a report, drawn by Matplotlib: the extra `plots`.

Each function returns a figure as wide as a telephone, so that its text can be read there; on a
wider page two stand side by side.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from timerstore.jit.record import Words
from timerstore.values.amounts import HOUR_MS, LAST_MS, moment, rough_span, short_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES: Final = (5.0, 2.7)
_LEGEND_LETTERS: Final = 54
"""So many of usual width have room in a line of a legend, with seven for the mark of each name."""
_LIMITS: Final = {"warn": "#b25e00", "fail": "#b3261e"}
_LATE_TICKS_MS: Final = (0, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000)
_STYLE: Final = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.grid.axis": "y",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "grid.color": "#e4e4e4",
    "svg.fonttype": "none",
    "svg.hashsalt": "timerstore",
}


def import_matplotlib() -> Any:
    """Return the module. Raises ImportError."""
    try:
        import matplotlib as mpl
    except ImportError as e:
        raise ImportError(
            "A report needs Matplotlib. Install the extra: pip install 'timerstore[plots]'"
        ) from e
    return mpl


def _axes() -> tuple[Figure, Any]:
    mpl = import_matplotlib()
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(_INCHES, layout="constrained")
        return figure, figure.subplots()


def image(figure: Figure, label: str) -> str:
    """Return a figure as an element of a page, which holds it as SVG."""
    with io.BytesIO() as svg, import_matplotlib().rc_context(_STYLE):
        figure.savefig(svg, format="svg", metadata={"Date": None})
        data = base64.b64encode(svg.getvalue()).decode()
    return f'<img alt="{escape(label)}" src="data:image/svg+xml;base64,{data}">'


def due_bars(due: Mapping[int, Mapping[str, int]], topics: Sequence[str], step_ms: int) -> Figure:
    """Draw how many timers of each topic fall due in the steps of time that begin then."""
    figure, axes = _axes()
    begins = sorted(due)
    below = np.zeros(len(begins), np.int64)
    for topic in topics:
        counts = np.array([due[ms].get(topic, 0) for ms in begins])
        width = np.timedelta64(step_ms, "ms")
        axes.bar(_times(begins), counts, width, below, align="edge", label=_short(topic))
        below += counts
    _count_axis(axes)
    _time_axis(axes, begins[0], begins[-1] + step_ms)
    return _with_legend(figure)


def lines(
    series: Mapping[str, Sequence[tuple[int, float]]],
    *,
    is_lateness: bool = False,
    limits: Mapping[str, float] | None = None,
) -> Figure:
    """Draw lines over time; lateness in ms on a logarithmic axis; `limits`: levels by name."""
    figure, axes = _axes()
    for name, points in series.items():
        when, values = zip(*points, strict=True)
        axes.plot(_times(when), values, marker="o", markersize=3, label=name)
    for name, level in (limits or {}).items():
        axes.axhline(level, color=_LIMITS[name], linestyle="--", linewidth=1, label=name)
    _count_axis(axes)
    if is_lateness:
        axes.set_yscale("symlog", linthresh=10)
        axes.set_yticks(_LATE_TICKS_MS, [rough_span(ms) for ms in _LATE_TICKS_MS], minor=False)
        axes.minorticks_off()
        most = max(value for points in series.values() for _, value in points)
        axes.set_ylim(0, max(10, 1.5 * most))
    else:
        axes.set_ylim(bottom=0)
    when_ms = [ms for points in series.values() for ms, _ in points]
    _time_axis(axes, min(when_ms), max(when_ms))
    return _with_legend(figure)


def wheel(cells: Words, begin_ms: int, cell_ms: int) -> Figure:
    """Draw how many units wait in each cell of both turns: int64[columns, rows]; a column a day."""
    from matplotlib.colors import LogNorm

    figure, axes = _axes()
    axes.grid(visible=False)
    columns, rows = cells.shape
    shown = axes.imshow(
        np.ma.masked_equal(cells.T, 0),
        norm=LogNorm(1, max(2, int(cells.max()))),
        cmap="Blues",
        aspect="auto",
        interpolation="nearest",
    )
    axes.axvline(columns / 2 - 0.5, color="#999", linewidth=1)  # where the second turn begins
    form = "%-d %b" if rows * cell_ms >= 86_400_000 else "%H:%M"
    at = range(0, columns, 3)
    axes.set_xticks(at, [f"{moment(begin_ms + i * rows * cell_ms):{form}}" for i in at])
    at = range(0, rows, 6)
    axes.set_yticks(at, [f"+{rough_span(i * cell_ms)}" for i in at])
    figure.colorbar(shown, format=lambda count, _: short_count(count))
    return figure


def _times(values_ms: Sequence[int]) -> Any:
    return np.minimum(np.array(values_ms, np.int64), LAST_MS).astype("datetime64[ms]")


def _count_axis(axes: Any) -> None:
    axes.yaxis.set_major_formatter(
        lambda value, _: short_count(value) if value >= 10 else f"{value:.3g}"
    )


def _time_axis(axes: Any, first_ms: int, last_ms: int) -> None:
    """Mark a few round times of a span; Matplotlib knows none beyond the year 9999."""
    from matplotlib import dates

    made: Any = dates  # its classes have no types
    if first_ms == last_ms:
        first_ms, last_ms = first_ms - HOUR_MS, last_ms + HOUR_MS
    axes.set_xlim(*_times([first_ms, min(last_ms, LAST_MS)]))
    locator = made.AutoDateLocator(minticks=3, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(made.ConciseDateFormatter(locator))


def _short(name: str) -> str:
    """Return as much of a name as a legend has room for."""
    most = _LEGEND_LETTERS - 7
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _with_legend(figure: Figure) -> Figure:
    _, names = figure.axes[0].get_legend_handles_labels()
    if len(names) > 1:
        columns = _LEGEND_LETTERS // (max(map(len, names)) + 7)
        figure.legend(loc="outside upper left", ncols=min(columns, 3), frameon=False)
    return figure
