"""How far a store's copies elsewhere lag behind it, by what their followers say."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from timerstore.backups.followed import CopyStatus, read_statuses
from timerstore.core.core import Core
from timerstore.ground.amounts import shown_bytes
from timerstore.ground.moments import moment

_BEHIND_MS: Final = 60_000
"""A copy that lags so long, and thirty of its intervals, is warned of."""
_CURE: Final = (
    "Check the address, the network and the credentials, and whether `timerstore follow` runs; "
    "it then goes on by itself. If nothing should follow any more, run `timerstore follow PATH "
    "DEST --forget`."
)


@dataclass(frozen=True, slots=True)
class CopyStats:
    """A look at one copy that is followed into a destination.

    `lag_ms`: since when something waits to be in it, 0 if nothing does; `lag_bytes`: how much of
    the log. `error`: why nothing can be shipped, since `failing_since_ms`; `next_try_ms`: when it
    is tried again, None if the follower has given up. `alive_ms`: when it said this; `ended`: it
    does not follow any more. `sent_bytes`, `request_count`: since it began.
    """

    dest: str
    lag_ms: int
    lag_bytes: int
    shipped_ms: int
    shipped_end: int
    sent_bytes: int
    request_count: int
    alive_ms: int
    error: str | None
    failing_since_ms: int | None
    next_try_ms: int | None
    ended: bool

    @property
    def alive(self) -> datetime:
        """When the follower said this, in UTC."""
        return moment(self.alive_ms)

    @property
    def shipped(self) -> datetime | None:
        """All that was put before this time is in the copy, in UTC; None: nothing was shipped."""
        return moment(self.shipped_ms) if self.shipped_ms else None

    @property
    def failing_since(self) -> datetime | None:
        """Since when nothing can be shipped, in UTC."""
        return None if self.failing_since_ms is None else moment(self.failing_since_ms)

    @property
    def next_try(self) -> datetime | None:
        """When it is tried again, in UTC."""
        return None if self.next_try_ms is None else moment(self.next_try_ms)


def read_copies(core: Core) -> tuple[CopyStats, ...]:
    """Look at each copy. O(copies): a small file for each is read."""
    now_ms, end = core.clock.now_ms, core.engine.commitlog.end
    return tuple(_look(each, now_ms, end) for each in read_statuses(core.path))


def _look(status: CopyStatus, now_ms: int, end: int) -> CopyStats:
    lag_bytes = max(0, end - status.shipped_end)
    return CopyStats(
        dest=status.dest,
        lag_ms=max(0, now_ms - status.shipped_ms) if lag_bytes and status.shipped_ms else 0,
        lag_bytes=lag_bytes,
        shipped_ms=status.shipped_ms,
        shipped_end=status.shipped_end,
        sent_bytes=status.sent_bytes,
        request_count=status.request_count,
        alive_ms=status.alive_ms,
        error=status.error,
        failing_since_ms=status.failing_since_ms,
        next_try_ms=status.next_try_ms,
        ended=status.ended,
    )


def copies_behind(core: Core) -> list[tuple[CopyStats, str, str]]:
    """Return each copy that is behind for long, or fails: with a sentence, and what to do."""
    found = list[tuple[CopyStats, str, str]]()
    now_ms, end = core.clock.now_ms, core.engine.commitlog.end
    for status in read_statuses(core.path):
        copy = _look(status, now_ms, end)
        is_late = copy.lag_ms > max(_BEHIND_MS, 30 * status.every_ms)
        if copy.error is None and not is_late:
            continue
        what = f"The copy in {copy.dest} lacks {shown_bytes(copy.lag_bytes)}"
        what += f", put in the last {copy.lag_ms / 1_000:,.0f} s" if copy.lag_ms else ""
        if copy.error is not None:
            what += f"; {copy.error}"
        elif copy.ended:
            what += "; its follower has ended"
        found.append((copy, what if what.endswith(".") else f"{what}.", _CURE))
    return found
