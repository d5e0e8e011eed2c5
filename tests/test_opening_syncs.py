"""Opening a store of very many small files: what is durable already is not synced again."""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.small_store import SMALL
from timerstore import Config, TimerStore, Tuning
from timerstore.timelog.files.disk import Disk

pytestmark = pytest.mark.timeout(120)
SOON_MS = 3_600_000
MANY = replace(
    SMALL,
    tuning=Tuning(
        commitlog_segment_bytes=1 << 14,
        consumequeue_segment_bytes=200,
        timerlog_segment_bytes=520,
    ),
)


class Counting(Disk):
    """A disk that counts syncs by the folder of the file."""

    def __init__(self) -> None:
        self.syncs = Counter[str]()

    def event(self, kind: str, path: Path) -> None:
        if kind == "sync" and path.name.isdigit():
            self.syncs[path.parent.name] += 1


def files_of(path: Path) -> int:
    return sum(each.name.isdigit() and each.is_file() for each in path.rglob("*"))


def opened(path: Path, disk: Disk, config: Config = MANY) -> TimerStore:
    return TimerStore(path, config=config, disk=disk)


@pytest.mark.parametrize("end", ["close", "kill"])
def test_only_what_is_not_durable_is_synced(tmp_path: Path, end: str) -> None:
    """A segment that was only read is let go without a sync, after a checkpoint has covered it."""
    count, now_ms = 1_500, time.time_ns() // 10**6
    with opened(tmp_path / "s", Disk()) as store:
        times = [now_ms + SOON_MS + 10 * i for i in range(count)]
        store.put_many([b"x"] * count, topic="a", at_ms=times)
        store.put_many([b"x"] * 200, topic="b")  # these fire
        while store.stats().fired_count < 200 or store.stats().unlinked_age_ms:
            time.sleep(0.01)
        store.flush()
        if end == "kill":
            store.abandon()
    disk = Counting()
    with opened(tmp_path / "s", disk) as store:
        assert files_of(tmp_path / "s") > 300
        assert store.core.findings.clean == (end == "close")
        assert store.count() == count
        assert len(list(store.pending())) == count
        assert len(store.pull("b", max_count=500, timeout=10)) == 200
        store.stats()
        assert disk.syncs.total() < 10, disk.syncs


def test_what_is_written_into_an_old_segment_is_synced(tmp_path: Path) -> None:
    """A unit that is written again lies in a segment that was durable when the store was opened."""
    disk = Counting()
    with opened(tmp_path / "s", Disk()) as store:
        store.put_many([b"x"] * 1_000, delay_ms=SOON_MS)
    with opened(tmp_path / "s", disk) as store:
        log = store.core.engine.timerlog
        log.reserve(520, 540)
        for expected in (1, 1):  # the second time it was only read
            log.existing(1)
            while 1 in log._mapped:  # another thread may be at work there
                log.retire(1)
            assert disk.syncs["timerlog"] == expected
