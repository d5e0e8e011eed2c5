"""A nursery as in `kill_worker.py`, whose children storm: eight threads, tiny queues.

Interpreted, for a compiled kernel knows how many places a queue has; threads change at any of its
bytecodes.
"""

import sys
from functools import partial

from tests.rigs.kill_worker import work
from tests.rigs.nursery import nurse
from tests.rigs.storm_worker import use_small_rings

THREAD_COUNT = 8


def main() -> None:
    """Fork them."""
    use_small_rings(4)
    sys.setswitchinterval(1e-4)
    nurse(partial(work, thread_count=THREAD_COUNT))


if __name__ == "__main__":
    main()
