"""Dead letters: putting back what a group gave up."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from timerstore.arguments import check_group
from timerstore.consuming.sendback import send_to, wait_durable
from timerstore.kinds import check_int
from timerstore.timelog.format import DEAD_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from timerstore.store import TimerStore

_AT_ONCE: Final = 256
"""Dead letters that are appended together, with one fsync, before their offset is committed."""


def dead_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return DEAD_PREFIX.decode() + group


def redrive(store: TimerStore, group: str, limit: int | None = None) -> int:
    """Put a group's dead letters back, `limit` at most; return how many.

    Each comes to the group again, to no other one, at once, with its id, as attempt 0. It is
    appended first, durably, then its offset is committed, durably too. A crash between the two
    doubles what was appended: up to 256 messages, with the same ids. Raises StoreFullError.
    """
    check_group(group)
    if limit is not None:
        check_int(limit, "limit", 0, sys.maxsize)
    retries = RETRY_PREFIX + group.encode()
    left, count = sys.maxsize if limit is None else limit, 0
    while left > 0:
        letters = store.pull(
            dead_topic(group), group=group, max_count=min(left, _AT_ONCE), timeout=0
        )
        if len(letters) == 0:
            break
        revived = 0
        try:
            for i in range(len(letters)):
                send_to(store, retries, letters.message(i), 0, wait=False)
                revived += 1
        finally:
            wait_durable(store)
            letters._group.settle_some(letters, list(range(revived)))
            letters._group.give_back(letters, revived)
            with store.gate:
                store.check_open()
                store.write_offsets()
        left -= revived
        count += revived
    return count
