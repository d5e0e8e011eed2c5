"""`config/timerstoreGroups.json`: what groups did, kept over a restart.

A file of ours, which a broker leaves alone. It is written with a checkpoint, at most every few
seconds: after a crash its counters lack what came since. They are for people, nothing is decided by
them; so a file that is damaged is begun anew.

Beside them stand the dead letters that were put back one by one, behind others that stay: an index
that is committed cannot say that. They are written at once. If the file is lost, these letters are
there again.

And what an ordered consumer holds back, with how often it failed; that is written with the
counters. If it is lost, a message may fail more often before it is given up.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, Final

from timerstore.calls.consuming.grouptally import GroupTally
from timerstore.errors import CorruptStoreError
from timerstore.jit.guards import Lock
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import (
    check_seal,
    read_json,
    sealed,
    understood,
    whole,
    write_json,
)
from timerstore.timelog.writing.consumequeue import ConsumeQueues

log = logging.getLogger("timerstore")

TALLY_FILE: Final = "timerstoreGroups.json"
WRITE_EVERY_S: Final = 5.0
"""A file more to fsync in each checkpoint would be felt by those who wait for theirs."""
_NAME_END: Final = "@"

Tallies = dict[tuple[str, str], GroupTally]
DoneAhead = dict[tuple[str, str], dict[int, list[int]]]
"""By (topic, group) and queue id, the indexes behind the committed one that are done."""
HeldBack = dict[tuple[int, int], tuple[int, int, int, int]]
"""By queue id and index: how often a message failed, when first, when it is to come again, and how
long that was to take: a clock that was set back holds it no longer than that."""
AllHeldBack = dict[tuple[str, str], HeldBack]


class TallyFile:
    """The file of one store; several threads may flush at once."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk, self._path = disk, path
        self._written: dict[str, Any] = {}
        self._written_s = time.monotonic()
        self._lock = Lock()
        self.held: AllHeldBack = {}
        """What was held back when the file was read."""

    def read(self) -> tuple[Tallies, DoneAhead]:
        """Return what was kept, by (topic, group); nothing if the file is damaged."""
        try:
            tallies, done, self.held = read_tallies(self._path, self._disk)
        except CorruptStoreError as e:
            log.warning("%s: %s; the counters of groups start at 0 again", self._path, e.reason)
            return {}, {}
        self._written = _content(tallies, done, self.held)
        return tallies, done

    @property
    def is_due(self) -> bool:
        """Whether some time has passed since it was written."""
        return time.monotonic() - self._written_s >= WRITE_EVERY_S

    def write(self, tallies: Tallies, done: DoneAhead, held: AllHeldBack) -> None:
        """Write the file if anything changed; durable on return."""
        with self._lock.guard():
            self._written_s = time.monotonic()
            content = _content(tallies, done, held)
            if content != self._written:
                write_json(self._disk, self._path, sealed(content))
                self._written = content


def read_tallies(path: Path, disk: Disk) -> tuple[Tallies, DoneAhead, AllHeldBack]:
    """Read the file; CorruptStoreError if it is damaged."""
    content = read_json(path, disk.read) or {}
    check_seal(path, content)
    tallies: Tallies = {}
    done: DoneAhead = {}
    held: AllHeldBack = {}
    with understood(path.name):
        for name, counters in content.get("groups", {}).items():
            tally = tallies[_pair(name)] = GroupTally()
            tally.go_on_from(counters)
        for name, queues in content.get("doneAhead", {}).items():
            indexes = {int(queue): [whole(each) for each in many] for queue, many in queues.items()}
            done[_pair(name)] = indexes
        for name, rows in content.get("heldBack", {}).items():
            held[_pair(name)] = dict(_held_back([whole(each) for each in row]) for row in rows)
    return tallies, done, held


def cut_done(done: DoneAhead, held: AllHeldBack, queues: ConsumeQueues) -> bool:
    """Forget what lies behind the end of its queue; tell whether anything did.

    A power cut may have taken entries: what comes in their place is another message.
    """
    cut = False

    def ends_of(topic: str) -> dict[int, int]:
        rows = queues.rows(topic.encode("utf-8", "surrogateescape"))
        return {int(queues.table.queue_id[row]): queues.next_index(row) for row in rows}

    for (topic, _), indexes in done.items():
        ends = ends_of(topic)
        for queue_id, many in indexes.items():
            kept = [index for index in many if index < ends.get(queue_id, 0)]
            cut |= len(kept) < len(many)
            indexes[queue_id] = kept
    for (topic, _), places in held.items():
        ends = ends_of(topic)
        gone = [(queue_id, i) for queue_id, i in places if i >= ends.get(queue_id, 0)]
        cut |= bool(gone)
        for place in gone:
            del places[place]
    return cut


def _pair(name: str) -> tuple[str, str]:
    topic, _, group = name.rpartition(_NAME_END)
    return topic, group


def _held_back(row: list[int]) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """Read a row; an older version's, which does not say how long it waits, comes at once."""
    queue_id, index, count, first_ms, again_ms, wait_ms = row if len(row) > 5 else (*row, 0)
    return (queue_id, index), (count, first_ms, again_ms, wait_ms)


def _content(tallies: Tallies, done: DoneAhead, held: AllHeldBack) -> dict[str, Any]:
    """Return what the file says; nothing if nothing was ever done."""
    counted = {_NAME_END.join(pair): each.counters() for pair, each in sorted(tallies.items())}
    ahead = {
        _NAME_END.join(pair): {str(queue): indexes for queue, indexes in queues.items() if indexes}
        for pair, queues in sorted(done.items())
    }
    content = {
        "groups": {name: counters for name, counters in counted.items() if any(counters.values())},
        "doneAhead": {name: queues for name, queues in ahead.items() if queues},
        "heldBack": {
            _NAME_END.join(pair): [[*place, *each] for place, each in sorted(places.items())]
            for pair, places in sorted(held.items())
            if places
        },
    }
    return {name: entries for name, entries in content.items() if entries}
