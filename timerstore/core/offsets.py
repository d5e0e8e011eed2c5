"""Committed offsets of all groups: `config/consumerOffset.json`, which a broker reads too."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.guards import Lock
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message, decode_message, text
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import read_json, understood, whole, write_json
from timerstore.timelog.files.names import INT32_MAX, INT64_MAX
from timerstore.timelog.reading.pastdamage import sound_messages
from timerstore.timelog.writing.consumequeue import ConsumeQueues

if TYPE_CHECKING:  # who reads copies, or asks an owner, does not load the engine
    from timerstore.services.engine.engine import Engine


Ranges = list[tuple[int, int]]


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges in order, none of which touches another.

    >>> merged([(5, 6), (1, 3), (3, 5), (8, 9)])
    [(1, 6), (8, 9)]
    """
    found: Ranges = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        elif start < stop:
            found.append((start, stop))
    return found


def gaps(start: int, stop: int, ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return what of [start, stop) is in none of some ranges, which are in order.

    >>> gaps(2, 9, [(0, 1), (3, 5), (8, 12)])
    [(2, 3), (5, 8)]
    """
    found: Ranges = []
    for low, high in [*ranges, (stop, stop)]:
        if start < min(low, stop):
            found.append((start, min(low, stop)))
        start = max(start, high)
    return found


# --- committed offsets of all groups


AHEAD: Final = "timerstoreDoneAhead"
"""Beside a broker's table: what is done behind a committed index, [start, stop) each. By the same
names, as one file: what a put has acknowledged is known as a whole, or not at all."""


Table = dict[str, dict[str, int]]
AheadTable = dict[str, dict[str, Ranges]]


def read_tables(content: dict[str, Any]) -> tuple[Table, AheadTable]:
    """Return what is committed, and what is done behind that, by topic@group and queue.

    Raises what `understood` takes.
    """
    table = {
        name: {
            str(whole(int(queue), 0, INT32_MAX)): whole(index, -INT64_MAX)
            for queue, index in queues.items()
        }
        for name, queues in content["offsetTable"].items()  # each writer writes it, if it is empty
    }
    ahead = {
        name: {
            str(int(queue)): merged((whole(start), whole(stop)) for start, stop in ranges)
            for queue, ranges in queues.items()
        }
        for name, queues in content.get(AHEAD, {}).items()
    }
    return table, ahead


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
            self.table, self.ahead = read_tables(content)
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
        """Return what is done behind the committed index, as far as it was said."""
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


# --- what a broker's clients had received and not acknowledged
#
# A broker counts what a client that speaks gRPC receives as read. It puts a *pop checkpoint* into
# its topic `rmq_sys_REVIVE_LOG_<cluster>`, which says which entries that are, and the
# acknowledgements too: as timers, which fire when the messages become visible again. Then the
# broker reads both, and sends again what was not acknowledged. How far it has come is an offset of
# its own group.


_PREFIX: Final = b"rmq_sys_REVIVE_LOG_"
_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_CHECKPOINT: Final = "ck"  # the tags of the three kinds of messages
_ACK: Final = "ack"
_BATCH_ACK: Final = "bAck"
_BITS: Final = 32
_SHORT: Final = {
    "topic": "t",
    "consumerGroup": "c",
    "queueId": "q",
    "startOffset": "so",
    "popTime": "pt",
    "ackOffset": "ao",
    "ackOffsetList": "aol",
}
"""As older brokers name what acknowledgements say."""
_TAGS, _REAL_TOPIC = fmt.PROPERTY_TAGS.decode(), fmt.PROPERTY_REAL_TOPIC.decode()

_Popped = tuple[str, str, int, int, int]
"""One receipt: topic, group, queue id, first index, when."""


def take_back_popped(engine: Engine, offsets: ConsumerOffsets) -> int:
    """Have the groups go on with what was received and not acknowledged; return how many entries.

    Entries that were acknowledged behind these stay done. O(bytes of the log) if there is a topic
    of pop checkpoints, else O(topics).
    """
    handed, done = defaultdict[_Popped, set[int]](set), defaultdict[_Popped, set[int]](set)
    for message in _revive_messages(engine):
        try:
            with understood("the pop checkpoint"):
                _take(message, json.loads(message.body), handed, done, offsets)
        except CorruptStoreError as e:
            engine.damage.note("commitlog", message.offset, e.reason)
    open_entries = defaultdict[tuple[str, str, int], set[int]](set)
    for popped, indexes in handed.items():
        open_entries[popped[:3]] |= indexes - done[popped]
    return sum(offsets.take_back(*queue, found) for queue, found in open_entries.items())


def _revive_messages(engine: Engine) -> Iterator[Message]:
    """Yield the messages of the topics of pop checkpoints, and the timers for them."""
    names = {topic for topic in engine.queues.topics if topic.startswith(_PREFIX)}
    if not names:
        return
    lengths = [len(name) for name in names]
    reader = engine.open_reader()
    log = engine.commitlog
    for rows in sound_messages(reader, log.start, log.end):
        mine = np.isin(rows.topic_bytes, lengths) | np.isin(rows.real_topic_bytes, lengths)
        for offset in rows.offset[mine & (rows.is_delete == 0)].tolist():
            message = decode_message(reader.commitlog.view(offset), offset)
            if {message.topic, message.properties.get(_REAL_TOPIC)} & set(map(text, names)):
                yield message


def _take(
    message: Message,
    said: dict[str, Any],
    handed: dict[_Popped, set[int]],
    done: dict[_Popped, set[int]],
    offsets: ConsumerOffsets,
) -> None:
    """Note what a message says. A checkpoint that the broker has looked at has nothing open."""
    kind = message.properties.get(_TAGS)
    if kind not in (_CHECKPOINT, _ACK, _BATCH_ACK):
        return
    said = {_SHORT.get(name, name): value for name, value in said.items()}
    start, queue_id = whole(said["so"]), whole(said["q"])
    popped = str(said["t"]), str(said["c"]), queue_id, start, whole(said["pt"])
    if kind == _ACK:
        done[popped].add(whole(said["ao"]))
    elif kind == _BATCH_ACK:
        done[popped].update(whole(each) for each in said["aol"])
    else:
        count, bits, steps = whole(said["n"]), int(said["bm"]), said.get("d")
        indexes = [start + whole(each) for each in steps or range(count)][:count]
        handed[popped].update(
            index for i, index in enumerate(indexes) if i >= _BITS or not bits >> i & 1
        )
        if message.topic != message.properties.get(_REAL_TOPIC, message.topic):
            return  # it waits still
        looked_at = offsets.table.get(f"{message.topic}@{_GROUP}", {}).get(str(message.queue_id))
        if looked_at is not None and message.queue_index <= looked_at:
            done[popped].update(indexes)
