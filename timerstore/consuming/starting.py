"""Where a new group starts: at the end of a topic, at its beginning, or at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from timerstore.arguments import check_due_ms
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.inside import inside
from timerstore.timelog.decode import decode_message

if TYPE_CHECKING:
    from timerstore.store import TimerStore

Start = Literal["earliest", "latest"] | int


def check_start(start: Start) -> None:
    """Refuse what is no place to start."""
    if isinstance(start, str):
        if start not in ("earliest", "latest"):
            raise InvalidArgumentError(
                f'start is {start!r}. Use "earliest", "latest", or epoch milliseconds.'
            )
    else:
        check_due_ms(start, "start")


@inside
def begin_groups(store: TimerStore, pairs: list[tuple[str, str]], start: Start) -> None:
    """Give each (topic, group) that never read its topic a first offset; durable on return.

    A queue that comes into being later is read from its beginning: all in it came after this.
    """
    store.check_open()
    store.write_offsets()  # those that read just now are not new
    for topic, group in pairs:
        if store.offsets.is_new(topic, group):
            store.offsets.set(topic, group, 0, 0)
            for row in store.engine.queues.rows(topic.encode()):
                queue_id = int(store.engine.queues.table.queue_id[row])
                store.offsets.set(topic, group, queue_id, first_index(store, row, start))
    store.offsets.write()


def first_index(store: TimerStore, row: int, start: Start) -> int:
    """Return the index in a queue that a new group reads first. O(log entries) for a time."""
    queues = store.engine.queues
    low, high = queues.first_kept(row, store.engine.commitlog.start), queues.next_index(row)
    if start == "earliest":
        return low
    if start == "latest":
        return high
    while low < high:
        middle = (low + high) // 2
        if _stored_ms(store, int(queues.read(row, middle, 1)[0]["offset"])) < start:
            low = middle + 1
        else:
            high = middle
    return low


def _stored_ms(store: TimerStore, offset: int) -> int:
    """Return when a message was stored; one that cannot be read is taken for a late one."""
    try:
        view = store.engine.commitlog.view(offset).view(np.ndarray)
        return decode_message(view, offset).stored_ms
    except CorruptStoreError:
        return 1 << 62
