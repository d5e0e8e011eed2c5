"""What a step can wait for: a service's `need`, with what `need_offset` then says.

The service's own thread answers it in Python: by a segment, a mapping, a row, a larger set.
"""

from __future__ import annotations

from typing import Final

NOTHING: Final = 0
COMMITLOG_SEGMENT: Final = 1  # room to append up to this offset
QUEUE_SEGMENT: Final = 2  # room in that of the row in `need_offset`
TIMERLOG_SEGMENT: Final = 3  # that holds the offset; room for a unit if it lies at the end
COMMITLOG_READ: Final = 4  # a segment to read from
TIMER_QUEUE_READ: Final = 5  # a segment of the timer queue, by its byte offset
TOPIC: Final = 6  # the destination of the message at this offset has no row
CANCELLED_ROOM: Final = 7  # the cancelled set must grow
DAMAGED_TIMERLOG: Final = 8  # the unit at this offset is damaged
LEVEL_READ: Final = 9  # the segment that the level in `need_offset` wants of its queue
LOST: Final = 10  # what stands in `lost` is to be named, and taken off the count
BAD_ENTRY: Final = 11  # the timer queue's entry at this index is not that of its message
BAD_LEVEL_ENTRY: Final = (
    12  # the next entry of the level in `need_offset` leads to no message of it
)
