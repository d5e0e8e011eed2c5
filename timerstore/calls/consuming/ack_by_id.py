"""Acknowledging messages by id, with their places, also those that another process holds.

A client asks for it whose owner was lost: the next one knows nothing of what the last one handed
out, and the places in the log are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from timerstore.calls.consuming.group import Group
from timerstore.core.gate import inside
from timerstore.errors import CorruptStoreError


@inside
def ack_known(
    group: Group, ids: Sequence[str], offsets: Sequence[int], *, handled: bool = True
) -> int:
    """Acknowledge messages that are not yet done; return how many. Durable with the next flush.

    What is no message of that id in a queue of the group is passed by. What an ordered consumer
    reads is left to it. O(messages).
    """
    core = group.core
    core.check_open()
    if group.owner is not None:
        return 0
    places = [_place_of(group, *each) for each in zip(ids, offsets, strict=True)]
    group.has_hidden()  # it looks which queues there are
    group.keeps_ahead = True  # others may have what is before them, until the next owner comes
    with group.lock.guard():
        found = [(group.cursors.get(row), index) for row, index in filter(None, places)]
        count = sum(cursor.settle_anywhere(index) for cursor, index in found if cursor is not None)
        if handled:
            group.ready_calls.add_handled(count)
    return count


def _place_of(group: Group, id: str, offset: int) -> tuple[int, int] | None:
    """Return row and index of the entry of a message; None if it is not that one."""
    engine = group.core.engine
    if not engine.commitlog.start <= offset < engine.commitlog.end:
        return None
    try:
        message = group.decode(offset, engine.commitlog.pin(offset, offset + 1))
    except CorruptStoreError:  # removed, or no message's begin
        return None
    if message.properties.get("UNIQ_KEY", "") != id:
        return None
    for row in engine.queues.rows(message.topic.encode("utf-8", "surrogateescape")):
        if engine.queues.table.queue_id[row] == message.queue_id:
            return row, message.queue_index
    return None
