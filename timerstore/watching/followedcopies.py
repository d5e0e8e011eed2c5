"""How far a store's copies elsewhere lag behind it, by what their followers say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from timerstore.copies.follow_status import CopyStatus, read_statuses
from timerstore.core.core import Core
from timerstore.values.amounts import shown_bytes

_BEHIND_MS: Final = 60_000
"""A copy that lags so long, and thirty of its intervals, is warned of."""
_CURE: Final = (
    "Check the address, the network and the credentials, and whether `timerstore follow` runs; "
    "it then goes on by itself. If nothing should follow any more, run `timerstore follow PATH "
    "DEST --forget`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStats(CopyStatus):
    """A look at one copy that is followed into a destination."""

    lag_ms: int
    """For how long something has waited to be in it; 0 if nothing does."""
    lag_bytes: int
    """How much of the log is not in it."""


def read_copies(core: Core) -> tuple[CopyStats, ...]:
    """Look at each copy. O(copies): a small file for each is read."""
    now_ms, end = core.clock.now_ms, core.engine.commitlog.end
    return tuple(_look(each, now_ms, end) for each in read_statuses(core.path, core.disk.at))


def _look(status: CopyStatus, now_ms: int, end: int) -> CopyStats:
    lag_bytes = max(0, end - status.shipped_end)
    lag_ms = max(0, now_ms - status.shipped_ms) if lag_bytes and status.shipped_ms else 0
    return CopyStats(**status.to_dict(), lag_ms=lag_ms, lag_bytes=lag_bytes)


def copies_behind(core: Core) -> list[tuple[CopyStats, str, str]]:
    """Return each copy that is behind for long, or fails: with a sentence, and what to do."""
    found = list[tuple[CopyStats, str, str]]()
    now_ms, end = core.clock.now_ms, core.engine.commitlog.end
    for status in read_statuses(core.path, core.disk.at):
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
