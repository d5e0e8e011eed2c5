"""What was found of peers, kept in a file; tables of it in a page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import report
from beside import short

from peers.workloads import LATE, Figures

_SHOWN_QUANTILES = ("p50", "p99", "max")
MARKS = ("<!-- peers: begin -->", "<!-- peers: end -->")
_NOTHING = "–"
_HELD_SHARE = 0.95
"""If fewer timers than that part were put in time, lateness says nothing."""
_TITLES = {
    "singles": "one by one",
    "batches": "in lists",
    "due_now": "whole lives",
    "cancel_half": "cancels",
}
"""The rates that a page shows; a file keeps those of all workloads."""


@dataclass(frozen=True)
class Found:
    """The rounds of one peer in one workload, without the one that warms."""

    peer: str
    count: int
    """Timers of a round; of some workloads the rate says it."""
    rounds: list[Figures]

    def median(self, name: str) -> float:
        """Return the median of a figure."""
        return statistics.median(each[name] for each in self.rounds)


@dataclass(frozen=True)
class Played:
    """A workload, played through some peers in one run."""

    workload: str
    synced: bool
    day: str
    """And the machine, in words."""
    load: float
    """Of the machine, the higher one of beginning and end."""
    seconds: float
    """How long a round of a rate was; 0 for others."""
    found: list[Found]


def keep(path: Path, played: Played, *, cut: bool = False) -> None:
    """Add to a file; peers that were played anew take the place of what was there of them.

    Of a run that was `cut`, only those do that have as many rounds as what was there.
    """
    known, found = list[Played](), played.found
    for each in kept(path):
        if (each.workload, each.synced) == (played.workload, played.synced):
            if cut:
                count = {one.peer: len(one.rounds) for one in each.found}
                found = [one for one in found if len(one.rounds) >= count.get(one.peer, 0)]
            new = {one.peer for one in found}
            each = replace(each, found=[one for one in each.found if one.peer not in new])
        known.append(each)
    known = [each for each in (*known, replace(played, found=found)) if each.found]
    report.write_json(path, [asdict(each) for each in known])


def kept(path: Path) -> list[Played]:
    """Return what a file has, nothing if it is not there."""

    def played(document: Any) -> list[Played]:
        return [
            Played(**each | {"found": [Found(**one) for one in each["found"]]}) for each in document
        ]

    return report.read_json(path, played, [])


# --- tables


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _rounds(played: Sequence[Played]) -> str:
    counts = sorted({len(found.rounds) for each in played for found in each.found})
    if counts == [1]:
        return "once"
    return " or ".join(map(str, counts)) + " rounds"


def _said(played: Sequence[Played]) -> str:
    """Say how often it was played, and how busy the machine was."""
    loads = [each.load for each in played]
    return f"{_rounds(played).capitalize()}, load {min(loads):.1f} to {max(loads):.1f}."


def _grid(
    title: str,
    played: Sequence[Played],
    order: Sequence[str],
    cell: Callable[[Found], str],
) -> str:
    """Return a table: a column for each workload, a row for each peer, in the order given."""
    found = {(one.peer, each.workload): one for each in played for one in each.found}
    workloads = list(dict.fromkeys(each.workload for each in played))
    rows = list[list[str]]()
    for peer in order:
        founds = [found.get((peer, workload)) for workload in workloads]
        if any(founds):
            rows.append([peer, *(cell(one) if one else _NOTHING for one in founds)])
    table = _table(["", *map(_name, workloads)], rows)
    return f"**{title}** {_said(played)}\n\n{table}\n"


def _name(workload: str) -> str:
    if workload in LATE:
        return f"{LATE[workload]:,} a second"
    return _TITLES.get(workload, workload)


def _rate(found: Found) -> str:
    return short(found.median("per_second"))


def _processor(found: Found) -> str:
    return _us(found.median("processor_us"))


def _us(value: float) -> str:
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _late(found: Found) -> str:
    if (share := found.median("share_put")) < _HELD_SHARE:
        return f"puts {share:.0%} of them"
    return _quantiles(found)


def _quantiles(found: Found) -> str:
    return " / ".join(f"{found.median(name):,.0f}" for name in _SHOWN_QUANTILES)


def tables(all_played: Sequence[Played], order: Sequence[str]) -> str:
    """Return all tables in Markdown, with where and how they were measured.

    `order`: the peers, as rows follow each other.
    """
    parts = ["; ".join(sorted({each.day for each in all_played})) + ".\n"]
    for synced, words in ((False, ""), (True, ", each put on the disk on return")):
        if rates := _named(all_played, tuple(_TITLES), synced):
            parts.append(_grid(f"Timers a second{words}: median.", rates, order, _rate))
            if not synced:  # that is the disk's time, not the processor's
                title = "Processor time of all processes, µs for each: median."
                parts.append(_grid(title, rates, order, _processor))
        if late := _named(all_played, tuple(LATE), synced):
            seconds = sorted({each.seconds for each in late})
            title = "Late by ms, median / p99 / most, while puts go on for "
            title += f"{' or '.join(f'{each:g}' for each in seconds)} s{words}."
            parts.append(_grid(title, late, order, _late))
        if ten := _named(all_played, ("over_ten",), synced):
            title = f"Due over ten seconds{words}: what a whole life takes, all processes together."
            parts.append(_each(title, ten, order, _TEN))
        if many := _named(all_played, ("pending",), synced):
            parts.append(_each(f"Many pending{words}.", many, order, _PENDING))
    return "\n".join(parts)


def _named(played: Sequence[Played], names: Sequence[str], synced: bool) -> list[Played]:
    """Return the runs of some workloads, in the order of these."""
    known = [each for each in played if each.synced == synced and each.workload in names]
    return sorted(known, key=lambda each: names.index(each.workload))


_TEN: dict[str, Callable[[Found], str]] = {
    "processor time each, µs": lambda found: _us(found.median("processor_us")),
    "late by ms, median / p99 / most": _quantiles,
}
_PENDING: dict[str, Callable[[Found], str]] = {
    "pending": lambda found: short(found.count),
    "filled at": lambda found: f"{short(found.median('per_second'))}/s",
    "private memory": lambda found: f"{found.median('private_bytes') / 1e6:,.0f} MB",
    "disk": lambda found: f"{found.median('disk_bytes') / found.count:,.0f} bytes each",
    "opened in": lambda found: f"{found.median('open_s'):.2f} s",
    "then whole lives": lambda found: f"{short(found.median('due_now_per_second'))}/s",
}


def _each(
    title: str,
    played: Sequence[Played],
    order: Sequence[str],
    cells: dict[str, Callable[[Found], str]],
) -> str:
    """Return a table of one workload, a row for each peer, in the order given."""
    found = {one.peer: one for each in played for one in each.found}
    rows = [
        [peer, *(cell(found[peer]) for cell in cells.values())] for peer in order if peer in found
    ]
    return f"**{title}** {_said(played)}\n\n{_table(['', *cells], rows)}\n"


def fill(page: Path, played: Sequence[Played], order: Sequence[str]) -> None:
    """Put the tables between the marks of a page."""
    report.fill(page, tables(played, order), *MARKS)
