"""Refuses folders of a broker whose timers or queues lie in RocksDB, or in batch queues.

RocketMQ keeps queues there with `storeType = defaultRocksDB`: then `consumequeue/` is a database,
not a folder for each topic. From 5.4 on it can keep timers there (`timerRocksDBEnable`): in a
column family of `rocksdbstore/`, a folder that 5.4 always makes. Without a look there such a store
would seem to have no timers at all.
"""

from __future__ import annotations

import io
import mmap
import stat
from pathlib import Path
from typing import Final

from timerstore.errors import NotAStoreError
from timerstore.timelog.files.names import number_of
from timerstore.timelog.files.reader_end import list_names
from timerstore.timelog.files.smallfile import At, by_path, is_there, open_at, status_at

_MARKS: Final = (b"nametimer", b"timeline_checkpoint", b"sys_topic_scan_offset_checkpoint")
"""What stands in a file with timers: the name of their column family, or a cursor among them."""
_PROPERTIES_BYTES: Final = 64 << 10
"""The column family's name is among the last bytes of a table; a log is searched as a whole."""


def refuse_rocksdb(path: Path, at: At = by_path) -> None:
    """Raise NotAStoreError if the timers or queues of a folder lie in RocksDB.

    O(1); of a broker's store with `rocksdbstore/` O(bytes of its logs).
    """
    if is_there(path / "consumequeue" / "CURRENT", at, stat.S_ISREG):
        raise NotAStoreError(
            f"{path} has its queues in RocksDB (consumequeue/), which timerstore cannot read. "
            "Let a broker with storeType = defaultRocksDB use it."
        )
    folder = path / "rocksdbstore"
    names = [each for each in sorted(list_names(folder, at)) if each.endswith((".sst", ".log"))]
    named = next((each for each in names if _has_timers(folder / each, at)), None)
    if named is not None:
        raise NotAStoreError(
            f"{path} has timers in RocksDB (rocksdbstore/{named}), which timerstore cannot "
            "read. Let a broker with timerRocksDBEnable = true use it. If no timer waits there "
            "any more, make a copy without rocksdbstore/ and open that."
        )


def _has_timers(file: Path, at: At) -> bool:
    size = status_at(file, at).st_size
    if size == 0:
        return False
    with (
        io.FileIO(open_at(file, at)) as opened,
        mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as data,
    ):
        start = max(0, size - _PROPERTIES_BYTES) if file.suffix == ".sst" else 0
        return any(data.find(mark, start) >= 0 for mark in _MARKS)


# --- Finds the queues that a broker keeps in `batchconsumequeue/`: those of type BatchCQ.
#
# A message there holds several, and takes as many indexes. Readers leave these queues out and name
# them; a store that has one is not opened, because its messages could not be handed out.

_FOLDER = "batchconsumequeue"


def find_batch_queues(path: Path, at: At = by_path) -> tuple[tuple[str, int], ...]:
    """Return topic and queue id of each; those with files of `consumequeue/` too are none."""
    found = list[tuple[str, int]]()
    for topic in sorted(list_names(path / _FOLDER, at)):
        for name in sorted(list_names(path / _FOLDER / topic, at)):
            queue_id = number_of(name)
            if queue_id is not None and not is_there(path / "consumequeue" / topic / name, at):
                found.append((topic, queue_id))
    return tuple(found)


def folder_name(topic: str, queue_id: int) -> str:
    """Return the name of a queue's folder in the store."""
    return f"{_FOLDER}/{topic}/{queue_id}"


def refuse_batch_queues(path: Path, at: At) -> None:
    """Raise NotAStoreError if a store has such a queue. O(queues of that kind)."""
    found = find_batch_queues(path, at)
    if found:
        raise NotAStoreError(
            f"{path} has a batch consume queue ({folder_name(*found[0])}), which timerstore cannot "
            "hand out. Let a broker use the store. timerstore info, pending and export read it."
        )
