"""Who a timer is, from the names of its topic with its unique key."""

from __future__ import annotations

import numpy as np

from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.record import ReadBytes
from timerstore.timelog.bytes.message import MessageParts, identify


@kernel_ahead
def _identify(both: ReadBytes, topic_bytes: int, tag: int, found: MessageParts) -> None:
    identify(both, 0, topic_bytes, topic_bytes, len(both) - topic_bytes, tag, found)


def identity_of(topic: bytes, key: bytes, tag: int) -> tuple[int, int]:
    """Return what tells a timer from all others, by its real topic with its unique key."""
    found = MessageParts()
    _identify(np.frombuffer(topic + key, np.uint8), len(topic), tag, found)
    return found.identity_high, found.identity_low
