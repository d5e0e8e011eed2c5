"""A small disk of its own for a test: a file with a file system in it, mounted."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DISK_BYTES = {"xfs": 300 << 20, "ext4": 96 << 20, "btrfs": 128 << 20, "tmpfs": 40 << 20}
"""XFS and btrfs make none that is smaller."""
REFUSED = (
    "only root can mount a loop device, with mkfs.xfs and mkfs.ext4: "
    "it is not shown that a full disk with large folios is an error"
)


def maker(kind: str) -> str | None:
    """Return the program that makes such a file system; None if it cannot be had here."""
    if os.geteuid() != 0:
        return None
    if kind == "tmpfs":
        return "/bin/true"
    return shutil.which(f"mkfs.{kind}", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")


@contextmanager
def mounted(folder: Path, kind: str, disk_bytes: int = 0) -> Iterator[Path]:
    """Mount an empty disk; skip the test where that is not allowed here."""
    image, mount_point, make = folder / f"{kind}.img", folder / kind, maker(kind)
    disk_bytes = disk_bytes or DISK_BYTES[kind]
    command: list[str | Path] = ["mount", "-o", "loop", image, mount_point]
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={disk_bytes}", "tmpfs", mount_point]
    if make is None:
        pytest.skip(REFUSED)
    mount_point.mkdir()
    with open(image, "wb") as file:
        file.truncate(disk_bytes)
    subprocess.run([make, "-q", image], check=True, capture_output=True)
    if subprocess.run(command, check=False, capture_output=True).returncode:
        image.unlink()
        pytest.skip(REFUSED)
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", "-l", mount_point], check=True, capture_output=True)
        image.unlink()


def fill(path: Path, left_bytes: int = 0) -> None:
    """Take all room that a disk has, but for so much, with a file at `path`."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:  # there is none for a name
        return
    try:
        for step in (1 << 20, 1 << 16, 1 << 12):
            while True:
                try:
                    os.posix_fallocate(fd, os.fstat(fd).st_size, step)
                except OSError:
                    break
        os.ftruncate(fd, max(0, os.fstat(fd).st_size - left_bytes))
        os.fsync(fd)
    finally:
        os.close(fd)
