"""Draws the plots of docs/benchmarks.md from its tables; run it behind `./run bench --fill`."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.parent / "benchmarks.md"
OURS, THEIRS = "#00796b", ("#9e9e9e", "#bdbdbd")
UNITS = {"k": 1e3, "M": 1e6, "": 1.0}


def cell(row: str) -> str:
    """Return what a row of the page's tables says was measured."""
    for line in PAGE.read_text().splitlines():
        cells = [each.strip() for each in line.split("|")]
        if len(cells) > 5 and cells[1] == row:
            return cells[4]
    raise LookupError(f"docs/benchmarks.md has no row {row!r}")


def rates(row: str) -> dict[str, float]:
    """Read `1.01 M/s with …, SQLite 78.9 k/s …, LMDB 486 k/s …`: timers a second of each."""
    found = re.findall(r"(SQLite |LMDB |: )([\d.]+) ([kM])/s", cell(row))
    names = {"SQLite ": "SQLite", "LMDB ": "LMDB", ": ": "timerstore"}
    return {names[who]: float(number) * UNITS[unit] for who, number, unit in found}


def bars(ax: mpl.axes.Axes, values: dict[str, float], form: str) -> None:
    """Draw a bar for each name, ours on top, each with its number."""
    names = list(values)[::-1]
    colours = [OURS if name.startswith("timerstore") else THEIRS[0] for name in names]
    drawn = ax.barh(names, [values[name] for name in names], color=colours)
    ax.bar_label(drawn, labels=[form.format(values[name]) for name in names], padding=4)
    ax.set_xlim(0, max(values.values()) * 1.25)
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    ax.set_xticks([])


def draw_rates() -> None:
    """Draw timers a second: put alone, then a whole life."""
    fig, axes = plt.subplots(2, 1, figsize=(7, 3.4), layout="constrained")
    rows = {
        "put from a list, timers a second": "`put_many` from a list of bytes",
        "whole life, timers a second": "whole life, pulled by columns",
    }
    for ax, (title, row) in zip(axes, rows.items(), strict=True):
        found = rates(row)
        bars(ax, {name: found[name] for name in ("timerstore", "LMDB", "SQLite")}, "{:,.0f}")
        ax.set_title(title, loc="left", fontsize=10)
    fig.savefig(FOLDER / "bench-rates.png", dpi=110)


def draw_lateness() -> None:
    """Draw how late a job's handler began, the median and 99 of 100, on a scale of tens."""
    said = cell("lateness in the handler, median / p99, 250 jobs a second")
    found = re.findall(r"(Ours|Huey|ApScheduler) ([\d.]+) / ([\d.]+) ms", said)
    names = {"Ours": "timerstore", "Huey": "huey", "ApScheduler": "APScheduler"}
    fig, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
    order = sorted(found, key=lambda each: -float(each[1]))
    for y, (who, median, p99) in enumerate(order):
        colour = OURS if who == "Ours" else THEIRS[0]
        ax.plot(
            [float(median), float(p99)], [y, y], color=colour, linewidth=6, solid_capstyle="round"
        )
        ax.annotate(f"{median} / {p99} ms", (float(p99), y), xytext=(10, 0), va="center",
                    textcoords="offset points")  # fmt: skip
    ax.set_yticks(range(len(order)), [names[who] for who, _, _ in order])
    ax.set(xscale="log", xlim=(0.1, 20_000), ylim=(-0.6, len(order) - 0.4))
    ax.set_title(
        "lateness in the handler, median to p99, 250 jobs a second", loc="left", fontsize=10
    )
    ax.set_xticks([0.1, 1, 10, 100, 1000], ["0.1 ms", "1 ms", "10 ms", "100 ms", "1 s"])
    ax.spines[["top", "right"]].set_visible(False)
    fig.savefig(FOLDER / "bench-lateness.png", dpi=110)


def draw_calls() -> None:
    """Draw microseconds a call beside SQLite."""
    rows = {
        "put": "`put(at_ms=)`",
        **{name: f"`{name}`" for name in ("get", "cancel", "reschedule")},
    }
    fig, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
    values = {}
    for name, row in rows.items():
        ours, theirs = re.search(r"([\d.]+) µs, SQLite ([\d.]+)", cell(row)).groups()  # type: ignore[union-attr]
        values |= {f"timerstore {name}": float(ours), f"SQLite {name}": float(theirs)}
    bars(ax, values, "{:.1f} µs")
    ax.set_title("microseconds a call", loc="left", fontsize=10)
    fig.savefig(FOLDER / "bench-calls.png", dpi=110)


def main() -> None:
    mpl.use("Agg")
    draw_rates()
    draw_lateness()
    draw_calls()


if __name__ == "__main__":
    main()
