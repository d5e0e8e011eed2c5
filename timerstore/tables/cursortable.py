"""The table `checkpoint`: the cursors of the last checkpoint."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from timerstore.tables.schema import ARROW_TYPES, BIGINT, STRING
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.smallfile import is_there, read_head
from timerstore.timelog.reading.reader import Fault

_OF_RIP_43: Final = (
    *("read_ms", "timerlog_flushed", "queue_index"),
    *("state_version", "state_timestamp", "state_counter"),
)
_OURS: Final = (
    *("sequence", "scan_from", "commitlog_flushed", "claimed_slot", "frontier_ms", "clean"),
    *("cancelled_count", "store_tag", "floor"),
)


def cursors(view: StoreView) -> dict[str, int]:
    """Return all cursors by their names."""
    found: dict[str, int] = {}
    checkpoint = view.checkpoint
    if checkpoint is not None:
        found = {name: int(getattr(checkpoint, name)) for name in _OF_RIP_43}
        found["by_broker"] = int(checkpoint.by_broker)
        if not checkpoint.by_broker:
            found |= {name: int(getattr(checkpoint, name)) for name in _OURS}
            levels = checkpoint.level_offsets[: len(view.reader.level_ms)]
            found |= {f"level_{i}_offset": offset for i, offset in enumerate(levels, 1)}
    path, at = view.reader.path / "checkpoint", view.reader.at
    if is_there(path, at, stat.S_ISREG):
        size = fmt.STORE_CHECKPOINT.itemsize
        data = read_head(path, size, at).ljust(size, b"\0")
        values = np.frombuffer(data, fmt.STORE_CHECKPOINT)[0]
        found |= {f"store_{name}": int(values[name]) for name in fmt.STORE_CHECKPOINT.names or ()}
    return found


def read(view: StoreView, columns: tuple[str, ...]) -> Iterator[list[Any] | Fault]:
    """Yield the columns of the one batch."""
    found = cursors(view)
    made = {
        "name": pa.array(list(found), ARROW_TYPES[STRING]),
        "value": pa.array(list(found.values()), ARROW_TYPES[BIGINT]),
    }
    if found:
        yield [made[name] for name in columns]
