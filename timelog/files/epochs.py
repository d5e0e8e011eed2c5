"""Epochs: what is taken out of a table stays alive until nobody can be looking at it any more.

A table says where segments are mapped. A kernel that found one there goes on looking at it, without
the GIL, after another thread took it out. So the caller of such a kernel holds the epoch in which
it began, and an epoch holds what was taken out in it, or later. Only the references decide: nothing
has to be given back, even if a signal interrupts.

A step of a service holds no epoch. So an epoch that has ended is kept besides, from `seal` until
`release`; in between somebody waits until no step is under way that began before.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable

from timerstore.jit.actor import begin_reading, end_reading
from timerstore.jit.kernel import INTERPRETED
from timerstore.jit.mapping import leave_to_parent
from timerstore.timelog.files.disk import MappedFile
from timerstore.timelog.files.segmenttable import SegmentTable


class Epoch:
    """A span of time; it holds what was taken out in it, and through `next` what was later.

    A block of `with` holds it, and is given the table. What is taken out meanwhile stays mapped
    until the block ends. The table may lose an entry at any moment: a kernel looks a segment up
    once, and what it does not find is to be mapped again.
    """

    __slots__ = ("__weakref__", "held", "next", "table")

    def __init__(self, table: SegmentTable) -> None:
        self.table = table
        self.held: list[object] = []
        self.next: Epoch | None = None

    def __enter__(self) -> SegmentTable:
        if INTERPRETED:
            begin_reading(self.table)
        return self.table

    def __exit__(self, *error: object) -> None:
        if INTERPRETED:
            end_reading(self.table)


class Epochs:
    """The epochs of one table: anybody may hold `now`; its owner makes all calls under a lock."""

    def __init__(self, table: SegmentTable) -> None:
        """Begin the first one, `now`."""
        self.table = table
        table.is_shared = 1
        self.now = Epoch(table)
        self._sealed: list[Epoch] = []

    def hold(self, taken_out: object) -> None:
        """Keep what the table does not name any more."""
        self.now.held.append(taken_out)

    def seal(self) -> list[Epoch]:
        """Begin an epoch, if anything is held; return those that have ended.

        They are kept until they are given to `release`, so a call that a signal ends in between
        loses nothing.
        """
        if self.now.held:
            self._sealed.append(self.now)
            self._begin()
        return self._sealed.copy()

    def release(self, ended: list[Epoch]) -> None:
        """Let go of what these epochs hold, except what somebody still reads."""
        self._sealed = [each for each in self._sealed if each not in ended]

    def release_all(self) -> None:
        """Do the same with all there are: no service runs any more."""
        self._begin()
        self._sealed = []

    def _begin(self) -> None:
        self.now.next = following = Epoch(self.table)
        self.now = following


# --- What a forked child keeps of the files that its parent has mapped: those that it may read.


class Pinned(list[MappedFile]):
    """Files that a caller reads later; they stay mapped in a forked child as well."""

    __hash__ = object.__hash__  # type: ignore[assignment]


_pinned: weakref.WeakSet[Pinned] = weakref.WeakSet()


def pin(files: Iterable[MappedFile]) -> Pinned:
    """Return files that stay mapped while the result is referenced."""
    pinned = Pinned(files)
    _pinned.add(pinned)
    return pinned


_forgets = set[weakref.WeakMethod[Callable[[], None]]]()


def forget_in_child(forget: Callable[[], None]) -> None:
    """Have a forked child call a method, by which its object keeps no maps for later any more."""
    _forgets.add(weakref.WeakMethod(forget, _forgets.discard))


def _after_fork() -> None:
    for each in list(_forgets):
        if forget := each():
            forget()
    leave_to_parent({file.owner for pinned in _pinned for file in pinned})


os.register_at_fork(after_in_child=_after_fork)
