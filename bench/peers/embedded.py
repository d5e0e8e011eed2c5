"""timerstore, SQLite, LMDB, RocksDB: keepers of timers within this process."""

from __future__ import annotations

import importlib
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from peer import SqliteTimers
from peer_lmdb import LmdbTimers

import timerstore
from peers.timers import MissingError
from timerstore import Config

_KEY = struct.Struct(">QQ")
_PULL_S = 0.001
AT_ONCE = 16_384


def now_ms() -> int:
    """Return the time, epoch milliseconds."""
    return time.time_ns() // 1_000_000


class Ours:
    """timerstore."""

    def __init__(self, folder: Path, synced: bool) -> None:
        """Open a store."""
        config = Config(durability="group" if synced else "process")
        self._store = timerstore.open(folder / "store", config=config)

    def put_one(self, due_ms: int, body: bytes) -> None:
        """Put a timer."""
        self._store.put(body, at_ms=due_ms)

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Put timers, lists of AT_ONCE."""
        for at in range(0, len(bodies), AT_ONCE):
            part = slice(at, at + AT_ONCE)
            self._store.put_many(bodies[part], at_ms=np.array(due_ms[part], np.int64))

    def take_due(self) -> list[bytes]:
        """Pull and acknowledge."""
        batch = self._store.pull("default", max_count=AT_ONCE, timeout=_PULL_S)
        batch.ack()
        bodies: list[bytes] = batch.bodies.to_pylist()
        return bodies

    def close(self) -> None:
        """Close the store."""
        self._store.close()


class Sqlite:
    """A polled table."""

    def __init__(self, folder: Path, synced: bool) -> None:
        """Make the table."""
        self._timers = SqliteTimers(folder / "db", synchronous="FULL" if synced else "NORMAL")
        self.put_one, self.put_many = self._timers.put_one, self._timers.put_many
        self.close = self._timers.close

    def take_due(self) -> list[bytes]:
        """Delete rows that are due."""
        return [body for _, _, body in self._timers.take_due(now_ms())]


class Lmdb:
    """An ordered map in one file."""

    def __init__(self, folder: Path, synced: bool) -> None:
        """Make the file."""
        try:
            self._timers = LmdbTimers(folder / "lmdb", synced=synced)
        except ModuleNotFoundError as e:
            raise MissingError("lmdb is missing: pip install 'timerstore[bench]'") from e
        self.put_many, self.close = self._timers.put_many, self._timers.close

    def put_one(self, due_ms: int, body: bytes) -> None:
        """Put a timer in a transaction of its own."""
        self._timers.put_many([due_ms], [body])

    def take_due(self) -> list[bytes]:
        """Delete what is due."""
        return [row.partition(b"\0")[2] for _, row in self._timers.take_due(now_ms())]


class RocksDb:
    """A tree of sorted runs, by the package rocksdict; raw bytes, one batch a transaction."""

    def __init__(self, folder: Path, synced: bool) -> None:
        """Open it."""
        try:
            self._rocks: Any = importlib.import_module("rocksdict")
        except ModuleNotFoundError as e:
            raise MissingError("rocksdict is missing: pip install rocksdict") from e
        self._db = self._rocks.Rdict(str(folder / "rocks"), self._rocks.Options(raw_mode=True))
        self._options = self._rocks.WriteOptions()
        self._options.sync = synced
        self._db.set_write_options(self._options)
        self._count = 0
        self._first = b""

    def put_one(self, due_ms: int, body: bytes) -> None:
        """Put a timer."""
        self._first = min(self._first, _KEY.pack(due_ms, 0))
        self._db[_KEY.pack(due_ms, self._count)] = body
        self._count += 1

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Put timers, batches of AT_ONCE."""
        for at in range(0, len(bodies), AT_ONCE):
            batch = self._rocks.WriteBatch(raw_mode=True)
            for due, body in zip(due_ms[at : at + AT_ONCE], bodies[at : at + AT_ONCE], strict=True):
                batch.put(_KEY.pack(due, self._count), body)
                self._count += 1
            self._first = min(self._first, _KEY.pack(min(due_ms[at : at + AT_ONCE]), 0))
            self._db.write(batch, self._options)

    def take_due(self) -> list[bytes]:
        """Read from the last place on; delete what is due in one batch."""
        limit, bodies = _KEY.pack(now_ms() + 1, 0), list[bytes]()
        batch, entry = self._rocks.WriteBatch(raw_mode=True), self._db.iter()
        entry.seek(self._first)  # what was deleted before would be passed again
        while entry.valid() and len(bodies) < AT_ONCE and (key := entry.key()) < limit:
            bodies.append(entry.value())
            batch.delete(key)
            self._first = key
            entry.next()
        if bodies:
            self._db.write(batch, self._options)
        return bodies

    def close(self) -> None:
        """Close it."""
        self._db.close()
