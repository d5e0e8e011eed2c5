"""Copies a store's folder, hole for hole: a wheel is mostly hole."""

import os
import shutil
import tarfile
from pathlib import Path
from typing import Any, Final

AS_DATA: Final[Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""How an archive is unpacked; Python 3.11.3 and older cannot be told."""


def copy_tree(source: Path, target: Path) -> Path:
    """Copy a folder to `target`, which must not exist; returns `target`."""
    shutil.copytree(source, target, copy_function=copy_file)
    return target


def copy_file(source: str, target: str) -> str:
    """Copy one file's data, hole for hole; times and modes do not matter to a store."""
    with open(source, "rb") as src, open(target, "wb") as dst:
        size = os.fstat(src.fileno()).st_size
        dst.truncate(size)
        at = 0
        while at < size:
            try:
                begin = os.lseek(src.fileno(), at, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole is left.
                break
            at = os.lseek(src.fileno(), begin, os.SEEK_HOLE)
            os.pwrite(dst.fileno(), os.pread(src.fileno(), at - begin, begin), begin)
    return target
