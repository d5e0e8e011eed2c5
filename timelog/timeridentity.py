"""Who a timer is, from the names of its topic with its unique key."""

from __future__ import annotations

import numpy as np

from timerstore.timelog.jit.kernel import kernel_ahead
from timerstore.timelog.jit.record import ReadBytes, Words
from timerstore.timelog.message import FOUND_WORDS, IDENTITY_HIGH, IDENTITY_LOW, identify


@kernel_ahead
def _identify(both: ReadBytes, topic_bytes: int, tag: int, found: Words) -> None:
    identify(both, 0, topic_bytes, topic_bytes, len(both) - topic_bytes, tag, found)


def identity_of(topic: bytes, key: bytes, tag: int) -> tuple[int, int]:
    """Return what tells a timer from all others, by its real topic with its unique key."""
    found = np.zeros(FOUND_WORDS, np.int64)
    _identify(np.frombuffer(topic + key, np.uint8), len(topic), tag, found)
    return int(found[IDENTITY_HIGH]), int(found[IDENTITY_LOW])
