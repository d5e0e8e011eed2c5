"""Works as `kill_worker.py` does, on stores in which a call that returned is durable.

It has four threads. A fifth has pages written back at random moments, as the system may do at
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
from timerstore.testing.kills import load_kernels

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


def prepare() -> None:
    """Load all kernels: whoever is forked finds them."""
    wait_for_disk()
    load_kernels()


def work(path: str, seed: str, kind: str) -> NoReturn:
    """Use a store for ever."""
    threading.Thread(target=write_back, args=(Path(path), int(seed)), daemon=True).start()
    kill_worker.work(path, seed, kind, THREAD_COUNT)
