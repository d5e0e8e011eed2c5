"""Where no descriptor is left, each call says so as an error of ours: nothing is lost."""

import errno
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.program import FILES, python
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from timerstore import FlushFailedError, StoreFullError, TimerStore
from timerstore.timelog.files.disk import Disk


@contextmanager
def none_left() -> Iterator[None]:
    """Let this process open no descriptor more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


CALLS: dict[str, Callable[[Disk, Path], object]] = {
    "read": lambda disk, path: disk.read(path / "file"),
    "names": lambda disk, path: disk.names(path),
    "open_file": lambda disk, path: disk.open_file(path / "file"),
    "create_mapped": lambda disk, path: disk.create_mapped(path / "new", 4096),
    "map_existing": lambda disk, path: disk.map_existing(path / "file", 4096),
    "make_folder": lambda disk, path: disk.make_folder(path / "folder"),
    "sync_folder": lambda disk, path: disk.sync_folder(path),
    "replace": lambda disk, path: disk.replace(path / "file", b"x"),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_opens_says_so(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    with none_left(), pytest.raises(StoreFullError, match="too many files are open"):
        CALLS[name](Disk(), tmp_path)
    CALLS[name](Disk(), tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("durability", ["process", "group"])
def test_a_put_to_a_new_topic(tmp_path: Path, durability: Any) -> None:
    config = replace(SMALL, durability=durability, flush_interval_ms=10)
    with TimerStore(tmp_path / "s", config=config) as store:
        store.put(b"before", topic="t0")
        refused = 0
        with none_left():
            for i in range(30):
                try:
                    store.put(b"%d" % i, topic=f"t{i}", key="k", delay_level=i % 2 or None)
                except (StoreFullError, FlushFailedError) as e:
                    refused += "too many files are open" in str(e)
        assert refused >= 29
        for i in range(30):
            store.put(b"after", topic=f"t{i}")
            bodies = list[bytes]()
            while b"after" not in bodies:
                bodies += store.pull(f"t{i}", timeout=5).bodies.to_pylist()
        assert store.count() == 0


def look_into_old_segments(path: Path) -> None:
    """Put for a second with none left, while cleaning wants to look into what lies before."""
    config = replace(SMALL, flush_interval_ms=10, retention_ms=1)
    with TimerStore(path, config=config) as store:
        for i in range(200):
            store.put(bytes(3_000), at_ms=store.core.clock.now_ms + (3_600_000 if i % 9 else 1))
        with none_left():
            until = time.monotonic() + 1
            while time.monotonic() < until:
                with suppress(StoreFullError):
                    store.put(bytes(3_000), at_ms=store.core.clock.now_ms)
        id = store.put(b"after", delay=timedelta(hours=1))
        store.flush()
        assert store.get(id) is not None
        wait_until(lambda: store.health().ok)  # the flush thread tries again


@pytest.mark.long
@pytest.mark.timeout(60)
def test_what_the_flush_thread_does_goes_on_later(tmp_path: Path) -> None:
    """Nothing is ended by that. In a process of its own, whose other threads need none either."""
    text = (
        "import sys; from pathlib import Path; sys.path.append(sys.argv[1]); "
        "from tests.test_no_descriptors import look_into_old_segments; "
        "look_into_old_segments(Path(sys.argv[2]))"
    )
    python("-c", text, FILES, tmp_path / "s", timeout_s=50)


def test_the_folder_of_a_new_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the log, and not durable, is said to be so; the next flush makes it durable."""
    with TimerStore(tmp_path / "s", config=replace(SMALL, durability="group")) as store:
        folder, opened = store.core.engine.commitlog.folder, os.open

        def refuse(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if str(path) == folder.name and flags & os.O_DIRECTORY:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
            return opened(path, flags, *rest, **named)

        monkeypatch.setattr(os, "open", refuse)
        put, failed = 0, None
        while failed is None:  # until one goes into the next segment
            try:
                store.put(b"x" * 10_000, topic="t")
                put += 1
            except FlushFailedError as e:
                failed = e
        assert "in the log" in str(failed)
        monkeypatch.undo()
        store.flush()
        store.put(b"last", topic="t")
        count = 0
        while count < put + 2:
            count += len(store.pull("t", timeout=5))
