"""How far each group is behind in each queue, by what it has committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from timerstore.calls.consuming.tallyfile import TALLY_FILE, DoneAhead, read_tallies
from timerstore.errors import CorruptStoreError
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.disk import Disk
from timerstore.validation.cursorchecks import committed_offsets

_DEAD: Final = fmt.DEAD_PREFIX.decode()
_RETRY: Final = fmt.RETRY_PREFIX.decode()


def find_groups(view: StoreView, queue_ends: Mapping[tuple[str, int], int]) -> list[dict[str, Any]]:
    """Return how far groups are in the queues that they read, as rows. O(groups).

    `queue_ends`: by (topic, queue id). Dead letters of which none was put back or dropped are there
    too, though nothing was committed; those that were put back one by one are subtracted from the
    end. Raises CorruptStoreError.
    """
    done = _done_ahead(view)
    found, cursors = [], dict[tuple[str, str, int], int]()
    for (topic, queue_id), queue in view.reader.queues.items():
        if topic.startswith(_DEAD):
            cursors[topic, topic.removeprefix(_DEAD), queue_id] = queue.start // fmt.ENTRY_BYTES
    for (name, queue_id), committed in committed_offsets(view.reader).items():
        topic, _, group = name.rpartition("@")
        cursors[topic, group, queue_id] = committed
    for (topic, group, queue_id), committed in sorted(cursors.items()):
        end = queue_ends.get((topic, queue_id), 0)
        end -= len(done.get((topic, group), {}).get(queue_id, ()))
        first = committed if committed < end else None
        kind = "dead" if topic.startswith(_DEAD) else "topic"
        found.append(
            {
                "group": group,
                "topic": topic,
                "queue_id": queue_id,
                "kind": "retry" if topic.startswith(_RETRY) else kind,
                "committed": committed,
                "end": end,
                "lag": max(0, end - committed),
                "oldest_ms": None if first is None else _stored_ms(view, topic, queue_id, first),
            }
        )
    return found


def _done_ahead(view: StoreView) -> DoneAhead:
    try:
        disk = Disk(view.reader.folder)
        return read_tallies(view.reader.path / "config" / TALLY_FILE, disk)[1]
    except CorruptStoreError:
        return {}  # it is begun anew by who opens the store


def _stored_ms(view: StoreView, topic: str, queue_id: int, index: int) -> int | None:
    """Return when the message of an entry was stored; None if that cannot be read."""
    queue = view.reader.queues[topic, queue_id]
    index = max(index, queue.start // fmt.ENTRY_BYTES)
    data = queue.read(index * fmt.ENTRY_BYTES, fmt.ENTRY_BYTES)
    if len(data) < fmt.ENTRY_BYTES:
        return None
    offset = int(np.frombuffer(data, fmt.QUEUE_ENTRY)[0]["offset"])
    if not view.reader.commitlog.start <= offset < view.log_stop:
        return None
    for rows in view.reader.scan(offset, offset + 1):
        return int(rows.stored_ms[0])
    return None
