"""Whether what came agrees with what was put, to the last timer."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from stress.ledger import CAME, CANCELLED, UNSURE, Ledger

_BLAMED = {
    "lost": "were put and never came",
    "undead": "were cancelled and came",
    "early": "fired before their time",
    "strange": "came with a body that nobody put",
    "again": "came more than once",
}


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
    unknown: int = 0
    """Never begun, and they came."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def count(ledger: Ledger) -> Counts:
    total = Counts()
    for first, states in ledger.parts():
        is_put = ledger.is_put(np.arange(first, first + len(states)))
        came, unsure = (states & CAME) > 0, (states & UNSURE) > 0
        total += Counts(
            put=int(np.count_nonzero(is_put & ~unsure)),
            unsure=int(np.count_nonzero(unsure)),
            cancelled=int(np.count_nonzero(states & CANCELLED)),
            came=int(np.count_nonzero(came)),
            unknown=int(np.count_nonzero(came & ~is_put)),
        )
    return total


def blamed(ledger: Ledger, *, killed: bool) -> list[str]:
    """Return what is known to be wrong at any time of a play, in words.

    After a kill a message whose acknowledgement was lost comes again.
    """
    return [
        f"{ledger[name]:,} timers {what}, the first of them number {ledger.first(name)}"
        for name, what in _BLAMED.items()
        if ledger[name] and not (killed and name == "again")
    ]


def faults(ledger: Ledger, counts: Counts, *, killed: bool) -> list[str]:
    """Return what does not agree at the end, in words.

    After a kill, that none was fired twice is seen from the queue of what fired: it has as many
    entries as different timers came.
    """
    ledger["lost"] = 0
    ledger.audit(ledger.put)  # all of them once more
    found = blamed(ledger, killed=killed)
    if counts.unknown:
        found.append(f"{counts.unknown:,} timers came that nobody put")
    if ledger["pending"]:
        found.append(f"{ledger['pending']:,} timers are pending at the end")
    if not counts.came:
        found.append("no timer came at all")
    if ledger["queue_end"] != counts.came:
        found.append(f"{ledger['queue_end']:,} fired, {counts.came:,} different timers came")
    if not killed and ledger["pulled"] != counts.came:
        found.append(f"{ledger['pulled']:,} were handed out, {counts.came:,} different timers came")
    return found
