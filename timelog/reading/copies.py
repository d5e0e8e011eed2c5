"""Which message is a copy of which, if a broker left no `TIMER_ORIGIN`."""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.kernel import inlined, kernel_later
from timerstore.jit.record import Flags, Words
from timerstore.timelog.reading.scan import LoggedMessages

# Bits of a candidate's role.
ROLE_SOURCE: Final = 1  # it waits in the timer topic
ROLE_COPY: Final = 2  # a copy whose source is not known
ROLE_DELETE: Final = 4
ROLE_TAKEN: Final = 16  # a copy says that it is of this one
ROLE_LEVEL: Final = 8  # it waits in a delay level; of a copy: it has no due time, as only theirs
_ROLLS_SHIFT: Final = 8
_NOTHING: Final = np.zeros(0, np.int64)


class BrokerCopies:
    """Matches copies without TIMER_ORIGIN to their sources, by identity and roll count.

    A rolled copy's source has one roll less; a delay level's source has none. A copy matches one
    source, one before it. Memory: 32 bytes for each timer and each message of a delay level.
    """

    def __init__(self) -> None:
        self._parts: list[Words] = []
        self._known: list[Words] = []  # sources whose copies say so

    def take(self, rows: LoggedMessages, in_timer_topic: Flags, in_level_topic: Flags) -> None:
        """Take scanned messages in the order of the log, with their places: bool[n] each. O(n)."""
        self._known.append(rows.origin[rows.origin >= 0])
        timed, nameless = rows.due_ms >= 0, rows.origin < 0
        copied = nameless & ~(in_timer_topic | in_level_topic)
        role = np.zeros(len(rows), np.int64)
        for chosen, bits in (
            (in_timer_topic & timed, ROLE_SOURCE),
            (in_timer_topic & timed & nameless & (rows.roll_times > 0), ROLE_COPY),
            (in_level_topic, ROLE_LEVEL),
            (copied, ROLE_COPY),
            (copied & ~timed, ROLE_LEVEL),
        ):
            role[chosen] |= bits
        relevant = (role != 0) & (rows.real_topic_bytes >= 0)
        role[rows.is_delete != 0] |= ROLE_DELETE
        kept = np.stack(
            [
                rows.identity_high[relevant],
                rows.identity_low[relevant],
                rows.offset[relevant],
                role[relevant] | rows.roll_times[relevant] << _ROLLS_SHIFT,
            ]
        )
        self._parts.append(kept)

    def match(self) -> tuple[Words, Words]:
        """Return the sources that were copied, and the copies. O(n log n), if there are copies."""
        if not any((part[-1] & ROLE_COPY).any() for part in self._parts):
            return _NOTHING, _NOTHING
        copied = np.concatenate([part[1][part[-1] & ROLE_COPY != 0] for part in self._parts])
        copied = np.unique(copied)
        parts = [part[:, _among(part[1], copied)] for part in self._parts]
        high, low, offset, word = np.concatenate(parts, axis=1)
        order = np.lexsort((offset, low, high))
        high, low, offset, word = high[order], low[order], offset[order], word[order]
        role, rolls = word & ((1 << _ROLLS_SHIFT) - 1), word >> _ROLLS_SHIFT
        role[_among(offset, np.unique(np.concatenate(self._known)))] |= ROLE_TAKEN
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        source = np.empty(len(order), np.int64)
        match_copies(np.cumsum(is_new), rolls, role, source)
        copies = np.flatnonzero(source >= 0)
        copies = copies[np.argsort(offset[copies])]
        return offset[source[copies]], offset[copies]


def _among(values: Words, some: Words) -> Flags:
    """Tell of each value whether it is one of `some`, which are in order, each once."""
    if not len(some):
        return np.zeros(len(values), np.bool_)
    found: Flags = some[np.minimum(np.searchsorted(some, values), len(some) - 1)] == values
    return found


@kernel_later
def match_copies(who: Words, rolls: Words, role: Words, source: Words) -> None:
    """Match copies to sources as `BrokerCopies` says, of many timers at once.

    `who`, `rolls`, `role`: int64[n], in the order of (timer, offset); `who` tells timers apart;
    `role` is written: what was matched is taken. `source`: int64[n], written: the index of each
    copy's source, or −1. O(n) if copies come in the order of their sources.
    """
    begin = timers = levels = 0  # before the latter two, no timer, no message of a level is free
    for i in range(len(who)):
        source[i] = -1
        if who[i] != who[begin]:
            begin = timers = levels = i
        if role[i] & ROLE_COPY == 0:
            continue
        if role[i] & ROLE_LEVEL == 0:
            while timers < i and role[timers] & (ROLE_SOURCE | ROLE_TAKEN) != ROLE_SOURCE:
                timers += 1
            source[i] = _find_timer(rolls, role, timers, i)
        if source[i] < 0 and role[i] & ROLE_SOURCE == 0:
            waiting = ROLE_LEVEL | ROLE_COPY | ROLE_TAKEN
            while levels < i and role[levels] & waiting != ROLE_LEVEL:
                levels += 1
            if levels < i:
                source[i] = levels
        if source[i] >= 0:
            role[source[i]] |= ROLE_TAKEN


@inlined
def _find_timer(rolls: Words, role: Words, begin: int, i: int) -> int:
    wanted = rolls[i] - (role[i] & ROLE_SOURCE)
    for j in range(begin, i):
        if role[j] & (ROLE_SOURCE | ROLE_TAKEN) != ROLE_SOURCE or rolls[j] != wanted:
            continue
        if (role[j] ^ role[i]) & ROLE_DELETE == 0:
            return j
    return -1
