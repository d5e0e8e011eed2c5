"""Which acknowledgements that came with a put the offsets file knows of.

The log says them first, in records (`timelog/writing/compose.py`). The file's own offset in the
records' topic says up to where all of them are in it: as committed indexes, or as what is done
behind those. An `ack_and_put` that is under way keeps that offset back, from before its record is
appended until its message is settled. What is behind it is applied when the store is opened; twice
is as good as once, because an entry of a queue never becomes another one.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, Protocol

from timerstore.core.core import Core
from timerstore.errors import CorruptStoreError
from timerstore.jit.guards import RLock
from timerstore.jit.locks import TurnLock
from timerstore.timelog.bytes.decode import Message, decode_message, text
from timerstore.timelog.writing.compose import ACKS_GROUP, ACKS_TOPIC, read_record

_AT_ONCE: Final = 256


def read_queued(core: Core, row: int, start: int, stop: int) -> Iterator[tuple[int, Message]]:
    """Yield the messages of entries [start, stop) that are kept, with their index; O(1) memory.

    Damage is reported; messages that retention removes meanwhile are skipped.
    """
    queues, commitlog = core.engine.queues, core.engine.commitlog
    if start < stop:
        start = max(start, queues.first_kept(row, commitlog.start))
    while start < stop:
        count = min(_AT_ONCE, stop - start)
        offsets = queues.read(row, start, count)["offset"].tolist()
        for index, offset in enumerate(offsets, start):
            try:
                yield index, decode_message(commitlog.view(offset), offset)
            except CorruptStoreError as e:
                if offset >= commitlog.start:
                    core.engine.damage.note(e.file, e.offset, e.reason)
        start += count


# --- … which of that the offsets file knows of


_TOPIC = text(ACKS_TOPIC)


class Keys(Protocol):
    """Who knows which timer is pending with a key."""

    @property
    def lock(self) -> TurnLock:
        """Held over a look and what is put for it."""

    def find(self, topic: str, key: str) -> str | None:
        """Return the id of a timer that is pending."""


class PutAcks:
    """The records of one store; any number of threads may use it."""

    def __init__(self, core: Core, keys: Keys) -> None:
        self._core, self.keys = core, keys
        self._under_way: dict[int, int] = {}  # by number, an index that the record's is not before
        self._numbers = itertools.count()
        self._lock = RLock()  # a signal's handler may acknowledge, too
        self.log_end = 0
        """Behind the last record's puts in the commit log."""

    def begin(self) -> int:
        """Say that a record will be appended; return what to say at its end."""
        queues = self._core.engine.queues
        row = queues.row(ACKS_TOPIC)
        with self._lock.guard():
            number = next(self._numbers)
            self._under_way[number] = queues.next_index(row)
        return number

    def end(self, number: int) -> None:
        """Say that its message is settled, or that nothing was appended."""
        with self._lock.guard():
            del self._under_way[number]

    def appended(self, log_end: int) -> None:
        """Say up to where the log must be durable before any file may know of the record."""
        with self._lock.guard():
            self.log_end = max(self.log_end, log_end)

    def covered(self) -> int | None:
        """Return the index of the first record that may not be settled; None if none ever was.

        If somebody reads the groups' offsets afterwards, all that is before it is in them.
        """
        queues = self._core.engine.queues
        rows = queues.rows(ACKS_TOPIC)
        if not rows:
            return None
        with self._lock.guard():
            return min(self._under_way.values(), default=queues.next_index(rows[0]))

    def wait_durable(self) -> None:
        """Return once all records that were appended are durable, with every `durability`."""
        if self.log_end > self._core.flusher.durable_end:
            self._core.flusher.wait_durable(self.log_end)

    def cover(self, index: int) -> None:
        """Have the next write of the offsets say that it knows the records before `index`."""
        self._core.offsets.set(_TOPIC, ACKS_GROUP, 0, index)

    def apply(self) -> None:
        """Settle what the log says behind what the offsets know. O(records since a checkpoint)."""
        core = self._core
        rows = core.engine.queues.rows(ACKS_TOPIC)
        if not rows:
            return
        start, end = core.offsets.get(_TOPIC, ACKS_GROUP, 0), core.engine.queues.next_index(rows[0])
        done: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
        for _, message in read_queued(core, rows[0], start, end):
            record = read_record(message.body)
            if record is not None:
                where = record.topic, record.group, record.queue_id
                done[where].append((record.queue_index, record.queue_index + 1))
        for where, ranges in done.items():
            core.offsets.add_ahead(*where, ranges)
