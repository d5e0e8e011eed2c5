"""Finds the queues that a broker keeps in `batchconsumequeue/`: those of type BatchCQ.

A message there holds several, and takes as many indexes. Readers leave these queues out and name
them; a store that has one is not opened, because its messages could not be handed out.
"""

from __future__ import annotations

from pathlib import Path

from timerstore.errors import NotAStoreError
from timerstore.timelog.files.names import number_of
from timerstore.timelog.files.smallfile import At, by_path, is_there
from timerstore.timelog.files.steady import list_names

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
