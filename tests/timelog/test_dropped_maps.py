"""What the last sync of a map that is dropped was told, every later flush is told."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.timelog.test_segments import SIZE, filled
from timerstore.errors import FlushFailedError
from timerstore.timelog.files.disk import Disk

pytestmark = pytest.mark.on_disk


class ToldOnce(Disk):
    """Its first sync takes a while, and fails; later ones succeed, as Linux has it."""

    def __init__(self) -> None:
        self.began, self.again, self.goes_on = Event(), Event(), Event()

    def event(self, kind: str, path: Path) -> None:
        """Fail once."""
        if kind == "sync" and self.began.is_set():
            self.again.set()
        elif kind == "sync":
            self.began.set()
            assert self.goes_on.wait(30)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def test_a_flush_is_told_what_a_dropped_map_failed_with_meanwhile(tmp_path: Path) -> None:
    disk, told = ToldOnce(), list[BaseException]()
    log = filled(tmp_path / "log", disk)

    def play(work: Callable[[], object]) -> Thread:
        def run() -> None:
            try:
                work()
            except FlushFailedError as e:
                told.append(e)

        thread = Thread(target=run, daemon=True)
        thread.start()
        return thread

    drops = play(lambda: log.retire(0))
    assert disk.began.wait(30)
    flushes = play(lambda: log.flush(0, SIZE))
    assert disk.again.wait(30)
    flushes.join(0.1)  # it must not end before the other is told
    disk.goes_on.set()
    for thread in (drops, flushes):
        thread.join(30)
    assert len(told) == 2 and log.durable_end == 0
    with pytest.raises(FlushFailedError):
        log.flush(0, 0)
