"""A disk of so many bytes a second: a file with ext4 in it, mounted, with Linux's own throttle."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
_PATH = f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin"


def missing() -> str | None:
    """Say why there can be no slow disk here, or None."""
    if os.geteuid() != 0:
        return "only root can mount a throttled disk"
    if shutil.which("mkfs.ext4", path=_PATH) is None or shutil.which("losetup", path=_PATH) is None:
        return "mkfs.ext4 or losetup is missing: there is no throttled disk"
    if not THROTTLE.exists():
        return "this kernel has no blkio throttle: there is no throttled disk"
    return None


@contextmanager
def slow_disk(folder: Path, size_bytes: int, bytes_per_second: int) -> Iterator[Path]:
    """Mount an empty disk below a folder; it goes afterwards, with its throttle."""
    image, mount_point = folder / "slow.img", folder / "slow"
    mount_point.mkdir()
    with open(image, "wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", str(image))
    _run("mount", "-o", "loop", str(image), str(mount_point))
    device = ""
    try:
        name = Path(_run("losetup", "-j", str(image)).partition(":")[0]).name
        device = Path(f"/sys/block/{name}/dev").read_text().strip()
        THROTTLE.write_text(f"{device} {bytes_per_second}")
        yield mount_point
    finally:
        if device:
            THROTTLE.write_text(f"{device} 0")
        _run("umount", "-l", str(mount_point))
        image.unlink()


def _run(*command: str) -> str:
    path = shutil.which(command[0], path=_PATH)
    assert path is not None, f"{command[0]} is missing"
    return subprocess.run(
        [path, *command[1:]], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
