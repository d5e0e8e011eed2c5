"""Committed offsets of all groups: `config/consumerOffset.json`, which a broker reads too."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from timerstore.jit.guards import Lock
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import read_json, understood, whole, write_json
from timerstore.timelog.files.names import INT32_MAX, INT64_MAX
from timerstore.timelog.writing.consumequeue import ConsumeQueues
from timerstore.values.ranges import Ranges, merged

AHEAD: Final = "timerstoreDoneAhead"
"""Beside a broker's table: what is done behind a committed index, [start, stop) each. By the same
names, as one file: what a put has acknowledged is known as a whole, or not at all."""


def read_table(table: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the committed indexes by queue, by topic@group; raises what `understood` takes."""
    return {
        name: {
            str(whole(int(queue), 0, INT32_MAX)): whole(index, -INT64_MAX)
            for queue, index in queues.items()
        }
        for name, queues in table.items()
    }


class CommittedIndexes:
    """What all groups have consumed, at one moment."""

    def __init__(self, needed: dict[str, list[tuple[str, dict[str, int]]]]) -> None:
        """`needed`: by topic, each of its groups with what it needs next, by queue id."""
        self._needed = needed

    def smallest(self, topic: bytes, queue_id: int) -> tuple[int, str] | None:
        """Return the smallest index that a group still needs, with the group; None if no one."""
        groups = self._needed.get(text(topic))
        if groups is None:
            return None
        return min((entry.get(str(queue_id), 0), group) for group, entry in groups)


class ConsumerOffsets:
    """The smallest index that is not done, by topic, group and queue."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk, self._path = disk, path
        self._lock = Lock()
        self._write_lock = Lock()  # taken before `_lock`; one writer at the file
        self._changed = False
        found = read_json(path, disk.read)
        content = {"offsetTable": {}} if found is None else found
        with understood(path.name):
            self.table = read_table(content["offsetTable"])  # each writer writes it, if it is empty
            self.ahead: dict[str, dict[str, Ranges]] = {
                name: {
                    str(int(q)): merged((whole(a), whole(b)) for a, b in r) for q, r in qs.items()
                }
                for name, qs in content.get(AHEAD, {}).items()
            }
        self._durable = {name: dict(entry) for name, entry in self.table.items()}
        self._rest: dict[str, Any] = {
            k: v for k, v in content.items() if k not in ("offsetTable", AHEAD)
        }

    def get(self, topic: str, group: str, queue_id: int) -> int:
        """Return a committed index; 0 if the group never read the queue."""
        return self.table.get(f"{topic}@{group}", {}).get(str(queue_id), 0)

    def snapshot(self) -> dict[tuple[str, str], dict[int, int]]:
        """Return all committed indexes by queue id, by (topic, group)."""
        with self._lock.guard():
            table = {name: dict(entry) for name, entry in self.table.items()}
        found = {}
        for name, entry in table.items():
            topic, _, group = name.rpartition("@")
            found[topic, group] = {int(queue_id): index for queue_id, index in entry.items()}
        return found

    def group_names(self) -> set[str]:
        """Return the names of all groups that ever committed anything."""
        with self._lock.guard():
            return {name.rpartition("@")[2] for name in [*self.table, *self.ahead]}

    def is_new(self, topic: str, group: str) -> bool:
        """Tell whether a group never read a topic."""
        name = f"{topic}@{group}"
        return name not in self.table and name not in self.ahead

    def get_ahead(self, topic: str, group: str, queue_id: int) -> Ranges:
        """Return what is done behind the committed index, as far as it is to be kept."""
        return self.ahead.get(f"{topic}@{group}", {}).get(str(queue_id), [])

    def add_ahead(self, topic: str, group: str, queue_id: int, ranges: Ranges) -> None:
        """Say what is done behind the committed index; `write` makes it durable."""
        name, queue = f"{topic}@{group}", str(queue_id)
        with self._lock.guard():
            known = self.ahead.get(name, {}).get(queue, [])
            found = merged([*known, *ranges])
            if found != known:
                self.ahead.setdefault(name, {})[queue] = found
                self._changed = True

    def set(self, topic: str, group: str, queue_id: int, index: int) -> None:
        """Commit an index, which only grows; `write` makes it durable."""
        with self._lock.guard():
            queues = self.table.setdefault(f"{topic}@{group}", {})
            if queues.get(str(queue_id), -1) < index:
                queues[str(queue_id)] = index
                self._changed = True

    def take_back(self, topic: str, group: str, queue_id: int, indexes: Iterable[int]) -> int:
        """Have a group read these entries again; return how many. `write` makes it durable.

        It is for those before its committed index; what stands between them stays done.
        """
        name, queue = f"{topic}@{group}", str(queue_id)
        with self._lock.guard():
            committed = self.table.get(name, {}).get(queue, 0)
            again = sorted(index for index in indexes if index < committed)
            if again:
                self.table[name][queue] = again[0]
                done = zip([index + 1 for index in again], [*again[1:], committed], strict=True)
                known = self.ahead.get(name, {}).get(queue, [])
                self.ahead.setdefault(name, {})[queue] = merged([*known, *done])
                self._changed = True
        return len(again)

    def forget(self, topic: str, group: str) -> None:
        """Forget what a group committed of a topic; `write` makes it durable."""
        name = f"{topic}@{group}"
        with self._lock.guard():
            known = [self.table.pop(name, None), self.ahead.pop(name, None)]
            self._changed |= known != [None, None]

    def correct(self, queues: ConsumeQueues) -> list[str]:
        """Move what stands outside of its queue to the nearest end; return whose it was.

        Behind the end, what fires again would be skipped; so what comes to a queue that does not
        exist yet.
        """
        ends = {
            (text(topic), str(int(queues.table.queue_id[row]))): queues.next_index(row)
            for row, topic in enumerate(queues.topics)
        }
        corrected = []
        for name, entry in self.table.items():
            topic = name.rpartition("@")[0]
            within = {q: min(max(i, 0), ends.get((topic, q), 0)) for q, i in entry.items()}
            if within != entry:
                corrected.append(name)
                entry.update(within)
        for name, ahead in self.ahead.items():
            topic = name.rpartition("@")[0]
            for queue_id, ranges in ahead.items():
                end = ends.get((topic, queue_id), 0)
                if ranges and ranges[-1][1] > end:
                    ahead[queue_id] = merged((start, min(stop, end)) for start, stop in ranges)
                    corrected.append(name)
        self._changed |= bool(corrected)
        return sorted({*corrected})

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
        with self._write_lock.guard():
            with self._lock.guard():
                if not self._changed:
                    return
                table = {name: dict(entry) for name, entry in self.table.items()}
                ahead = self._still_ahead()
                self._changed = False
            content = {"offsetTable": table, **({AHEAD: ahead} if ahead else {}), **self._rest}
            try:
                write_json(self._disk, self._path, content)
            except BaseException:
                self._changed = True
                raise
            self._durable = table

    def _still_ahead(self) -> dict[str, dict[str, Ranges]]:
        """Return what is done behind the committed indexes, without what these have passed."""
        for name, queues in self.ahead.items():
            first = self.table.get(name, {})
            for queue, ranges in queues.items():
                queues[queue] = [each for each in ranges if each[1] > first.get(queue, 0)]
        found = {name: {q: r for q, r in qs.items() if r} for name, qs in self.ahead.items()}
        return {name: queues for name, queues in found.items() if queues}
