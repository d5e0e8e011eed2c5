"""timerstore, SQLite, LMDB, RocksDB: within this process.

SQLite and LMDB are used as a careful program would: a write-ahead log, an index on the due time and
many rows a transaction; keys that begin with the due time, and the file written, not mapped for
writing, because there a full disk would be a SIGBUS.
"""

from __future__ import annotations

import sqlite3
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

import numpy as np

import timerstore
from peers.timers import Timers, load, now_ms
from timerstore import Config

_PULL_S = 0.001
AT_ONCE = 16_384
BENCH = "'.[bench]'"


class Ours(Timers):
    """timerstore."""

    rows = AT_ONCE

    def __init__(self, folder: Path, synced: bool) -> None:
        config = Config(durability="group" if synced else "process")
        self._store = timerstore.open(folder / "store", config=config)

    def put_one(self, due_ms: int, body: bytes) -> None:
        self._store.put(body, at_ms=due_ms)

    def put_rows(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> Sequence[str]:
        return self._store.put_many(bodies, at_ms=np.array(due_ms, np.int64))

    def cancel_rows(self, known: Sequence[str]) -> None:
        assert np.all(self._store.cancel_many(known))

    def take_due(self) -> list[bytes]:
        batch = self._store.pull("default", max_count=AT_ONCE, timeout=_PULL_S)
        batch.ack()
        bodies: list[bytes] = batch.bodies.to_pylist()
        return bodies

    def close(self) -> None:
        self._store.close()


_TABLE = """
CREATE TABLE IF NOT EXISTS timers (
  id INTEGER PRIMARY KEY, topic TEXT NOT NULL, due_ms INTEGER NOT NULL, body BLOB NOT NULL)
"""
_PUT = "INSERT INTO timers (topic, due_ms, body) VALUES ('default', ?, ?)"
_TAKE = f"""
DELETE FROM timers WHERE id IN (
  SELECT id FROM timers WHERE due_ms <= ? ORDER BY due_ms LIMIT {Timers.rows})
RETURNING body
"""


class Sqlite(Timers):
    """A polled table."""

    def __init__(self, folder: Path, synced: bool) -> None:
        self._folder, self._synced = folder, synced
        self._db = sqlite3.connect(folder / "sqlite", isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
        self._db.execute(_TABLE)
        self._db.execute("CREATE INDEX IF NOT EXISTS by_due ON timers (due_ms)")

    def another(self) -> AbstractContextManager[Timers]:
        return closing(Sqlite(self._folder, self._synced))

    def put_one(self, due_ms: int, body: bytes) -> None:
        self._db.execute(_PUT, (due_ms, body))

    def put_rows(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        self._many(_PUT, zip(due_ms, bodies, strict=True))

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[int]:
        """Insert rows; their keys follow each other because nobody else inserts."""
        self.put_many(due_ms, bodies)
        last: int = self._db.execute("SELECT max(id) FROM timers").fetchone()[0]
        return list(range(last + 1 - len(bodies), last + 1))

    def cancel_rows(self, known: Sequence[int]) -> None:
        self._many("DELETE FROM timers WHERE id = ?", ((row,) for row in known))

    def _many(self, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany(statement, rows)
        self._db.execute("COMMIT")

    def take_due(self) -> list[bytes]:
        return [body for (body,) in self._db.execute(_TAKE, (now_ms(),))]

    def close(self) -> None:
        self._db.close()


_KEY = struct.Struct(">QQ")
_TOPIC = b"default\0"
_MAP_BYTES = 64 << 30  # an upper limit of the file, not its size


class Lmdb(Timers):
    """An ordered map in one file: ordered by due time, then number."""

    rows = AT_ONCE  # twice as fast as a thousand

    def __init__(self, folder: Path, synced: bool) -> None:
        lmdb = load("lmdb", BENCH)
        self._env = lmdb.open(str(folder / "lmdb"), map_size=_MAP_BYTES, sync=synced)
        self._count = time.time_ns()  # no number that was there when it was open before

    def put_rows(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[bytes]:
        keys = list(map(_KEY.pack, due_ms, range(self._count, self._count + len(bodies))))
        self._count += len(bodies)
        rows = [(key, _TOPIC + body) for key, body in zip(keys, bodies, strict=True)]
        rows.sort()  # neighbours share pages of the tree
        with self._env.begin(write=True) as transaction:
            transaction.cursor().putmulti(rows)
        return keys

    def cancel_rows(self, known: Sequence[bytes]) -> None:
        with self._env.begin(write=True) as transaction:
            for key in known:
                assert transaction.delete(key)

    def take_due(self) -> list[bytes]:
        limit, bodies = _KEY.pack(now_ms() + 1, 0), list[bytes]()
        with self._env.begin(write=True) as transaction:
            cursor = transaction.cursor()
            there = cursor.first()
            while there and len(bodies) < self.rows:
                key, row = cursor.item()
                if not key or key >= limit:  # behind the last one lies an empty row
                    break
                bodies.append(row[len(_TOPIC) :])
                there = cursor.delete()
        return bodies

    def close(self) -> None:
        self._env.close()


class RocksDb(Timers):
    """A tree of sorted runs, by the package rocksdict; raw bytes, one batch a transaction."""

    rows = AT_ONCE

    def __init__(self, folder: Path, synced: bool) -> None:
        self._rocks = load("rocksdict", "rocksdict")
        self._db = self._rocks.Rdict(str(folder / "rocks"), self._rocks.Options(raw_mode=True))
        self._options = self._rocks.WriteOptions()
        self._options.sync = synced
        self._db.set_write_options(self._options)
        self._count = time.time_ns()  # no number that was there when it was open before
        self._first = b""

    def put_one(self, due_ms: int, body: bytes) -> None:
        self._first = min(self._first, _KEY.pack(due_ms, 0))
        self._db[_KEY.pack(due_ms, self._count)] = body
        self._count += 1

    def put_rows(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[bytes]:
        known, batch = list[bytes](), self._rocks.WriteBatch(raw_mode=True)
        for due, body in zip(due_ms, bodies, strict=True):
            known.append(_KEY.pack(due, self._count))
            batch.put(known[-1], body)
            self._count += 1
        self._first = min(self._first, _KEY.pack(min(due_ms), 0))
        self._db.write(batch, self._options)
        return known

    def cancel_rows(self, known: Sequence[bytes]) -> None:
        batch = self._rocks.WriteBatch(raw_mode=True)
        for key in known:
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
        self._db.close()
