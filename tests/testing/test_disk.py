"""A disk that can lose its power keeps what was synced, whoever syncs beside."""

import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from timerstore.testing import PowerDisk


def test_what_was_synced_stays(tmp_path: Path) -> None:
    """While the system writes pages back, and others sync."""
    root, length = tmp_path / "s", 1 << 16
    root.mkdir()
    disk = PowerDisk(root, rnd=random.Random(1))
    path = root / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)

    def write(place: int) -> int:
        lost = 0
        for number in range(1, 200):
            data = number.to_bytes(2, "big")
            os.pwrite(fd, data, place * (length // 4))
            disk.sync(fd, path)
            lost += disk.synced[path][place * (length // 4) :][:2] != data
        return lost

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(4) as pool:
        lost = sum(pool.map(write, range(4)))
    sys.setswitchinterval(before)
    assert lost == 0
    os.close(fd)
    left = disk.cut(tmp_path / "left")
    assert left[tmp_path / "left" / "file"] == path.read_bytes()
