"""What was found of peers, kept in a file; tables of it in a page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import report
from beside import short

from peers.workloads import LATE, QUANTILES, RATES, Figures

MARKS = ("<!-- peers: begin -->", "<!-- peers: end -->")
_NOTHING = "–"
_HELD_SHARE = 0.95
"""If fewer timers than that part were put in time, lateness says nothing."""
_TITLES = {
    "singles": "one by one",
    "batches": "in lists",
    "due_now": "whole lives",
    "bodies_16": "of 16 bytes",
    "bodies_1000": "of 1,000",
    "bodies_10000": "of 10,000",
    "same_ms": "in one ms",
    "cancel_half": "cancels",
}


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

    def with_range(self, name: str) -> str:
        """Return the median of a figure, with its range if there are rounds."""
        values = [each[name] for each in self.rounds]
        if len(values) == 1:
            return short(values[0])
        return f"{short(statistics.median(values))} ({short(min(values))}–{short(max(values))})"


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
    words = " or ".join(str(count) for count in counts if count > 1) + " rounds"
    return words + (", once if no range is shown" if 1 in counts else "")


def _said(played: Sequence[Played]) -> str:
    """Say when, where, how often, how busy the machine was."""
    days = "; ".join(sorted({each.day for each in played}))
    loads = [each.load for each in played]
    return f"{days}; {_rounds(played)}, load {min(loads):.1f} to {max(loads):.1f}."


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
    return found.with_range("per_second")


def _processor(found: Found) -> str:
    values = [each["processor_us"] for each in found.rounds]
    told = _us(statistics.median(values))
    return told if len(values) == 1 else f"{told} ({_us(min(values))}–{_us(max(values))})"


def _us(value: float) -> str:
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _late(found: Found) -> str:
    if (share := found.median("share_put")) < _HELD_SHARE:
        return f"puts {share:.0%} of them"
    return _quantiles(found)


def _quantiles(found: Found) -> str:
    return " / ".join(f"{found.median(name):,.0f}" for name in QUANTILES)


def tables(all_played: Sequence[Played], order: Sequence[str]) -> str:
    """Return all tables in Markdown, each with where and how it was measured.

    `order`: the peers, as rows follow each other.
    """
    parts = list[str]()
    for synced, words in ((False, ""), (True, ", each put on the disk on return")):
        if rates := _named(all_played, RATES, synced):
            parts.append(_grid(f"Timers a second{words}: median (range).", rates, order, _rate))
            title = f"Processor time of all processes, µs for each{words}: median (range)."
            parts.append(_grid(title, rates, order, _processor))
        if late := _named(all_played, tuple(LATE), synced):
            seconds = sorted({each.seconds for each in late})
            title = "Late by ms, median / p99 / p99.9 / most, while puts go on for "
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
    "timers": lambda found: short(found.count),
    "processor time each, µs": lambda found: _us(found.median("processor_us")),
    "late by ms, median / p99 / p99.9 / most": _quantiles,
}
_PENDING: dict[str, Callable[[Found], str]] = {
    "pending": lambda found: short(found.count),
    "filled at": lambda found: f"{short(found.median('per_second'))}/s",
    "private memory": lambda found: f"{found.median('private_bytes') / 1e6:,.0f} MB",
    "disk": lambda found: f"{found.median('disk_bytes') / found.count:,.0f} bytes each",
    "opened in": lambda found: f"{found.median('open_s'):.2f} s",
    "then puts in lists": lambda found: f"{short(found.median('batches_per_second'))}/s",
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
