"""Holds: what somebody is reading stays where it is until it was read.

An instant says where timers stand; their units and messages are read later. Meanwhile cleaning may
copy them, and the floor pass them, so that retention would remove them as done with. So who
captures an instant takes a *hold* before, and retention removes nothing that a hold keeps. A hold
ends with the last reference to it: a listing that nobody goes on with, or that a signal ended, has
nothing to give back.

What a later hold keeps begins where retention would remove up to by then, and not where the logs
begin: else listings that overlap would keep all for ever. For what an instant needs lies behind
that: no message before the durable floor is pending, and no unit before it is needed.

A hold that keeps retention from removing something *lapses* at once if the disk, or `max_bytes`, is
nearly full; and if its reader waits for its own caller, as a listing does between two timers, in
time, or when too much is kept. Then what is not there any more was perhaps copied. So whoever comes
to such a place learns of it by `pass_missing`, and captures again (`while_held`): a place that was
captured is read as it was, or not at all. `tests/models/cleaning_model.py` has the rule.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from timerstore.errors import CorruptStoreError, StoreFullError

if TYPE_CHECKING:
    from timerstore.timelog.files.segments import SegmentedFile

RESTS_S: Final = 60
"""How long a hold lasts whose reader waits for its caller; longer if capturing took long."""
CAPTURES_KEPT: Final = 10
"""It lasts so many times as long as capturing took, so that most of the time is not for that."""
KEPT_BYTES: Final = 256 << 20
"""So much may be kept for a reader that waits; of a large log a quarter."""
_TRIES: Final = 8

T = TypeVar("T")


class LapsedError(Exception):
    """A hold lapsed, and what it kept is gone: capture again. No caller of the store sees it."""


class Hold:
    """Keeps the commit log and the timer log from two offsets on, as long as it is referenced."""

    __slots__ = ("__weakref__", "_began_s", "commitlog", "is_lapsed", "rests_until_s", "timerlog")

    def __init__(self) -> None:
        """Keep everything. `Holds.take` makes it count."""
        self.commitlog = self.timerlog = 0
        self.is_lapsed = False
        self.rests_until_s: float | None = None
        self._began_s = time.monotonic()

    def rest(self) -> None:
        """Say that its reader waits for its caller from now on; the second time says nothing."""
        if self.rests_until_s is None:
            now_s = time.monotonic()
            self.rests_until_s = now_s + max(RESTS_S, CAPTURES_KEPT * (now_s - self._began_s))

    def check(self) -> None:
        """Raise LapsedError if it has lapsed: something is missing that was perhaps copied."""
        if self.is_lapsed:
            raise LapsedError

    def pass_missing(self, log: SegmentedFile, offset: int) -> None:
        """Return if a place that is missing was done with before; else raise.

        LapsedError says that the hold has lapsed, CorruptStoreError that the place is lost.
        """
        if offset >= (self.timerlog if log.name == "timerlog" else self.commitlog):
            self.check()
            raise CorruptStoreError(log.name, offset, "this segment is missing")


class Holds:
    """The holds on one engine's logs. Any thread takes one, without a lock; retention asks."""

    def __init__(self, commitlog: SegmentedFile, timerlog: SegmentedFile) -> None:
        """Hold nothing of two logs, of which retention removes nothing yet."""
        self._commitlog, self._timerlog = commitlog, timerlog
        self._limits = 0, 0
        """The offsets before which nobody needs the commit log and the timer log."""
        self._alive = WeakValueDictionary[int, Hold]()

    def take(self) -> Hold:
        """Return a hold, before anything is captured. O(1).

        It counts before the limits are read that hold for it. So either retention has heeded it,
        or it begins behind what retention is removing.
        """
        hold = Hold()
        self._alive[id(hold)] = hold
        commitlog_limit, timerlog_limit = self._limits
        hold.commitlog = max(commitlog_limit, self._commitlog.start)
        hold.timerlog = max(timerlog_limit, self._timerlog.start)
        return hold

    def heed(self, commitlog_limit: int, timerlog_limit: int, *, full: bool) -> tuple[int, int]:
        """Return up to which offsets the logs may go, if they can go up to these. O(holds).

        `full`: there is no room, so a hold that keeps anything lapses.
        """
        limits = self._limits = commitlog_limit, timerlog_limit
        commitlog, timerlog = self._commitlog, self._timerlog
        most_bytes = max(KEPT_BYTES, (commitlog.end - commitlog.start) // 4)
        now_s = time.monotonic()
        for each in self._alive.valuerefs():
            hold = each()
            if hold is None or hold.is_lapsed:
                continue
            kept_bytes = max(0, limits[0] - max(hold.commitlog, commitlog.start))
            kept_bytes += max(0, limits[1] - max(hold.timerlog, timerlog.start))
            until_s = hold.rests_until_s
            rests = until_s is not None and (now_s > until_s or kept_bytes > most_bytes)
            if kept_bytes and (full or rests):
                hold.is_lapsed = True  # before anything goes
                continue
            commitlog_limit = min(commitlog_limit, max(hold.commitlog, commitlog.start))
            timerlog_limit = min(timerlog_limit, max(hold.timerlog, timerlog.start))
        return commitlog_limit, timerlog_limit


def while_held(look: Callable[[], T]) -> T:
    """Return what a look at an instant finds; if its hold lapses, look again.

    `look` captures by itself. Raises StoreFullError if each one lapses.
    """
    for _ in range(_TRIES):
        try:
            return look()
        except LapsedError:
            continue
    raise lapsed_often()


def lapsed_often() -> StoreFullError:
    """Return the error of a listing that comes to nothing."""
    return StoreFullError(
        "The store is full, and what was to be listed had to go before it could be read. Free "
        "some space, or raise max_bytes, then try again."
    )
