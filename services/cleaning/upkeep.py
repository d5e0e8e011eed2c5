"""Upkeep: the flush thread. It makes checkpoints, and files ahead of who needs them.

Before a checkpoint it cleans, behind one it removes what nobody needs any more: so nothing goes but
by what is durable. A full disk is waited out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from timerstore.errors import FlushFailedError, StoreAccessError, StoreFullError
from timerstore.jit.system import set_thread_name
from timerstore.services.cleaning.cleaning import Cleaner
from timerstore.services.cleaning.retention import Committed, Reach, Retention
from timerstore.services.damage.scrub import Scrub
from timerstore.services.durable.flush import Flusher
from timerstore.services.engine.engine import Engine
from timerstore.services.world.background import BackgroundThread, Flag
from timerstore.timelog.files.oserrors import store_error

log = logging.getLogger("timerstore")

_TICK_S: Final = 0.05
_IDLE_TICK_S: Final = 0.25
"""How often the thread looks up while nothing is appended: an idle store should cost nothing."""


class Upkeep:
    """Keeps one engine's files. `flush` may be called by any thread."""

    def __init__(
        self,
        engine: Engine,
        flusher: Flusher,
        committed: Callable[[], Committed],
        write_groups: Callable[[], object],
    ) -> None:
        """Ask `committed` for the groups' offsets, which `write_groups` makes durable."""
        self.engine, self.flusher, self._write_groups = engine, flusher, write_groups
        self.cleaner = Cleaner(engine, Reach(engine, committed))
        self.retention = Retention(engine, flusher)
        self.scrub = Scrub(engine)
        self._stop = Flag()
        self._thread: BackgroundThread | None = None

    def flush(self) -> None:
        """Write a checkpoint, with what is to be in it; remove what it gives up."""
        self.flusher.check_outside()
        self._prepare()
        self.flusher.flush()
        self.retention.run()

    def _prepare(self) -> None:
        """Do what the next checkpoint is to make durable: groups' offsets, and the floor."""
        self._write_groups()
        with suppress(StoreFullError):  # the flush goes on: it is what makes room
            self.cleaner.run(at_once=self.engine.clock.manual)

    def start(self) -> None:
        """Start the thread, and that of the key index."""
        thread = BackgroundThread("timerstore-flush", self._run, self._ended)
        thread.start()
        self._thread = thread
        self.engine.keys.start(self._ended)

    def stop(self) -> None:
        """Stop the threads, without a last flush."""
        self.engine.keys.stop()
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        set_thread_name("flush")
        engine, flusher = self.engine, self.flusher
        interval_s = engine.config.flush_interval_ms / 1000
        tick_s = nap_s = min(_TICK_S, interval_s)
        retry_s = max(tick_s, engine.precision_ms / 2000)  # as the services do
        last, seen_end = time.monotonic(), -1
        while not self._stop.wait(nap_s if flusher.waiting_for_space is None else retry_s):
            try:
                engine.disk.check_place()
            except StoreAccessError as e:
                flusher.fail(e)
                return
            end = engine.commitlog.end
            idle, seen_end = end == seen_end, end  # if nothing comes, nothing has to be made ahead
            nap_s = min(2 * nap_s, _IDLE_TICK_S, interval_s) if idle else tick_s
            full = _room_wanted(engine.prepare_ahead)
            full = _room_wanted(engine.keys.follow) or full
            full = _room_wanted(self.cleaner.go_on) or full
            due = flusher.waiting_for_space is not None or time.monotonic() - last >= interval_s
            if due:
                last = time.monotonic()
                changed = flusher.has_changed
                full = _room_wanted(self.flush if changed else self._prepare) or full
                if full is not None or not changed:
                    full = _room_wanted(self.retention.run) or full  # it is what makes room
            full = _room_wanted(self.scrub.run) or full
            flusher.wait_for_space(full)

    def _ended(self, error: BaseException) -> None:
        """Let the next call raise the exception that ended the thread, of any kind."""
        if isinstance(error, OSError):
            failed = FlushFailedError(f"{error}. Check the disk, then open the store again.")
            failed.__cause__ = error
            error = failed
        self.flusher.fail(error)


def _room_wanted(job: Callable[[], object]) -> StoreFullError | None:
    """Do a job; return the error if it wants room, or a descriptor, that is not there."""
    try:
        job()
    except StoreFullError as e:
        return e
    except OSError as e:
        error = store_error(e, e.filename or "a file")
        if not isinstance(error, StoreFullError):
            raise
        return error
    return None
