"""Where a new group starts: at the end of a topic, at its beginning, or at a time."""

from __future__ import annotations

from typing import Literal

from timerstore.calls.consuming.consuming import Consuming
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.timelog.bytes.decode import decode_message
from timerstore.values.arguments import check_due_ms

Start = Literal["earliest", "latest"] | int


def check_start(start: Start) -> Start:
    """Return a place to start, or refuse it."""
    if not isinstance(start, str):
        return check_due_ms(start, "start")
    if start not in ("earliest", "latest"):
        raise InvalidArgumentError(
            f'start is {start!r}. Use "earliest", "latest", or epoch milliseconds.'
        )
    return start


@inside
def begin_groups(consuming: Consuming, pairs: list[tuple[str, str]], start: Start) -> None:
    """Give each (topic, group) that never read its topic a first offset; durable on return.

    A queue that comes into being later is read from its beginning: all in it came after this.
    """
    core = consuming.core
    core.check_open()
    consuming.write_offsets()  # those that read just now are not new
    for topic, group in pairs:
        if core.offsets.is_new(topic, group):
            core.offsets.set(topic, group, 0, 0)
            for row in core.engine.queues.rows(topic.encode()):
                queue_id = int(core.engine.queues.table.queue_id[row])
                core.offsets.set(topic, group, queue_id, first_index(core, row, start))
    core.offsets.write()


def first_index(core: Core, row: int, start: Start) -> int:
    """Return the index in a queue that a new group reads first. O(log entries) for a time."""
    queues = core.engine.queues
    low, high = queues.first_kept(row, core.engine.commitlog.start), queues.next_index(row)
    if start == "earliest":
        return low
    if start == "latest":
        return high
    while low < high:
        middle = (low + high) // 2
        if _stored_ms(core, int(queues.read(row, middle, 1)[0]["offset"])) < start:
            low = middle + 1
        else:
            high = middle
    return low


def _stored_ms(core: Core, offset: int) -> int:
    """Return when a message was stored; one that cannot be read is taken for a late one."""
    try:
        view = core.engine.commitlog.view(offset)
        return decode_message(view, offset).stored_ms
    except CorruptStoreError:
        return 1 << 62
