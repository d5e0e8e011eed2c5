"""What the delay levels of a store have not delivered, as their files say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from timerstore.jit.record import Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.files.checkpoint import LevelOffsetFile
from timerstore.timelog.reading.reader import StoreReader, read_entries
from timerstore.timelog.reading.scan import LoggedMessages


class LevelEntries(NamedTuple):
    """Entries of a level's queue: int64[n] each."""

    message: Words  # commit log offset
    due_ms: Words


def level_offsets(reader: StoreReader) -> list[int]:
    """Return the index of the first message that each delay level has not delivered.

    Raises CorruptStoreError if `delayOffset.json` cannot be read.
    """
    offsets = LevelOffsetFile(reader.path / "config" / "delayOffset.json").read(reader.steady.read)
    if reader.checkpoint is not None and not reader.checkpoint.by_broker:
        pairs = zip(offsets, reader.checkpoint.level_offsets, strict=True)
        offsets = [max(pair) for pair in pairs]
    return offsets


def level_ranges(reader: StoreReader, offsets: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (level − 1, first index, stop) of what each level's queue holds behind its offset."""
    for level, offset in enumerate(offsets):
        queue = reader.queues.get((text(fmt.LEVEL_TOPIC), level))
        if queue is not None:
            first = max(offset, queue.start // fmt.ENTRY_BYTES)
            yield level, first, max(first, -(-queue.used_end() // fmt.ENTRY_BYTES))


def read_level(reader: StoreReader, level: int, first: int, stop: int) -> LevelEntries:
    """Return the messages that entries [first, stop) of a level's queue point to, in order."""
    entries = read_entries(reader.queues[text(fmt.LEVEL_TOPIC), level], first, stop - first)
    entries = entries[(entries["size"] > 0) & (entries["size"] != fmt.QUEUE_BLANK_SIZE)]
    return LevelEntries(entries["offset"].astype(np.int64), entries["tags_code"].astype(np.int64))


def level_targets(rows: LoggedMessages) -> Words:
    """Return the identities of delay level messages that scanned deletes name: int64[n, 2]."""
    who = np.stack((rows.identity_high, rows.identity_low), axis=1)
    of_level = (who[:, 0] == IDENTITY_OURS) & (who[:, 1] >= fmt.LEVEL_MARK)
    named: Words = who[(rows.is_delete == 1) & of_level]
    return named
