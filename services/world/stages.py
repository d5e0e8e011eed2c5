"""Stages: what each part of the services' work takes, counted by the thread that does it.

RocketMQ's `perfCounterTicks`. A step is counted once, and only if it did something:
a stage costs two readings of the clock for hundreds of entries. Each row is written by
who holds its service's token, and read by anybody, who may see one word before the other.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.kernel import inlined
from timerstore.jit.record import Words
from timerstore.services.world.state import SERVICE_NAMES

READ_UNITS: Final = len(SERVICE_NAMES)
READ_MESSAGES: Final = READ_UNITS + 1
STAGE_NAMES: Final = (*SERVICE_NAMES, "read-units", "read-messages")
"""The steps of each service; then what of dequeue-get's was for walking chains of units, and what
of dequeue-put's for reading messages, and making their copies ready."""

# Words of a stage, a cache line.
STAGE_STEPS: Final = 0  # steps that did something
STAGE_ENTRIES: Final = 1  # what they did: entries read, linked, claimed with taken, appended
STAGE_NS: Final = 2
STAGE_LONGEST_NS: Final = 3
STAGE_WORDS: Final = 8


def new_stages() -> Words:
    """Return the words of all stages: int64[len(STAGE_NAMES) * STAGE_WORDS]."""
    return np.zeros(len(STAGE_NAMES) * STAGE_WORDS, np.int64)


@inlined
def count_stage(stages: Words, stage: int, entry_count: int, elapsed_ns: int) -> None:
    """Count a step of a stage that did something."""
    at = stage * STAGE_WORDS
    stages[at + STAGE_STEPS] += 1
    stages[at + STAGE_ENTRIES] += entry_count
    stages[at + STAGE_NS] += elapsed_ns
    stages[at + STAGE_LONGEST_NS] = max(stages[at + STAGE_LONGEST_NS], elapsed_ns)
