"""Tables of what was found of peers, from the file in which it is kept."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import results
from results import Records, short

from peers.workloads import Figures

KIND = "peers"
_NOTHING = "–"
_RATES = {
    "singles": "one by one",
    "batches": "in lists",
    "due_now": "whole lives",
    "cancel_half": "cancels",
}
"""The rates that a page shows; a file keeps those of all workloads."""


@dataclass(frozen=True)
class Found:
    """The rounds of one peer in one workload, without the one that warms, as they are kept."""

    day: str
    load: float
    """Of the machine, the higher one of beginning and end."""
    seconds: float
    """How long a round of a rate was; 0 for others."""
    count: int
    """Timers of a round; of some workloads the rate says it."""
    rounds: list[Figures]

    def median(self, name: str) -> float:
        return statistics.median(each[name] for each in self.rounds)

    def short(self, name: str) -> str:
        """Return the same in words."""
        return short(self.median(name))


def name_of(workload: str, synced: bool, peer: str) -> str:
    return f"{workload}{', synced' if synced else ''}/{peer}"


def _us(found: Found) -> str:
    value = found.median("processor_us")
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _quantiles(found: Found) -> str:
    return " / ".join(f"{found.median(name):,.0f}" for name in ("p50", "p99", "max"))


Column = tuple[str, str, Callable[[Found], str]]
"""A workload, its name, what a peer has there."""
_SPEED: list[Column] = [(*each, lambda f: f.short("per_second")) for each in _RATES.items()]
_TIME: list[Column] = [(*each, _us) for each in _RATES.items()]
_TEN: list[Column] = [
    ("over_ten", "processor time each, µs", _us),
    ("over_ten", "late by ms, median / p99 / most", _quantiles),
]
_LATE: list[Column] = [
    ("late_1k", "1,000 a second", _quantiles),
    ("late_50k", "50,000 a second", _quantiles),
]
_PENDING: list[Column] = [
    ("pending", "pending", lambda f: short(f.count)),
    ("pending", "filled at", lambda f: f"{f.short('per_second')}/s"),
    ("pending", "private memory", lambda f: f"{f.median('private_bytes') / 1e6:,.0f} MB"),
    ("pending", "disk", lambda f: f"{f.median('disk_bytes') / f.count:,.0f} bytes each"),
    ("pending", "opened in", lambda f: f"{f.median('open_s'):.2f} s"),
    ("pending", "then whole lives", lambda f: f"{f.short('due_now_per_second')}/s"),
]
_TABLES: list[tuple[str, bool, list[Column]]] = [
    ("Timers a second: median.", False, _SPEED),
    ("Processor time of all processes, µs for each: median.", False, _TIME),
    ("Due over ten seconds: what a whole life takes, all processes together.", False, _TEN),
    ("Late by ms while others are put: median / p99 / most.", False, _LATE),
    ("Many pending.", False, _PENDING),
    ("Timers a second, each put on the disk on return: median.", True, _SPEED),
]
"""Each with its title; `synced`."""


def tables(records: Records, order: Sequence[str]) -> str:
    """Return all tables in Markdown, with where and how they were measured.

    `order`: the peers, as rows follow each other.
    """
    parts = [results.days(records.values()) + ".\n"]
    for title, synced, columns in _TABLES:
        found = {
            (peer, workload): Found(**records[name])
            for workload, _, _ in columns
            for peer in order
            if (name := name_of(workload, synced, peer)) in records
        }
        if not found:
            continue
        there = [each for each in columns if each[0] in {workload for _, workload in found}]
        rows = [
            [
                peer,
                *(cell(found[peer, w]) if (peer, w) in found else _NOTHING for w, _, cell in there),
            ]
            for peer in order
            if peer in {peer for peer, _ in found}
        ]
        counts = sorted({len(each.rounds) for each in found.values()})
        said = "Once" if counts == [1] else " or ".join(map(str, counts)) + " rounds"
        said += f", {results.loads(vars(each) for each in found.values())}."
        table = results.markdown(["", *(name for _, name, _ in there)], rows)
        parts.append(f"**{title}** {said}\n\n{table}")
    return "\n".join(parts)
