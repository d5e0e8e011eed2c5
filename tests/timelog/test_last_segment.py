"""The last segment goes if it is not wanted, also while an append asks for it."""

import threading
from pathlib import Path

from tests.models.quiet_disk import QuietDisk
from tests.timelog.test_segments import SIZE, filled
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.jit.locks import SpinLock


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
    assert log.drop_last(0, SpinLock().words, 0)
    assert disk.maker is not None
    disk.maker.join(60)
    assert log.numbers[-1] == number
    log.existing(number).view[0] = 7
    assert log.path(number).read_bytes()[0] == 7
    log.close()
