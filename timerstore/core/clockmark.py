"""Which kind of clock a store's timers go by: a manual one's store has a mark.

It is made if nothing is pending, and goes, durably, as soon as the system clock is used. So a
store without it, a broker's for one, has real timers. To make it costs no fsync: if a power cut
loses it, a manual clock is refused once too often.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from timerstore.errors import TimerStoreError
from timerstore.services.engine.engine import Engine
from timerstore.timelog.files.smallfile import At, by_path, read_head

CLOCK_FILE: Final = "config/manualclock"
_MARK: Final = b"The timers of this store are a ManualClock's.\n"


def is_manual(path: Path, at: At = by_path) -> bool:
    """Tell whether only manual clocks were used since nothing was pending."""
    try:
        return read_head(path / CLOCK_FILE, len(_MARK) + 1, at) == _MARK
    except (OSError, TimerStoreError):
        return False


def note_clock(engine: Engine) -> None:
    """Note which kind of clock an engine that was recovered goes on with."""
    path = engine.path / CLOCK_FILE
    if not engine.disk.writes:
        return
    if not engine.clock.manual:
        remove_clock_mark(engine)
    elif engine.pending_count() == 0 and not is_manual(engine.path, engine.disk.at):
        fd = engine.disk.open_file(path, create=True)
        try:
            engine.disk.write_at(fd, _MARK, 0, path)
        finally:
            os.close(fd)


def remove_clock_mark(engine: Engine) -> None:
    """Let the timers be real ones from now on."""
    if engine.disk.exists(engine.path / CLOCK_FILE):
        engine.disk.remove(engine.path / CLOCK_FILE)
        engine.disk.sync_folder(engine.path / "config")
