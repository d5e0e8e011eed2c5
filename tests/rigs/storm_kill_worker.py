"""Storms as in `kill_worker.py` with eight threads and tiny queues, until it is killed.

Interpreted, for a compiled kernel knows how many places a queue has; threads change at any of its
bytecodes.
"""

import sys
from typing import NoReturn

from tests.rigs import kill_worker
from tests.rigs.storm_worker import use_small_rings

THREAD_COUNT = 8


def prepare() -> None:
    use_small_rings(4)
    sys.setswitchinterval(1e-4)


def work(path: str, seed: str, kind: str) -> NoReturn:
    kill_worker.work(path, seed, kind, THREAD_COUNT)
