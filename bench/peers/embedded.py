"""timerstore, SQLite, LMDB, RocksDB, a plain file: within this process."""

from __future__ import annotations

import importlib
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bare import MESSAGE_BYTES, BareFile
from peer import SqliteTimers
from peer_lmdb import LmdbTimers

import timerstore
from peers.timers import MissingError, Timers
from timerstore import Config

_KEY = struct.Struct(">QQ")
_PULL_S = 0.001
AT_ONCE = 16_384


def now_ms() -> int:
    """Return the time, epoch milliseconds."""
    return time.time_ns() // 1_000_000


class InProcess:
    """What keepers within this process have in common: threads share one, no server is there."""

    def another(self) -> Timers:
        """Return the same; `close` of what this returns does nothing."""
        return Borrowed(self)  # type: ignore[arg-type]

    def servers(self) -> Sequence[int]:
        """Return none."""
        return ()


class Borrowed:
    """Timers that somebody else closes."""

    def __init__(self, timers: Timers) -> None:
        self.put_one, self.put_many, self.put_known = (
            timers.put_one,
            timers.put_many,
            timers.put_known,
        )
        self.cancel_many, self.take_due = timers.cancel_many, timers.take_due
        self.another, self.servers = timers.another, timers.servers

    def close(self) -> None:
        """Leave it open."""


class Ours(InProcess):
    """timerstore."""

    def __init__(self, folder: Path, synced: bool) -> None:
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

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[str]:
        """Put timers, lists of AT_ONCE; return their ids."""
        ids = list[str]()
        for at in range(0, len(bodies), AT_ONCE):
            part = slice(at, at + AT_ONCE)
            ids += self._store.put_many(bodies[part], at_ms=np.array(due_ms[part], np.int64))
        return ids

    def cancel_many(self, known: Sequence[str]) -> None:
        """Cancel lists of AT_ONCE."""
        for at in range(0, len(known), AT_ONCE):
            assert np.all(self._store.cancel_many(known[at : at + AT_ONCE]))

    def take_due(self) -> list[bytes]:
        """Pull and acknowledge."""
        batch = self._store.pull("default", max_count=AT_ONCE, timeout=_PULL_S)
        batch.ack()
        bodies: list[bytes] = batch.bodies.to_pylist()
        return bodies

    def close(self) -> None:
        """Close the store."""
        self._store.close()


class PlainFile(InProcess):
    """No keeper: a file to which bodies are appended, which is what the disk allows."""

    def __init__(self, folder: Path, synced: bool) -> None:
        self._synced, self._one = synced, BareFile(folder / "one")
        self._fd = os.open(folder / "many", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def put_one(self, due_ms: int, body: bytes) -> None:
        """Append as many bytes as timerstore does for a body of 100."""
        self._one.append(synced=self._synced)

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Append as many for each, AT_ONCE in a write."""
        for at in range(0, len(bodies), AT_ONCE):
            part = bytes(MESSAGE_BYTES * len(bodies[at : at + AT_ONCE]))
            assert os.write(self._fd, part) == len(part)
            if self._synced:
                os.fdatasync(self._fd)

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[None]:
        """Refuse: nothing can be cancelled."""
        raise NotImplementedError

    def cancel_many(self, known: Sequence[None]) -> None:
        """Refuse."""
        raise NotImplementedError

    def take_due(self) -> list[bytes]:
        """Return nothing."""
        return []

    def close(self) -> None:
        """Close the files."""
        self._one.close()
        os.close(self._fd)


class Sqlite:
    """A polled table."""

    def __init__(self, folder: Path, synced: bool) -> None:
        self._use(SqliteTimers(folder / "db", synchronous="FULL" if synced else "NORMAL"))

    def _use(self, timers: SqliteTimers) -> None:
        self._timers = timers
        self.put_one, self.put_many = timers.put_one, timers.put_many
        self.put_known, self.cancel_many = timers.put_known, timers.delete_many
        self.close = timers.close

    def another(self) -> Timers:
        """Connect once more."""
        made = Sqlite.__new__(Sqlite)
        made._use(self._timers.another())
        return made

    def servers(self) -> Sequence[int]:
        """Return none."""
        return ()

    def take_due(self) -> list[bytes]:
        """Delete rows that are due."""
        return [body for _, _, body in self._timers.take_due(now_ms())]


class Lmdb(InProcess):
    """An ordered map in one file."""

    def __init__(self, folder: Path, synced: bool) -> None:
        try:
            self._timers = LmdbTimers(folder / "lmdb", synced=synced)
        except ModuleNotFoundError as e:
            raise MissingError("lmdb is missing: pip install '.[bench]'") from e
        self.put_many, self.close = self._timers.put_many, self._timers.close
        self.put_known, self.cancel_many = self._timers.put_known, self._timers.delete_many

    def put_one(self, due_ms: int, body: bytes) -> None:
        """Put a timer in a transaction of its own."""
        self._timers.put_many([due_ms], [body])

    def take_due(self) -> list[bytes]:
        """Delete what is due."""
        return [row.partition(b"\0")[2] for _, row in self._timers.take_due(now_ms())]


class RocksDb(InProcess):
    """A tree of sorted runs, by the package rocksdict; raw bytes, one batch a transaction."""

    def __init__(self, folder: Path, synced: bool) -> None:
        try:
            self._rocks: Any = importlib.import_module("rocksdict")
        except ModuleNotFoundError as e:
            raise MissingError("rocksdict is missing: pip install rocksdict") from e
        self._db = self._rocks.Rdict(str(folder / "rocks"), self._rocks.Options(raw_mode=True))
        self._options = self._rocks.WriteOptions()
        self._options.sync = synced
        self._db.set_write_options(self._options)
        self._count = time.time_ns()  # no number that was there when it was open before
        self._first = b""

    def put_one(self, due_ms: int, body: bytes) -> None:
        """Put a timer."""
        self._first = min(self._first, _KEY.pack(due_ms, 0))
        self._db[_KEY.pack(due_ms, self._count)] = body
        self._count += 1

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Put timers."""
        self.put_known(due_ms, bodies)

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[bytes]:
        """Put timers, batches of AT_ONCE; return their keys."""
        known = list[bytes]()
        for at in range(0, len(bodies), AT_ONCE):
            batch = self._rocks.WriteBatch(raw_mode=True)
            for due, body in zip(due_ms[at : at + AT_ONCE], bodies[at : at + AT_ONCE], strict=True):
                known.append(_KEY.pack(due, self._count))
                batch.put(known[-1], body)
                self._count += 1
            self._first = min(self._first, _KEY.pack(min(due_ms[at : at + AT_ONCE]), 0))
            self._db.write(batch, self._options)
        return known

    def cancel_many(self, known: Sequence[bytes]) -> None:
        """Delete keys, batches of AT_ONCE."""
        for at in range(0, len(known), AT_ONCE):
            batch = self._rocks.WriteBatch(raw_mode=True)
            for key in known[at : at + AT_ONCE]:
                batch.delete(key)
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
