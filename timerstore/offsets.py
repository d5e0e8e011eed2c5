"""Committed offsets of all groups: `config/consumerOffset.json`, which a broker reads too."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from timerstore.errors import CorruptStoreError
from timerstore.timelog.consumequeue import ConsumeQueues
from timerstore.timelog.decode import text
from timerstore.timelog.disk import Disk
from timerstore.timelog.jsonfile import read_json, write_json


class CommittedIndexes:
    """What all groups have consumed, at one moment."""

    def __init__(self, needed: dict[str, list[tuple[str, dict[str, int]]]]) -> None:
        """`needed`: by topic, each of its groups with what it needs next, by queue id."""
        self._needed = needed

    def smallest(self, topic: bytes, queue_id: int) -> tuple[int, str] | None:
        """Return the smallest index that a group still needs, with the group; None where no one."""
        groups = self._needed.get(text(topic))
        if groups is None:
            return None
        return min((entry.get(str(queue_id), 0), group) for group, entry in groups)


class ConsumerOffsets:
    """The smallest index that is not done, by topic, group and queue."""

    def __init__(self, disk: Disk, path: Path) -> None:
        """Read the file."""
        self._disk, self._path = disk, path
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()  # taken before `_lock`; one writer at the file
        self._changed = False
        content = read_json(path, disk.read) or {}
        table = content.get("offsetTable", {})
        try:
            self.table: dict[str, dict[str, int]] = {
                str(name): {str(int(queue)): int(index) for queue, index in queues.items()}
                for name, queues in table.items()
            }
        except (AttributeError, TypeError, ValueError) as e:
            raise CorruptStoreError(path.name, 0, f"offsetTable: {e}") from e
        self._durable = {name: dict(entry) for name, entry in self.table.items()}
        self._rest: dict[str, Any] = {k: v for k, v in content.items() if k != "offsetTable"}

    def get(self, topic: str, group: str, queue_id: int) -> int:
        """Return a committed index; 0 where the group never read the queue."""
        return self.table.get(f"{topic}@{group}", {}).get(str(queue_id), 0)

    def snapshot(self) -> dict[tuple[str, str], dict[int, int]]:
        """Return all committed indexes by queue id, by (topic, group)."""
        with self._lock:
            table = {name: dict(entry) for name, entry in self.table.items()}
        found = {}
        for name, entry in table.items():
            topic, _, group = name.rpartition("@")
            found[topic, group] = {int(queue_id): index for queue_id, index in entry.items()}
        return found

    def is_new(self, topic: str, group: str) -> bool:
        """Tell whether a group never read a topic."""
        return f"{topic}@{group}" not in self.table

    def set(self, topic: str, group: str, queue_id: int, index: int) -> None:
        """Commit an index, which only grows; `write` makes it durable."""
        with self._lock:
            queues = self.table.setdefault(f"{topic}@{group}", {})
            if queues.get(str(queue_id), -1) < index:
                queues[str(queue_id)] = index
                self._changed = True

    def cut(self, topic: bytes, row: int, queues: ConsumeQueues) -> None:
        """Cut all groups' offsets of one queue to its end, else what fires again is skipped."""
        queue_id, end = str(int(queues.table.queue_id[row])), queues.next_index(row)
        for name, entry in self.table.items():
            if name.rpartition("@")[0] == text(topic) and entry.get(queue_id, 0) > end:
                entry[queue_id] = end
                self._changed = True

    def cut_missing(self, queues: ConsumeQueues) -> None:
        """Cut all groups' offsets of queues that do not exist: what comes to them is not read."""
        known = {
            (text(topic), str(int(queues.table.queue_id[row])))
            for row, topic in enumerate(queues.topics)
        }
        for name, entry in self.table.items():
            for queue_id in entry:
                if (name.rpartition("@")[0], queue_id) not in known and entry[queue_id] > 0:
                    entry[queue_id] = 0
                    self._changed = True

    def committed(self, reading: Iterable[tuple[str, str, dict[str, int]]]) -> CommittedIndexes:
        """Return what all groups still need: by what is durable, and by what they read now.

        `reading`: (topic, group, index by queue id) of each group that reads now; it may be new and
        not in the file yet.
        """
        needed: dict[str, list[tuple[str, dict[str, int]]]] = {}
        for name, entry in self._durable.items():
            topic, _, group = name.rpartition("@")
            needed.setdefault(topic, []).append((group, entry))
        for topic, group, entry in reading:
            needed.setdefault(topic, []).append((group, entry))
        return CommittedIndexes(needed)

    def write(self) -> None:
        """Write the file if anything changed; durable on return."""
        with self._write_lock:
            with self._lock:
                if not self._changed:
                    return
                table = {name: dict(entry) for name, entry in self.table.items()}
                self._changed = False
            try:
                write_json(self._disk, self._path, {"offsetTable": table, **self._rest})
            except BaseException:
                self._changed = True
                raise
            self._durable = table
