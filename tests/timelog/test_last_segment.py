"""What happens at a log's end while other threads append, or other processes read."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.small_store import SMALL
from tests.timelog.test_segments import SIZE, filled
from timerstore import TimerStore
from timerstore.jit.locks import new_lock
from timerstore.jit.mapping import is_lent
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files import reader_end as reader_end_module
from timerstore.timelog.files.disk import Disk, MappedFile
from timerstore.timelog.files.folders import FolderShare
from timerstore.timelog.files.reader_end import Steady
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.files.smallfile import At
from timerstore.timelog.reading.reader import StoreReader


class _MadeMeanwhile(QuietDisk):
    """While a file is removed, another thread asks for its segment."""

    log: SegmentedFile
    maker: threading.Thread | None = None

    def remove(self, path: Path) -> None:
        """Have it asked for, then remove it."""
        self.maker = threading.Thread(target=self.log.ensure, args=(int(path.name) // SIZE,))
        self.maker.start()
        self.maker.join(0.1)
        super().remove(path)


def test_a_segment_that_is_made_while_the_last_one_goes_stays(tmp_path: Path) -> None:
    disk = _MadeMeanwhile()
    log = disk.log = filled(tmp_path, disk)
    log.end, number = 2 * SIZE + 10, log.numbers[-1]
    assert log.drop_last(0, new_lock(), 0)
    assert disk.maker is not None
    disk.maker.join(60)
    assert log.numbers[-1] == number
    log.existing(number).view[0] = 7
    assert log.path(number).read_bytes()[0] == 7
    log.close()


def test_the_last_segment_stays_while_somebody_reads(tmp_path: Path) -> None:
    log, lock = filled(tmp_path), new_lock()
    log.end, share = 2 * SIZE + 10, FolderShare(log.folder)
    assert not log.drop_last(0, lock, 0)
    assert log.numbers == [0, 1, 2, 3, 4]
    del share
    assert log.drop_last(0, lock, 0)
    assert log.numbers == [0, 1, 2, 3]


@pytest.mark.whole
def test_a_reader_sees_what_is_written_where_a_segment_was_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits for the checkpoint, the last segment is not wanted, then is made again."""
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        log, lock = store.core.engine.commitlog, store.core.engine.world.append_lock
        last = log.end // log.segment_bytes + 2
        for number in (last - 1, last):
            log.ensure(number)

        def steady(path: Path, at: At) -> Steady:
            log.drop_last(1, lock, 0)
            while log.end < (last + 1) * log.segment_bytes:
                store.put(b"x" * 500, topic="t", at_ms=4_000_000_000_000)
            store.flush()
            return Steady(path, at)

        monkeypatch.setattr(reader_end_module, "Steady", steady)
        reader = StoreReader(store.path, np.zeros(0, np.int64))
        assert reader.checkpoint is not None
        scanned = reader.scan(stop=reader.checkpoint.commitlog_flushed)
        assert sum(len(rows) for rows in scanned) == store.count()
        assert scanned.end == reader.checkpoint.commitlog_flushed


class _MovedOn(SegmentedFile):
    """Before it makes a segment, another thread appends, and removes the first segments."""

    mover: threading.Thread | None = None

    def ensure(self, number: int) -> MappedFile:
        """Let the other thread go on, as far as it can."""
        if self.mover is not None and self.mover.ident is None:
            self.mover.start()
            self.mover.join(0.1)
        return super().ensure(number)

    def move_on(self) -> None:
        """Append four segments, and remove what lies before the end's."""
        with self.lock.guard():
            for number in range(self.end // SIZE, self.end // SIZE + 5):
                self.ensure(number)
            self.end += 4 * SIZE
            self.detach_before(self.end)
        self.remove_detached()


@pytest.mark.parametrize(
    "make",
    [
        SegmentedFile.prepare_next,
        lambda log: log.prepare_end(100),
        lambda log: log.make_room(2 * SIZE + 700),
    ],
)
def test_a_segment_that_was_removed_is_not_made_again(
    make: Callable[[SegmentedFile], None], tmp_path: Path
) -> None:
    """An append goes on while another thread is about to make what that needs."""
    log = _MovedOn(QuietDisk(), tmp_path / "log", SIZE)
    for number in range(3):
        log.ensure(number)
    log.end = 2 * SIZE + 600
    log.mover = threading.Thread(target=log.move_on)
    make(log)
    log.mover.join(60)
    assert log.numbers == [6]
    assert [path.name for path in log.folder.iterdir()] == [log.path(6).name]
    log.close()


def test_zeros_that_a_kernel_may_be_looking_at_are_kept(tmp_path: Path) -> None:
    log = SegmentedFile(Disk(), tmp_path / "log", SIZE)
    for number in (0, 2):
        log.ensure(number)
    zeros = log.readable(1).view
    log.ensure(1)
    assert any(each.view is zeros for each in log._epochs.now.held)  # type: ignore[attr-defined]
    assert is_lent(log.shared_table.lent, 1, log.existing(1).view)
    log.close()
