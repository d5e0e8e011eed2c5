"""The queues between the services, each a ring with one producer, one consumer.

The producer publishes the tail, the consumer the head, each on a cache line of its own. A column of
a ring holds one thing of each entry; entry `n` stands at `place_of(n)`.
"""

from __future__ import annotations

from typing import Annotated, Final

import numpy as np

from timerstore.jit.kernel import inlined
from timerstore.jit.record import LINE, Words, observe, own, record
from timerstore.services.world.state import DEQUEUE_GET, DEQUEUE_PUT, ENQUEUE_GET, ENQUEUE_PUT

RING_COUNT: Final = 4_096
"""Entries of each ring: about a millisecond's work at full speed."""

KIND_TIMER: Final = 0
KIND_DELETE: Final = 1
KIND_UNREADABLE: Final = 2


@record
class Ends:
    """Where a ring begins and ends: how many entries have left it, how many have come."""

    head: Annotated[int, LINE] = 0
    tail: Annotated[int, LINE] = 0


@record
class EnqueueRing:
    """The enqueue ring, from enqueue-get to enqueue-put: int64[RING_COUNT] each."""

    ends: Ends
    out_ms: Words  # TIMER_OUT_MS: the unit's time
    due_ms: Words  # exact
    message: Words
    size: Words
    topic_hash: Words
    kind: Words
    high: Words  # of a delete that was read: its target's identity, which only recovery asks for
    low: Words


@record
class LateRing:
    """The late ring, from enqueue-put to dequeue-get: units linked into a claimed slot."""

    ends: Ends
    slot: Words
    magic: Words
    message: Words
    size: Words
    due_ms: Words


@record
class DequeueRing:
    """The dequeue ring, from dequeue-get to dequeue-put."""

    ends: Ends
    message: Words
    info: Words  # as in the near wheel's entry
    bucket_ms: Words  # that it was taken from; of a plain delete: its slot


@inlined
def place_of(number: int) -> int:
    """Return the index at which the columns of a ring hold an entry."""
    return number & (RING_COUNT - 1)


@inlined
def waiting_count(ends: Ends) -> int:
    """Return how many entries wait in a ring."""
    return observe(ends, "tail") - observe(ends, "head")


def waiting_places(ends: Ends) -> Words:
    """Return the indexes of what waits in a ring's columns, oldest first; for Python."""
    return np.arange(ends.head, ends.tail) & (RING_COUNT - 1)


def new_enqueue_ring() -> EnqueueRing:
    """Return the enqueue ring with nothing in it."""
    return EnqueueRing(own(Ends(), ENQUEUE_GET, ENQUEUE_PUT), *_columns(8))


def new_late_ring() -> LateRing:
    """Return the late ring with nothing in it."""
    return LateRing(own(Ends(), ENQUEUE_PUT, DEQUEUE_GET), *_columns(5))


def new_dequeue_ring() -> DequeueRing:
    """Return the dequeue ring with nothing in it."""
    return DequeueRing(own(Ends(), DEQUEUE_GET, DEQUEUE_PUT), *_columns(3))


def _columns(count: int) -> list[Words]:
    return [np.zeros(RING_COUNT, np.int64) for _ in range(count)]
