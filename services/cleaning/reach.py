"""The reach: the offset up to which only pending timers keep the commit log.

Before it every segment is full, and its last message older than `retention_ms`; every timer message
has its unit; what was fired was consumed by all groups of its topic, durably; and the delay levels
have delivered what waited there. A topic that no group ever read keeps its messages: a program that
puts without consuming fills the disk up to `max_bytes`, and is then refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from timerstore.errors import MissingFileError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.files.smallfile import read_head

if TYPE_CHECKING:
    from timerstore.services.engine.engine import Engine

_NO_LIMIT: Final = 1 << 62


class Committed(Protocol):
    """What groups have consumed, as one moment's durable offsets."""

    def smallest(self, topic: bytes, queue_id: int) -> tuple[int, str] | None:
        """Return the smallest index that a group still needs, with the group; None if no one."""


class Reach:
    """Finds one engine's reach. Used by one thread at a time."""

    def __init__(self, engine: Engine, committed: Callable[[], Committed]) -> None:
        """Ask `committed` for the groups' offsets."""
        self.engine, self._committed = engine, committed
        self.kept_by = "nothing"
        """What kept the first segment behind the reach, when it was looked at last."""
        self._stored_ms: dict[int, int] = {}  # of the first message of a commit log segment
        self.found = 0
        """The reach as it was found last."""
        self._keeper = 0  # row of the queue that kept it last: it is asked first

    def find(self, start: int) -> int:
        """Return the reach, a segment's end; `start` if it is not past the segment there.

        What was found stays, and is only looked beyond. O(segments that came since), and O(queues)
        if there is one.
        """
        log, segment_bytes = self.engine.commitlog, self.engine.commitlog.segment_bytes
        start = max(start, self.found)
        first = number = start // segment_bytes
        old_ms = self.engine.clock.now_ms - self.engine.config.retention_ms
        while (number + 1) * segment_bytes < log.end and self._last_stored_ms(number) <= old_ms:
            number += 1
        for each in [each for each in self._stored_ms if each < first]:
            del self._stored_ms[each]
        self.kept_by = "retention_ms" if (number + 1) * segment_bytes < log.end else "nothing"
        if number == first:
            return start
        limit = min(number * segment_bytes, self._first_unlinked())
        if limit >= (first + 1) * segment_bytes:
            limit = self._first_unconsumed((first + 1) * segment_bytes, limit)
        if limit < (first + 1) * segment_bytes:
            return start
        self.found = limit // segment_bytes * segment_bytes
        return self.found

    def _last_stored_ms(self, number: int) -> int:
        """Return when the message behind a segment's last was stored: that never falls."""
        if number not in self._stored_ms:
            stored_ms = self._read_stored_ms(number + 1)
            if stored_ms is None:
                return _NO_LIMIT
            self._stored_ms[number] = stored_ms
        return self._stored_ms[number]

    def _read_stored_ms(self, number: int) -> int | None:
        try:
            path = self.engine.commitlog.path(number)
            head_bytes = fmt.MESSAGE_HEADER_BYTES + fmt.HOST_V6_EXTRA_BYTES
            data = read_head(path, head_bytes, self.engine.disk.at)
        except MissingFileError:
            return None
        if len(data) < fmt.MESSAGE_HEADER_BYTES + fmt.HOST_V6_EXTRA_BYTES:
            return None
        header = np.frombuffer(data[: fmt.MESSAGE_HEADER_BYTES], fmt.MESSAGE_HEADER)[0]
        if int(header["magic"]) not in (fmt.MESSAGE_MAGIC, fmt.MESSAGE_MAGIC_LONG_TOPIC):
            return None
        moved = bool(header["system_flag"] & fmt.SYSTEM_FLAG_BORN_V6)
        at = fmt.MESSAGE_STORED_AT + (fmt.HOST_V6_EXTRA_BYTES if moved else 0)
        return int.from_bytes(data[at : at + 8], "big", signed=True)

    def _first_unlinked(self) -> int:
        """Return the offset of the first timer message that has no unit yet."""
        offset = self._unlinked_at()
        if offset < _NO_LIMIT:
            self.kept_by = f"timers that have no unit yet, from offset {offset:,} on"
        return offset

    def _unlinked_at(self) -> int:
        queues, index = self.engine.queues, self.engine.world.enqueue_put.linked_index
        if index >= queues.next_index(0):
            return _NO_LIMIT
        return int(queues.read(0, index, 1)[0]["offset"])

    def unlinked_bytes(self) -> int:
        """Return the bytes behind the first timer message that has no unit yet. O(1)."""
        return max(0, self.engine.commitlog.end - self._unlinked_at())

    def _first_unconsumed(self, least: int, limit: int) -> int:
        """Return the offset of the oldest message that a group, or a delay level, still needs.

        Return `limit` if it lies behind that. If it lies before `least`, any such offset may be
        returned.
        """
        queues, committed = self.engine.queues, self._committed()
        for row in (self._keeper, *range(1, len(queues.files))):
            topic, queue_id = queues.topics[row], int(queues.table.queue_id[row])
            if topic == fmt.TIMER_TOPIC or not queues.files[row].numbers:
                continue
            index, who = 0, f"delay level {queue_id + 1}"
            if topic != fmt.LEVEL_TOPIC:
                found = committed.smallest(topic, queue_id)
                who = f"topic {text(topic)!r}, which no group has read"
                if found is not None:
                    index, group = found
                    who = f"group {group!r}, which is behind in topic {text(topic)!r}"
                    if topic == fmt.DEAD_PREFIX + group.encode("utf-8", "surrogateescape"):
                        who = f"dead letters of group {group!r}"
            elif queue_id < len(self.engine.levels.offset):
                index = int(self.engine.levels.offset[queue_id])
            index = max(queues.first_kept(row, self.engine.commitlog.start), index)
            end = queues.next_index(row)
            if index < end:
                needed = int(queues.read(row, index, 1)[0]["offset"])
                if needed < limit:
                    limit, self._keeper = needed, row
                    many = "1 message" if end - index == 1 else f"{end - index:,} messages"
                    self.kept_by = f"{who}: {many} from offset {needed:,} on"
                if needed < least:
                    break
        return limit
