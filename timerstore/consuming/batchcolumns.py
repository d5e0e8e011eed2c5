"""The columns of a batch, side by side in one piece of lent memory."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from timerstore.consuming.lentblocks import LentBlocks
from timerstore.timelog.reading.pull import RUN_COLUMNS, PulledInto

ID_BYTES_USUAL: Final = 64
"""Room for an id; ours have 32 digits, a producer's 32 or 56."""
BATCH_BYTES_MAX: Final = 1 << 30
"""Of messages in one batch: Arrow counts a column's bytes in 31 bits."""
_BINARY: Final = pa.binary()
_STRING: Final = pa.string()


class Columns:
    """What `pull_messages` fills; Arrow looks at it where it lies."""

    __slots__ = ("bodies", "ends", "ids", "numbers", "verdicts")

    def __init__(self, blocks: LentBlocks, count: int, id_bytes: int, body_bytes: int) -> None:
        """Make room for `count` messages with so many bytes of ids and bodies.

        The bodies stand last: what is asked for bounds them from above, and what is not written to
        takes no memory.
        """
        ends_at = 8 * RUN_COLUMNS * count
        verdicts_at = ends_at + 8 * (count + 1)
        ids_at = verdicts_at + count
        bodies_at = ids_at + id_bytes
        block = blocks.lend(bodies_at + body_bytes)
        self.numbers = np.ndarray((RUN_COLUMNS, count), np.int64, block)
        self.ends = np.ndarray((2, count + 1), np.int32, block, ends_at)
        self.verdicts = block[verdicts_at:ids_at]
        self.ids, self.bodies = block[ids_at:bodies_at], block[bodies_at:]

    @property
    def pulled_into(self) -> PulledInto:
        """As the kernel takes them."""
        return PulledInto(self.numbers, self.ends, self.verdicts, self.ids, self.bodies)

    def arrow_bodies(self, count: int) -> Any:
        """Return the first `count` bodies; no byte is copied."""
        return _arrow(_BINARY, count, self.ends[0], self.bodies)

    def arrow_ids(self, count: int) -> Any:
        """Return the first `count` ids; no byte is copied."""
        return _arrow(_STRING, count, self.ends[1], self.ids)


def _arrow(kind: Any, count: int, ends: Any, data: Any) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
