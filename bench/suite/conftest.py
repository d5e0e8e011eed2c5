"""Stores that stages work on, in memory where there is room."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import timerstore
from suite.rig import START_MS
from timerstore import Config, ManualClock, TimerStore

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2 << 30


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return an empty folder that goes; in memory, if that has room: then no disk is asked."""
    if not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _ROOM_BYTES:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=_MEMORY, prefix="timerstore-suite-") as path:
        yield Path(path)


@pytest.fixture
def store(folder: Path) -> Iterator[TimerStore]:
    """Return a store whose clock stands still."""
    config = Config(durability="process", retention_ms=0)
    with timerstore.open(folder / "store", config=config, clock=ManualClock(START_MS)) as opened:
        yield opened


@pytest.fixture
def running(folder: Path) -> Iterator[TimerStore]:
    """Return a store with its threads, as a program has it."""
    with timerstore.open(folder / "store", config=Config(durability="process")) as opened:
        opened.put_many([b"x"] * 100, delay_ms=1)  # what is loaded late is loaded now
        opened.pull("default", timeout=10).ack()
        yield opened
