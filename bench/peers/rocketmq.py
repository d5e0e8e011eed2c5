"""RocketMQ 5.3.3: its own timer, in its own JVM, without its network.

The JVM is that of the tests of `tests/interop`; it is asked by lines, some thousand timers in each.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.timers import MissingError, Timers, body_of, now_ms, number_of

_TESTS = Path(__file__).resolve().parents[2] / "tests" / "interop"
_TOPIC, _WARM_TOPIC = "bench", "warm"
_OPTIONS = ("-Xms1g", "-Xmx4g", "-XX:+UseG1GC", "-XX:+UseStringDeduplication")
_SETTINGS = {
    "mappedFileSizeCommitLog": 256 << 20,
    "timerPrecisionMs": 100,
    "timerMaxDelaySec": 31_536_000,
    "maxTransferCountOnMessageInMemory": Timers.rows,
    "maxTransferCountOnMessageInDisk": Timers.rows,
    "maxTransferBytesOnMessageInMemory": 32 << 20,
    "maxTransferBytesOnMessageInDisk": 32 << 20,
    "cleanFileForciblyEnable": "false",
}
_WARM_COUNT = 50_000
_PATIENCE_S = 60


def load_brokers() -> Any:
    """Return the module of the tests that runs brokers."""
    sys.path.append(str(_TESTS))
    return importlib.import_module("brokers")


class RocketMq(Timers):
    """A broker on a store of its own; there is one pipe to its JVM."""

    def __init__(self, folder: Path, synced: bool) -> None:
        """Start it; if its store is new, let it play some timers, so that the JVM compiles."""
        brokers = load_brokers()
        self._store, self._lock = folder / "store", threading.Lock()
        is_new, home = not self._store.exists(), folder / "home"
        shutil.rmtree(home, ignore_errors=True)
        self._store.mkdir(exist_ok=True)
        try:
            self._brokers = brokers.Brokers(home, _OPTIONS)
        except brokers.NoRocketMQError as e:
            raise MissingError(str(e)) from e
        self.pids = [self._brokers.process.pid]
        try:
            flush = "SYNC_FLUSH" if synced else "ASYNC_FLUSH"
            self._brokers.start(self._store, flushDiskType=flush, **_SETTINGS)
            if is_new:
                self._warm()
        except BaseException:
            self._brokers.kill()
            raise

    def _warm(self) -> None:
        at_ms, stop_s = now_ms() + 2_000, time.monotonic() + _PATIENCE_S
        for first in range(0, _WARM_COUNT, self.rows):
            bodies = [body_of(number) for number in range(first, first + self.rows)]
            self._put([at_ms] * self.rows, bodies, _WARM_TOPIC)
        left = _WARM_COUNT
        while left:
            left -= len(self._due(_WARM_TOPIC))
            assert time.monotonic() < stop_s, f"RocketMQ did not fire {left:,} timers"

    def _ask(self, *words: object) -> list[str]:
        with self._lock:
            answer: list[str] = self._brokers.ask(*words)
        return answer

    def _put(self, due_ms: Sequence[int], bodies: Sequence[bytes], topic: str) -> None:
        words = list[object]()
        for due, body in zip(due_ms, bodies, strict=True):
            words += (due, number_of(body), body.decode())
        self._ask("timers", self._store, topic, *words)

    def put_rows(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[tuple[int, int]]:
        """Put timers; they are known by due times and keys."""
        self._put(due_ms, bodies, _TOPIC)
        return list(zip(due_ms, map(number_of, bodies), strict=True))

    def cancel_rows(self, known: Sequence[tuple[int, int]]) -> None:
        """Put a delete for each, as RocketMQ's recall does: for the millisecond behind it."""
        words = [word for due_ms, key in known for word in (due_ms + 1, key)]
        self._ask("deletes", self._store, _TOPIC, *words)

    def take_due(self) -> list[bytes]:
        """Read on in the topic's queue."""
        return self._due(_TOPIC)

    def _due(self, topic: str) -> list[bytes]:
        answer = self._ask("due", self._store, topic, self.rows)
        return [body.encode() for body in answer if body]

    def close(self) -> None:
        """Kill the JVM: stopping the broker takes ten seconds and more."""
        self._brokers.kill()
