"""What stands in a queue, read without handing it out."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from timerstore.core.core import Core
from timerstore.errors import CorruptStoreError
from timerstore.timelog.bytes.decode import Message, decode_message

_AT_ONCE: Final = 256


def read_queued(
    core: Core, row: int, start: int, stop: int, without: Container[int] = ()
) -> Iterator[tuple[int, Message]]:
    """Yield the messages of entries [start, stop) that are kept, with their index; O(1) memory.

    `without`: entries that are left out. Damage is reported; messages that retention removes
    meanwhile are skipped.
    """
    queues, commitlog = core.engine.queues, core.engine.commitlog
    if start < stop:
        start = max(start, queues.first_kept(row, commitlog.start))
    while start < stop:
        count = min(_AT_ONCE, stop - start)
        offsets = queues.read(row, start, count)["offset"].tolist()
        for index, offset in enumerate(offsets, start):
            if index in without:
                continue
            try:
                yield index, decode_message(commitlog.view(offset), offset)
            except CorruptStoreError as e:
                if offset >= commitlog.start:
                    core.engine.damage.note(e.file, e.offset, e.reason)
        start += count
