"""What was found of peers, kept in a file; tables of it in a page."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

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
    """A workload, played through some peers."""

    workload: str
    synced: bool
    day: str
    """And the machine, in words."""
    load: float
    """Of the machine, the higher one of beginning and end."""
    seconds: float
    """How long a round of a rate was; 0 for others."""
    found: list[Found]

    def of(self, peer: str) -> Found | None:
        """Return what was found of a peer, or None."""
        return next((each for each in self.found if each.peer == peer), None)


def keep(path: Path, played: Played) -> None:
    """Add to a file; peers that were played anew take the place of what was there of them."""
    known = {(each.workload, each.synced): each for each in kept(path)}
    before = known.get((played.workload, played.synced))
    if before is not None:
        new = {each.peer: each for each in played.found}
        found = [new.pop(each.peer, each) for each in before.found] + list(new.values())
        load = max(before.load, played.load)
        played = Played(played.workload, played.synced, played.day, load, played.seconds, found)
    known[played.workload, played.synced] = played
    path.write_text(json.dumps([asdict(each) for each in known.values()], indent=1) + "\n")


def kept(path: Path) -> list[Played]:
    """Return what a file has, nothing if it is not there."""
    if not path.exists():
        return []
    return [
        Played(**each | {"found": [Found(**one) for one in each["found"]]})
        for each in json.loads(path.read_text())
    ]


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


def _peers(played: Sequence[Played]) -> list[str]:
    """Return who was played, in the order of their first row."""
    return list(dict.fromkeys(found.peer for each in played for found in each.found))


def _grid(title: str, played: Sequence[Played], cell: Callable[[Played, Found], str]) -> str:
    names = ["", *(_name(each) for each in played)]
    rows = []
    for peer in _peers(played):
        founds = [(each, each.of(peer)) for each in played]
        rows.append([peer, *(cell(each, found) if found else _NOTHING for each, found in founds)])
    return f"**{title}** {_said(played)}\n\n{_table(names, rows)}\n"


def _name(played: Played) -> str:
    if played.workload in LATE:
        return f"{LATE[played.workload]:,} a second"
    return _TITLES.get(played.workload, played.workload)


def _rate(_: Played, found: Found) -> str:
    return found.with_range("per_second")


def _processor(_: Played, found: Found) -> str:
    values = [each["processor_us"] for each in found.rounds]
    told = _us(statistics.median(values))
    return told if len(values) == 1 else f"{told} ({_us(min(values))}–{_us(max(values))})"


def _us(value: float) -> str:
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _ms(value: float) -> str:
    return f"{value:,.0f}"


def _late(_: Played, found: Found) -> str:
    if (share := found.median("share_put")) < _HELD_SHARE:
        return f"puts {share:.0%} of them"
    return " / ".join(_ms(found.median(name)) for name in QUANTILES)


def tables(all_played: Sequence[Played]) -> str:
    """Return all tables in Markdown, each with where and how it was measured."""
    parts = list[str]()
    for synced, words in ((False, ""), (True, ", each put on the disk on return")):
        rates = _named(all_played, RATES, synced)
        if rates:
            parts.append(_grid(f"Timers a second{words}: median (range).", rates, _rate))
            title = f"Processor time of all processes, µs for each{words}: median (range)."
            parts.append(_grid(title, rates, _processor))
        if late := _named(all_played, tuple(LATE), synced):
            seconds = sorted({each.seconds for each in late})
            title = "Late by ms, median / p99 / p99.9 / most, while puts go on for "
            title += f"{' or '.join(f'{each:g}' for each in seconds)} s{words}."
            parts.append(_grid(title, late, _late))
        if ten := _named(all_played, ("over_ten",), synced):
            parts.append(_over_ten(ten[0], words))
        if many := _named(all_played, ("pending",), synced):
            parts.append(_pending(many[0], words))
    return "\n".join(parts)


def _named(played: Sequence[Played], names: Sequence[str], synced: bool) -> list[Played]:
    known = {each.workload: each for each in played if each.synced == synced}
    return [known[name] for name in names if name in known]


def _over_ten(played: Played, words: str) -> str:
    names = ["", "timers", "processor time each, µs", "late by ms, median / p99 / p99.9 / most"]
    rows = [
        [
            found.peer,
            short(found.count),
            _us(found.median("processor_us")),
            " / ".join(_ms(found.median(name)) for name in QUANTILES),
        ]
        for found in played.found
    ]
    title = f"Due over ten seconds{words}: what a whole life takes, all processes together."
    return f"**{title}** {_said([played])}\n\n{_table(names, rows)}\n"


def _pending(played: Played, words: str) -> str:
    names = ["", "pending", "filled at", "private memory", "disk", "opened in"]
    names += ["then puts in lists", "then whole lives"]
    rows = [
        [
            found.peer,
            short(found.count),
            f"{short(found.median('per_second'))}/s",
            f"{found.median('private_bytes') / 1e6:,.0f} MB",
            f"{found.median('disk_bytes') / found.count:,.0f} bytes each",
            f"{found.median('open_s'):.2f} s",
            f"{short(found.median('batches_per_second'))}/s",
            f"{short(found.median('due_now_per_second'))}/s",
        ]
        for found in played.found
    ]
    return f"**Many pending{words}.** {_said([played])}\n\n{_table(names, rows)}\n"


def fill(page: Path, played: Sequence[Played]) -> None:
    """Put the tables between the marks of a page."""
    report.fill(page, tables(played), *MARKS)
