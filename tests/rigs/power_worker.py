"""A nursery as in `kill_worker.py`, whose children wait for the disk before they say anything.

Each has four threads. A fifth has pages written back at random moments, as the system may do at
any: so a power cut finds later pages written, and earlier ones not.
"""

import ctypes
import os
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from tests.rigs import kill_worker

KINDS = ("reused", "cleaned")
THREAD_COUNT = 4
"""One fsync serves them all."""
_PAGE_BYTES = 4_096
_WRITE_NOW = 7  # wait before, write, wait behind
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def wait_for_disk() -> None:
    """Have `kill_worker.py` make stores in which a put that returned is durable."""
    for kind in KINDS:
        kill_worker.CONFIGS[kind] = replace(kill_worker.CONFIGS[kind], durability="group")


def write_back(path: Path, seed: int) -> NoReturn:
    """Write pages of a store's files back, at random, for ever."""
    rnd = random.Random(seed)
    while True:
        files = [each for each in path.rglob("0*") if each.is_file()]
        for file in rnd.sample(files, min(8, len(files))):
            try:
                fd = os.open(file, os.O_RDWR)
            except OSError:  # it has gone meanwhile
                continue
            page = rnd.randrange(max(1, os.fstat(fd).st_size // _PAGE_BYTES))
            _libc.sync_file_range(fd, page * _PAGE_BYTES, _PAGE_BYTES, _WRITE_NOW)
            os.close(fd)


def main() -> None:
    """Fork them."""
    wait_for_disk()
    work = kill_worker.work

    def work_beside(path: str, seed: int, kind: str, thread_count: int = 1) -> NoReturn:
        threading.Thread(target=write_back, args=(Path(path), seed), daemon=True).start()
        work(path, seed, kind, thread_count)

    kill_worker.work = work_beside
    kill_worker.main(THREAD_COUNT)


if __name__ == "__main__":
    main()
