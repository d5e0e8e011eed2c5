"""A small disk of its own for a test: a file with a file system in it, mounted."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DISK_BYTES = {"xfs": 300 << 20, "ext4": 96 << 20, "tmpfs": 40 << 20}
"""XFS makes none that is smaller."""
REFUSED = (
    "only root can mount a loop device, with mkfs.xfs and mkfs.ext4: "
    "it is not shown that a full disk with large folios is an error"
)


@contextmanager
def mounted(folder: Path, kind: str) -> Iterator[Path]:
    """Mount an empty disk; skip the test where that is not allowed here."""
    image, mount_point = folder / f"{kind}.img", folder / kind
    if kind == "tmpfs":
        make = "/bin/true"
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES[kind]}", "tmpfs", mount_point]
    else:
        command = ["mount", "-o", "loop", image, mount_point]
        make = shutil.which(f"mkfs.{kind}", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if os.geteuid() != 0 or make is None:
        pytest.skip(REFUSED)
    mount_point.mkdir()
    with open(image, "wb") as file:
        file.truncate(DISK_BYTES[kind])
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
