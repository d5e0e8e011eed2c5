"""Draws the plots of docs/benchmarks.md from its tables.

`--fill` of a bench does that; by itself: `.venv/bin/python bench/plots.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
_OURS = "timerstore"
_UNITS = {"k": 1e3, "M": 1e6, "": 1.0}
_DPI = 110
_COLOURS = "#00796b", "#9e9e9e"
"""Of ours, and of others; on white, because the site turns pictures over in the dark."""
_TEXTS = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
_GROUNDS = ("axes.facecolor", "figure.facecolor", "savefig.facecolor")
_SETTINGS = dict.fromkeys(_TEXTS, "#26323a") | dict.fromkeys(_GROUNDS, "#ffffff")


@contextmanager
def figure(path: Path, height: float, *titles: str) -> Iterator[Any]:
    """Yield the axes of a plot, one above the other, each with its title; then save it."""
    import matplotlib.pyplot as plt

    shape: dict[str, Any] = {"figsize": (7, height), "layout": "constrained", "squeeze": False}
    fig, axes = plt.subplots(len(titles), 1, **shape)
    for ax, title in zip(axes[:, 0], titles, strict=True):
        ax.set_title(title, loc="left", fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
    yield axes[:, 0]
    fig.savefig(path, dpi=_DPI)
    plt.close(fig)


def _colour(name: str) -> str:
    return _COLOURS[not name.startswith(_OURS)]


# --- what the page says


def cell(text: str, row: str) -> str:
    """Return what a row of the tables of targets says was measured."""
    for line in text.splitlines():
        cells = [each.strip() for each in line.split("|")]
        if len(cells) > 4 and cells[1] == row:
            return cells[3]
    raise LookupError(f"the page has no row {row!r}")


def column(text: str, title: str, name: str) -> dict[str, str]:
    """Return a column of the table below a title: a cell for each keeper of timers."""
    _, found, below = text.partition(f"**{title}")
    rows = [line.split("|")[1:-1] for line in below.splitlines() if line.startswith("|")]
    if not found or not rows:
        raise LookupError(f"the page has no table {title!r}")
    names = [each.strip() for each in rows[0]]
    if name not in names:
        raise LookupError(f"the table {title!r} has no column {name!r}")
    at = names.index(name)
    cells = dict[str, str]()
    for row in rows[2:]:
        if len(row) != len(names) or row[0].strip() in cells:
            break  # another table
        cells[row[0].strip()] = row[at].strip()
    return cells


def number(text: str) -> float:
    """Read a number such as `1.01 M`, `12 k`, `3,400`."""
    found = re.match(r"([\d.,]+) ?([kM]?)", text)
    if found is None:
        raise ValueError(text)
    return float(found[1].replace(",", "")) * _UNITS[found[2]]


# --- the plots


def bars(ax: Any, values: dict[str, float]) -> None:
    """Draw a bar for each name, the first one on top, each with its number, on a scale of tens."""
    names = list(values)[::-1]
    drawn = ax.barh(names, [values[name] for name in names], color=[*map(_colour, names)])
    ax.bar_label(drawn, labels=[_short(values[name]) for name in names], padding=4)
    low, most = math.floor(math.log10(min(values.values()))), max(values.values())
    steps = [10**step for step in range(low, math.ceil(math.log10(most)) + 1)]
    ax.set(xscale="log", xlim=(steps[0] / 2, most * 8))
    ax.set_xticks(steps, [f"{step:,}" for step in steps])
    ax.minorticks_off()


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _peers(text: str, table: str, name: str) -> dict[str, float]:
    cells = column(text, table, name)
    return {peer: number(each) for peer, each in cells.items() if each[0].isdigit()}


def draw_rates(text: str, folder: Path) -> None:
    """Draw timers a second through each keeper of timers: put alone, then a whole life."""
    titles = "put in lists, timers a second, on a scale of tens", "whole lives, timers a second"
    with figure(folder / "bench-rates.png", 6.4, *titles) as axes:
        for ax, name in zip(axes, ("in lists", "whole lives"), strict=True):
            values = _peers(text, "Timers a second: median", name)
            bars(ax, dict(sorted(values.items(), key=lambda each: -each[1])))


def draw_lateness(text: str, folder: Path) -> None:
    """Draw how late a job's handler began, the median and 99 of 100, on a scale of tens."""
    said = cell(text, "lateness in the handler, median / p99, 250 jobs a second")
    found = re.findall(r"(timerstore|huey|APScheduler) ([\d.]+) / ([\d.]+) ms", said)
    order = sorted(found, key=lambda each: -float(each[1]))
    title = "lateness in the handler, median to p99, 250 jobs a second"
    with figure(folder / "bench-lateness.png", 2.4, title) as (ax,):
        for y, (who, median, p99) in enumerate(order):
            ends = [float(median), float(p99)]
            ax.plot(ends, [y, y], color=_colour(who), linewidth=7, solid_capstyle="round")
            place = {"xytext": (10, 0), "textcoords": "offset points", "va": "center"}
            ax.annotate(f"{_short(ends[0])} / {_short(ends[1])} ms", (ends[1], y), **place)
        ax.set_yticks(range(len(order)), [who for who, _, _ in order])
        ax.set(xscale="log", xlim=(0.1, 40_000), ylim=(-0.6, len(order) - 0.4))
        ticks = {0.1: "0.1 ms", 1: "1 ms", 10: "10 ms", 100: "100 ms", 1_000: "1 s"}
        ax.set_xticks(list(ticks), list(ticks.values()))
        ax.minorticks_off()


PLOTS = (draw_rates, draw_lateness)


def draw(page: Path, folder: Path) -> None:
    """Draw all plots of a page into a folder; what the page does not have is named."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        print("No plot is drawn: pip install '.[plots]'")
        return
    mpl.use("Agg")
    text = page.read_text()
    with mpl.rc_context(_SETTINGS):  # type: ignore[arg-type]
        for plot in PLOTS:
            try:
                plot(text, folder)
            except LookupError as e:
                print(f"{plot.__name__}: {e}")


if __name__ == "__main__":
    draw(PAGE, PAGE.parent / "img")
