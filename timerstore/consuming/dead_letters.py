"""Dead letters: putting back what a group gave up."""

from __future__ import annotations

import sys
from typing import Final

from timerstore.arguments import check_group
from timerstore.consuming.consuming import Consuming
from timerstore.consuming.sendback import send_to, wait_durable
from timerstore.kinds import check_int
from timerstore.timelog.format import DEAD_PREFIX, RETRY_PREFIX

_AT_ONCE: Final = 256
"""Dead letters that are appended together, with one fsync, before their offset is committed."""


def dead_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return DEAD_PREFIX.decode() + group


def redrive(consuming: Consuming, group: str, limit: int | None = None) -> int:
    """Put a group's dead letters back, `limit` at most; return how many.

    Each comes to the group again, to no other one, at once, with its id, as attempt 0. It is
    appended first, durably, then its offset is committed, durably too. A crash between the two
    doubles what was appended: up to 256 messages, with the same ids. Raises StoreFullError.
    """
    check_group(group)
    if limit is not None:
        check_int(limit, "limit", 0, sys.maxsize)
    core, putting, retries = consuming.core, consuming.putting, RETRY_PREFIX + group.encode()
    left, count = sys.maxsize if limit is None else limit, 0
    while left > 0:
        letters = consuming.pull(dead_topic(group), group, min(left, _AT_ONCE), 0)
        if len(letters) == 0:
            break
        revived = 0
        try:
            for i in range(len(letters)):
                send_to(putting, retries, letters.message(i), 0, wait=False)
                revived += 1
        finally:
            wait_durable(putting)
            letters._group.settle_some(letters, list(range(revived)), handled=False)
            letters._group.give_back(letters, revived)
            with core.gate:
                core.check_open()
                consuming.write_offsets()
        left -= revived
        count += revived
    return count
