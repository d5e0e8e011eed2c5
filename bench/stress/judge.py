"""Whether what came agrees with what was put, to the last timer."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from stress.ledger import ASKED, CAME, CANCELLED, UNSURE, Ledger


@dataclass(frozen=True)
class Counts:
    """All timers of a play, sorted by what became of them."""

    put: int = 0
    """Put, as far as their putters know."""
    unsure: int = 0
    """Under way at a kill: they may have come or not."""
    cancelled: int = 0
    came: int = 0
    """Different timers that came."""
    again: int = 0
    """Timers that came more than once."""
    missing: int = 0
    """Put, not cancelled, and they never came."""
    undead: int = 0
    """Cancelled, and they came."""
    unknown: int = 0
    """Never begun, and they came."""

    def __add__(self, other: Counts) -> Counts:
        """Add each."""
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def count(ledger: Ledger) -> Counts:
    """Count all timers."""
    total = Counts()
    for first, states in ledger.parts():
        is_put = ledger.is_put(np.arange(first, first + len(states)))
        came, unsure = (states & CAME) > 0, (states & UNSURE) > 0
        cancelled, asked = (states & CANCELLED) > 0, (states & ASKED) > 0
        sure = is_put & ~unsure
        total += Counts(
            put=int(np.count_nonzero(sure)),
            unsure=int(np.count_nonzero(unsure)),
            cancelled=int(np.count_nonzero(cancelled)),
            came=int(np.count_nonzero(came)),
            again=int(np.count_nonzero((states & CAME) > 1)),
            missing=int(np.count_nonzero(sure & ~came & ~cancelled & ~asked)),
            undead=int(np.count_nonzero(came & cancelled)),
            unknown=int(np.count_nonzero(came & ~is_put)),
        )
    return total


def faults(ledger: Ledger, counts: Counts, *, killed: bool) -> list[str]:
    """Return what does not agree, in words.

    After a kill a message whose acknowledgement was lost comes again. That none was fired twice is
    seen from the queue of what fired: it has as many entries as different timers came.
    """
    found = [
        f"{value:,} timers {what}"
        for value, what in (
            (counts.missing, "were put and never came"),
            (counts.undead, "were cancelled and came"),
            (counts.unknown, "came that nobody put"),
            (ledger["early"], "fired before their time"),
            (ledger["strange"], "came with a body that nobody put"),
            (ledger["pending"], "are pending at the end"),
            (0 if killed else counts.again, "came more than once"),
        )
        if value
    ]
    if not counts.came:
        found.append("no timer came at all")
    if ledger["queue_end"] != counts.came:
        found.append(f"{ledger['queue_end']:,} fired, {counts.came:,} different timers came")
    if not killed and ledger["pulled"] != counts.came:
        found.append(f"{ledger['pulled']:,} were handed out, {counts.came:,} different timers came")
    return found
