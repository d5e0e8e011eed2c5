"""What a putter or a consumer does, in a thread of its own, until the ledger says stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from stress.ledger import Ledger, bodies_of, words_of
from timerstore import Batch, Delivery, ManualClock, StoreFullError, TimerStore

TOPIC = "stress"
BODY_BYTES = 100
LIST_COUNT = 16_384
FEW = 256
_AHEAD_COUNT = 2_000_000
"""Timers that are put and have not come: then putters wait."""
_WAIT_S = 0.002
_PULL_S = 0.2
_DAY = timedelta(days=1)


@dataclass
class Work:
    """A store under load, and what is known of it."""

    store: TimerStore
    ledger: Ledger
    timers: int
    """No more than so many are put."""
    ahead_ms: int
    """A timer is due at most so long after its put."""
    seed: int
    step_ms: int = 0
    """The clock is set by up to so much, forward or back: it does not show who is early."""
    putting: int = 0
    """Putters that have not ended; of the worker's main thread."""
    random: Any = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    @property
    def is_over(self) -> bool:
        """Tell whether nothing more shall be put."""
        return bool(self.ledger["stop"]) or int(self.ledger.begun.sum()) >= self.timers

    @property
    def is_done(self) -> bool:
        """Tell whether all has come that can."""
        return self.putting == 0 and self.is_over and self.store.stats().pending_count == 0

    def has_room(self) -> bool:
        """Tell whether a putter may go on; if not, wait a moment."""
        ahead = int(self.ledger.put.sum()) - self.ledger["pulled"] - self.ledger["cancelled"]
        if ahead <= _AHEAD_COUNT:
            return True
        time.sleep(_WAIT_S)
        return False

    def when(self, due_ms: Any, delay_ms: Any) -> dict[str, Any]:
        """Return the times of a put; on a clock that is set only a due time is known beforehand."""
        return {"at_ms": due_ms} if self.step_ms else {"delay_ms": delay_ms}

    def now_ms(self) -> int:
        """Return what the clock says, without the store where that is possible."""
        clock = self.store.core.clock
        return clock.now_ms if isinstance(clock, ManualClock) else time.time_ns() // 1_000_000

    def put(self, putter: int, numbers: Any, delay_ms: Any) -> list[str]:
        """Put a list, however often the store is full; return the ids."""
        at, ids, due_ms = 0, list[str](), self.now_ms() + delay_ms
        bodies = bodies_of(numbers, due_ms, BODY_BYTES)
        while at < len(numbers):
            try:
                times = self.when(due_ms[at:], delay_ms[at:])
                made = list(self.store.put_many(bodies[at:], topic=TOPIC, **times))
            except StoreFullError as e:
                made = list(e.ids)  # those of the first ones, which are put
                self.ledger.add("refused")
                time.sleep(_WAIT_S)
            ids += made
            at += len(made)
        self.ledger.done(putter, len(numbers))
        return ids

    def draw(self, count: int, low_ms: int = 1) -> Any:
        return self.random.integers(low_ms, max(low_ms + 1, self.ahead_ms), count)

    def took(self, numbers: Any, earliest_ms: Any, due_ms: Any, fired_ms: Any) -> None:
        """Note what was handed out: int64[n] each.

        `earliest_ms`: when each may come, as its body says; `due_ms`, `fired_ms`: by the log.
        """
        if len(numbers):
            is_early = (fired_ms < due_ms) | (due_ms < earliest_ms)
            if not self.step_ms:
                is_early |= earliest_ms > self.now_ms()
            self.ledger.take(numbers, is_early)

    def took_batch(self, batch: Batch) -> None:
        """Note what was pulled, and acknowledge it."""
        self.took(*words_of(batch.bodies, BODY_BYTES), batch.due_ms, batch.fired_ms)
        batch.ack()


# --- putters


def lists(work: Work, putter: int) -> None:
    while not work.is_over:
        if work.has_room():
            numbers = work.ledger.begin(putter, LIST_COUNT)
            work.put(putter, numbers, work.draw(LIST_COUNT))


def singles(work: Work, putter: int) -> None:
    while not work.is_over:
        if not work.has_room():
            continue
        delays = work.draw(FEW).tolist()
        for delay_ms in delays:
            number = work.ledger.begin(putter, 1)
            due_ms = work.now_ms() + delay_ms
            body = bodies_of(number, due_ms, BODY_BYTES)[0].tobytes()
            while True:
                try:
                    work.store.put(body, topic=TOPIC, **work.when(due_ms, delay_ms))
                    break
                except StoreFullError:
                    work.ledger.add("refused")
                    time.sleep(_WAIT_S)
            work.ledger.done(putter, 1)


def cancelling(work: Work, putter: int) -> None:
    """Put lists; cancel half of each at once."""
    while not work.is_over:
        if work.has_room():
            numbers = work.ledger.begin(putter, FEW)
            ids = work.put(putter, numbers, work.draw(FEW))
            half = numbers[::2]
            work.ledger.ask(half)
            work.ledger.answered(half, work.store.cancel_many(ids[::2]))


# --- consumers


def columns(work: Work, consumer: int) -> None:
    while True:
        if work.ledger["stalled"]:
            time.sleep(_WAIT_S)
            continue
        batch = work.store.pull(TOPIC, max_count=LIST_COUNT, timeout=_PULL_S)
        if len(batch):
            work.took_batch(batch)
        elif work.is_done:
            return


def objects(work: Work, consumer: int) -> None:
    """Iterate; acknowledge each by itself."""
    while True:
        if work.ledger["stalled"]:
            time.sleep(_WAIT_S)
            continue
        taken: list[Delivery] = []
        for delivery in work.store.consume(TOPIC, timeout=_PULL_S):
            taken.append(delivery)
            if len(taken) == FEW:
                break
        if taken:
            _took_each(work, taken)
        elif work.is_done:
            return


def _took_each(work: Work, taken: list[Delivery]) -> None:
    bodies = pa.array([each.body for each in taken], pa.binary())
    due_ms, fired_ms = np.array([(each.due_ms, each.fired_ms) for each in taken], np.int64).T
    work.took(*words_of(bodies, BODY_BYTES), due_ms, fired_ms)
    for delivery in taken:
        delivery.ack()


# --- a script of its own


def days(work: Work) -> None:
    """On a clock that is moved: a day passes empty, then many timers fall due in one slot."""
    clock = work.store.core.clock
    assert isinstance(clock, ManualClock)
    day_ms = _DAY // timedelta(milliseconds=1)
    while not work.is_over:
        for within_ms in (1, 1_000):  # one millisecond; one slot
            numbers = work.ledger.begin(0, LIST_COUNT)
            delays = day_ms - 1_000 + work.random.integers(0, within_ms, LIST_COUNT)
            work.put(0, numbers, delays)
        clock.advance(_DAY)
        while batch := work.store.pull(TOPIC, max_count=LIST_COUNT, timeout=0):
            work.took_batch(batch)


Act = Callable[[Work, int], None]
