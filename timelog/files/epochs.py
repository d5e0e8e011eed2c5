"""Epochs: what is taken out of a table stays alive until nobody can be looking at it any more.

A table says where segments are mapped. A kernel that found one there goes on looking at it, without
the GIL, after another thread took it out. So the caller of such a kernel holds a `Reading`: it
holds the epoch in which it began, and an epoch holds what was taken out in it, or later. Only the
references decide: nothing has to be given back, even if a signal interrupts.

A step of a service holds no epoch. So an epoch that has ended is kept besides, from `seal` until
`release`; in between somebody waits until no step is under way that began before.
"""

from __future__ import annotations

from timerstore.timelog.files.segmenttable import SegmentTable
from timerstore.timelog.jit.acting import begin_reading, end_reading


class Epoch:
    """A span of time; it holds what was taken out in it, and through `next` what was later."""

    __slots__ = ("__weakref__", "held", "next")

    def __init__(self) -> None:
        """Nothing was taken out yet."""
        self.held: list[object] = []
        self.next: Epoch | None = None


class Epochs:
    """The epochs of one table. All calls but `reading` are made under the lock of its owner."""

    def __init__(self, table: SegmentTable) -> None:
        """Begin the first one."""
        self.table = table
        table.is_shared = 1
        self.now = Epoch()
        self._sealed: list[Epoch] = []

    def reading(self) -> Reading:
        """Return a block in which kernels may look into what they find in the table."""
        return Reading(self)

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
        self.now.next = following = Epoch()
        self.now = following


class Reading:
    """A reader of a table, for one `with` at a time, which gives the table.

    What is taken out meanwhile stays mapped until the block ends. The table may lose an entry at
    any moment: a kernel looks a segment up once, and what it does not find is to be mapped again.
    """

    __slots__ = ("_epoch", "_epochs")

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._epoch: Epoch | None = None

    def __enter__(self) -> SegmentTable:
        self._epoch = self._epochs.now
        begin_reading(self._epochs.table)
        return self._epochs.table

    def __exit__(self, *error: object) -> None:
        self._epoch = None
        end_reading(self._epochs.table)
