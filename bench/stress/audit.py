"""Names lost or early timers while a play goes on.

A store's own cursors say which timers must have come by now, its log which have fired.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from stress.load import TOPIC, Work
from timerstore.errors import CorruptStoreError
from timerstore.timelog.bytes.decode import decode_message
from timerstore.wheel.near import SPAN

_NEWEST = 16
"""So many of the messages that fired last are looked at."""
GROUP = "default"


def rounds(work: Work) -> Iterator[None]:
    """Name the timers that are lost, in rounds; each step of the iterator looks how far one is.

    After a round everything has come that had been put before it: it is linked into the wheel, the
    read cursor has passed the slots in which it can be, and what had fired by then is acknowledged.
    What cleaning moved meanwhile comes in the next round. So a round judges what was put before the
    one before it.
    """
    queues, slot_ms = work.store.core.engine.queues, work.store.core.engine.precision_ms
    row = queues.row(TOPIC.encode())
    known = np.zeros(work.ledger.putters, np.int64)
    while True:
        put, end = work.ledger.put.copy(), queues.next_index(0)  # 0: the queue of all timers
        due_ms = work.now_ms() + work.ahead_ms + 2 * work.step_ms
        while (stats := work.store.stats()).queue_index < end:
            yield
        # A timer that was linked late stands in a slot that is claimed.
        due_ms = max(due_ms, stats.claimed_ms) + (SPAN + 1) * slot_ms
        while work.store.stats().read_ms <= due_ms:
            yield
        end = queues.next_index(row)
        while work.store.core.offsets.get(TOPIC, GROUP, 0) < end:
            yield
        work.ledger.audit(known)
        known = put
        yield


def look_at_newest(work: Work) -> None:
    """Look for a timer that fired too early, among those that fired last.

    The clock is read after the end of their queue: what stands there and is due later is early. A
    consumer that is behind cannot see that, and the log says that it fired when it was due.
    """
    engine = work.store.core.engine
    row = engine.queues.row(TOPIC.encode())
    end, now_ms = engine.queues.next_index(row), work.now_ms()
    first = max(engine.queues.first_index(row), end - _NEWEST)
    if work.step_ms or first >= end:
        return
    with suppress(CorruptStoreError):  # retention has just removed one
        for offset in engine.queues.read(row, first, end - first)["offset"].tolist():
            body = decode_message(engine.commitlog.view(offset), offset).body
            number, earliest_ms = np.frombuffer(body[:16], "<i8")
            if earliest_ms > now_ms:
                work.ledger.blame("early", np.array([number]))
