"""Which message is a copy of which, if a broker left no `TIMER_ORIGIN`."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from timerstore.timelog.jit.kernel import inlined, kernel_later
from timerstore.timelog.jit.record import Flags, Words
from timerstore.timelog.reading.scan import LoggedMessages

_LEVEL = -1


class BrokerCopies:
    """Matches copies without TIMER_ORIGIN to their sources, by identity and roll count.

    A rolled copy's source has one roll less; a delay level's source has none. A copy matches one
    source, one before it.
    """

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self.sources: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
        self.known: set[int] = set()  # sources whose copies say so
        self.origins: list[int] = []
        self.copies: list[int] = []

    def take(self, rows: LoggedMessages, in_timer_topic: Flags, in_level_topic: Flags) -> None:
        """Take scanned messages in the order of the log; where they stand: bool[n] each."""
        self.known.update(rows.origin[rows.origin >= 0].tolist())
        timed = rows.due_ms >= 0
        copied = ~(in_timer_topic | in_level_topic)
        relevant = np.where(in_timer_topic, timed, in_level_topic | copied)
        relevant &= rows.real_topic_bytes >= 0
        for i in np.flatnonzero(relevant).tolist():
            row, is_pending = rows[i], bool(in_timer_topic[i])
            rolls, offset = int(row.roll_times), int(row.offset)
            who = int(row.identity_high), int(row.identity_low)
            delete = int(row.is_delete)
            if row.origin < 0:
                if is_pending and rolls > 0:
                    self._match((*who, rolls - 1, delete), offset)
                elif copied[i]:
                    timer = timed[i] and self._match((*who, rolls, delete), offset)
                    timer or self._match((*who, _LEVEL, 0), offset)
            if is_pending:
                self.sources[*who, rolls, delete].append(offset)
            elif in_level_topic[i]:
                self.sources[*who, _LEVEL, 0].append(offset)

    def _match(self, who: tuple[int, int, int, int], copy: int) -> bool:
        """Note the copy of the oldest source of this kind that has none; tell if there is one."""
        waiting = self.sources.get(who, [])
        while waiting:
            source = waiting.pop(0)
            if source not in self.known:
                self.origins.append(source)
                self.copies.append(copy)
                return True
        return False

    def match(self) -> tuple[Words, Words]:
        """Return the sources that were copied, and the copies."""
        return np.array(self.origins, np.int64), np.array(self.copies, np.int64)


# Bits of a candidate's role.
ROLE_SOURCE: Final = 1  # it waits in the timer topic
ROLE_COPY: Final = 2  # a copy whose source is not known
ROLE_DELETE: Final = 4
ROLE_TAKEN: Final = 16  # a copy says that it is of this one
ROLE_LEVEL: Final = 8  # it waits in a delay level; of a copy: it has no due time, as theirs alone


@kernel_later
def match_copies(who: Words, rolls: Words, role: Words, source: Words) -> None:
    """Match copies to sources as `BrokerCopies` does, of many timers at once.

    `who`, `rolls`, `role`: int64[n], in the order of (timer, offset); `who` tells timers apart.
    `source`: int64[n], written: the index of each copy's source, or −1. O(n × a timer's messages).
    """
    begin = 0
    for i in range(len(who)):
        source[i] = -1
        if who[i] != who[begin]:
            begin = i
        if role[i] & ROLE_COPY == 0:
            continue
        if role[i] & ROLE_LEVEL == 0:
            source[i] = _find_timer(rolls, role, source, begin, i)
        if source[i] < 0 and role[i] & ROLE_SOURCE == 0:
            source[i] = _find_in_level(role, source, begin, i)


@inlined
def _find_timer(rolls: Words, role: Words, source: Words, begin: int, i: int) -> int:
    wanted = rolls[i] - (role[i] & ROLE_SOURCE)
    for j in range(begin, i):
        if role[j] & (ROLE_SOURCE | ROLE_TAKEN) != ROLE_SOURCE or rolls[j] != wanted:
            continue
        if (role[j] ^ role[i]) & ROLE_DELETE == 0 and not _is_taken(source, begin, i, j):
            return j
    return -1


@inlined
def _find_in_level(role: Words, source: Words, begin: int, i: int) -> int:
    for j in range(begin, i):
        waits = role[j] & (ROLE_LEVEL | ROLE_COPY | ROLE_TAKEN) == ROLE_LEVEL
        if waits and not _is_taken(source, begin, i, j):
            return j
    return -1


@inlined
def _is_taken(source: Words, start: int, stop: int, index: int) -> bool:
    for i in range(start, stop):
        if source[i] == index:
            return True
    return False
