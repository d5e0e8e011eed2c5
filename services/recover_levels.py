"""Recovering the delay levels: where each loop goes on, and what waits in its queue."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from timerstore.services.engine import Engine
from timerstore.services.level_file import LevelOffsetFile
from timerstore.services.levels import LEVEL_COUNT
from timerstore.timelog.checkpoint import Checkpoint
from timerstore.timelog.record import Words

if TYPE_CHECKING:
    from timerstore.services.recovery import Findings

log = logging.getLogger("timerstore")
_CHUNK: Final = 65_536


def restore_offsets(engine: Engine, checkpoint: Checkpoint | None, findings: Findings) -> None:
    """Set each level's offset: the checkpoint's, or a broker's; never outside its queue.

    Both hold, so the larger one does: see `level_file.py`. After a broker ours are gone.
    """
    offsets = LevelOffsetFile(engine.path / "config" / "delayOffset.json").read()
    if checkpoint is not None and not checkpoint.by_broker:
        offsets = [max(pair) for pair in zip(offsets, checkpoint.level_offsets, strict=True)]
    queues, levels = engine.queues, engine.levels
    for level in range(int(levels.words[LEVEL_COUNT])):
        row, offset = int(levels.row[level]), offsets[level]
        first = queues.first_kept(row, engine.commitlog.start)
        levels.offset[level] = min(max(offset, first), queues.next_index(row))
        if levels.offset[level] != offset:
            findings.corrected_levels.append(level + 1)
            log.warning(
                "%s: delay level %d stood at %d, outside its queue; it goes on at %d",
                *(engine.path, level + 1, offset, levels.offset[level]),
            )


def pass_delivered(engine: Engine, origins: Words) -> None:
    """Move each offset over the sources that have their copy, up to the first that has none.

    The loops skip those behind it. `origins`: the sources that have a copy, as recovery found them.
    """
    if not len(origins):
        return
    levels, newest = engine.levels, int(origins.max())
    for level in range(int(levels.words[LEVEL_COUNT])):
        passed = True
        for first, entries in _waiting_entries(engine, level):
            done = np.isin(entries["offset"], origins)
            if done.any():
                levels_last = first + int(np.flatnonzero(done)[-1])
                engine.recovered_until_level[level] = levels_last
            if passed:
                count = int(np.argmin(done)) if not done.all() else len(done)
                levels.offset[level] = first + count
                passed = count == len(done)
            if int(entries["offset"][-1]) > newest:
                break


def _waiting_entries(engine: Engine, level: int) -> Iterator[tuple[int, Any]]:
    """Yield the entries of a level that are not delivered, in chunks: (first index, entries)."""
    queues, levels = engine.queues, engine.levels
    row, index = int(levels.row[level]), int(levels.offset[level])
    end = queues.next_index(row)
    while index < end:
        count = min(end - index, _CHUNK)
        yield index, queues.read(row, index, count)
        index += count
