"""What plays have found, kept in a file; a table of them in a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import report
from beside import short

from stress import watch
from stress.judge import Counts
from stress.watch import Sample

MARKS = ("<!-- stress: begin -->", "<!-- stress: end -->")
_NAMES = (
    *("scenario", "minutes", "put", "fired", "kills", "private memory, MB"),
    *("disk, MB at most", "load", "found"),
)


@dataclass(frozen=True)
class Played:
    """One play, as it is kept."""

    scenario: str
    day: str
    """And the machine, in words."""
    seconds: float
    put: int
    cancelled: int
    fired: int
    kills: int
    private_bytes: tuple[float, float]
    """The medians of the second quarter of the play, or of its longest life; and of its last."""
    descriptors: tuple[float, float]
    disk_bytes: int
    load: float
    """Of the machine when it ended, over the last five minutes."""
    faults: list[str]


def of(
    scenario: str,
    day: str,
    seconds: float,
    counts: Counts,
    lives: int,
    samples: Sequence[Sample],
    load: float,
    faults: list[str],
) -> Played:
    """Return what is kept of a play."""
    judged = watch.judged(list(samples))
    return Played(
        scenario,
        day,
        seconds,
        counts.put + counts.unsure,
        counts.cancelled,
        counts.came,
        lives - 1,
        watch.early_and_late(judged, "private_bytes"),
        watch.early_and_late(judged, "descriptors"),
        max((each.disk_bytes for each in samples), default=0),
        load,
        faults,
    )


def keep(path: Path, play: Played) -> None:
    """Add a play to a file; it takes the place of an older one of its scenario."""
    plays = {each.scenario: each for each in kept(path)} | {play.scenario: play}
    report.write_json(path, [asdict(each) for each in plays.values()])


def kept(path: Path) -> list[Played]:
    """Return the plays of a file, none if it is not there."""
    return report.read_json(
        path, lambda document: [Played(**_tuples(each)) for each in document], []
    )


def _tuples(document: dict[str, Any]) -> dict[str, Any]:
    return document | {name: tuple(document[name]) for name in ("private_bytes", "descriptors")}


def table(plays: Sequence[Played]) -> str:
    """Return a Markdown table, a row for each play."""
    days = sorted({play.day for play in plays})
    lines = ["; ".join(days) + ".", "", f"| {' | '.join(_NAMES)} |", "|---" * len(_NAMES) + "|"]
    lines += [f"| {' | '.join(_cells(play))} |" for play in plays]
    return "\n".join(lines) + "\n"


def _cells(play: Played) -> list[str]:
    memory = " → ".join(f"{value / 1e6:.0f}" for value in play.private_bytes)
    return [
        f"`{play.scenario}`",
        f"{play.seconds / 60:.1f}",
        short(play.put),
        short(play.fired),
        str(play.kills),
        memory,
        f"{play.disk_bytes / 1e6:,.0f}",
        f"{play.load:.1f}",
        "; ".join(play.faults) or "all agree",
    ]


def fill(page: Path, plays: Sequence[Played]) -> None:
    """Put the table between the marks of a page."""
    report.fill(page, table(plays), *MARKS)
