"""The other peer: LMDB with the due time in the key, used as a careful program would."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from pathlib import Path

ROWS_PER_TRANSACTION = 16_384
"""As many as a list of ours; it is twice as fast with so many as with a thousand."""
MAP_BYTES = 64 << 30
"""An upper limit of the file, not its size."""

_KEY = struct.Struct(">QQ")
_TOPIC = b"default\0"


class LmdbTimers:
    """Timers in LMDB: ordered by due time, then number; many to a transaction.

    The file is written, not mapped for writing: there a full disk would be a SIGBUS.
    """

    def __init__(self, path: Path, *, synced: bool) -> None:
        """Make the file; `synced`: each transaction is fsynced, else it is in the page cache."""
        import lmdb

        path.mkdir(exist_ok=True)
        self._env = lmdb.open(str(path), map_size=MAP_BYTES, sync=synced)
        self._count = time.time_ns()  # no number that was there when it was open before

    def fill(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Put timers that stay."""
        self.put_many(due_ms, bodies)

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Put timers."""
        self.put_known(due_ms, bodies)

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[bytes]:
        """Put timers, ROWS_PER_TRANSACTION to a transaction; return their keys."""
        known = list[bytes]()
        for at in range(0, len(bodies), ROWS_PER_TRANSACTION):
            part = slice(at, at + ROWS_PER_TRANSACTION)
            numbers = range(self._count, self._count + len(bodies[part]))
            keys = list(map(_KEY.pack, due_ms[part], numbers))
            rows = [(key, _TOPIC + body) for key, body in zip(keys, bodies[part], strict=True)]
            rows.sort()  # neighbours share pages of the tree
            with self._env.begin(write=True) as transaction:
                transaction.cursor().putmulti(rows)
            self._count += len(rows)
            known += keys
        return known

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete timers by their keys, ROWS_PER_TRANSACTION to a transaction."""
        for at in range(0, len(keys), ROWS_PER_TRANSACTION):
            with self._env.begin(write=True) as transaction:
                for key in keys[at : at + ROWS_PER_TRANSACTION]:
                    assert transaction.delete(key)

    def take_due(self, now_ms: int) -> list[tuple[bytes, bytes]]:
        """Remove and return up to ROWS_PER_TRANSACTION due timers, in one transaction."""
        limit, rows = _KEY.pack(now_ms + 1, 0), list[tuple[bytes, bytes]]()
        with self._env.begin(write=True) as transaction:
            cursor = transaction.cursor()
            there = cursor.first()
            while there and len(rows) < ROWS_PER_TRANSACTION:
                row = cursor.item()
                if not row[0] or row[0] >= limit:  # behind the last one lies an empty row
                    break
                rows.append(row)
                there = cursor.delete()
        return rows

    def close(self) -> None:
        """Close the file."""
        self._env.close()
