"""A store as a state machine against a dictionary: what every such machine puts, moves, cancels."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests import naive
from tests.rigs.machine import START_MS, StoreMachine
from timerstore import InvalidArgumentError, TooLateError

TOPICS = st.sampled_from(["a", "b"])
LEVELS = "1s 2s 7s 40s 1d"
LEVELS_MS = naive.parse_levels(LEVELS)

# In slots: overdue, at once, in the window, over several hops, over the ring, years.
DELAYS = st.one_of(
    st.integers(-40, 12),
    st.integers(0, 9).map(lambda n: n / 4),
    st.integers(0, 60),
    st.integers(0, 400),
    st.sampled_from([0.0, 1e9, 3e9]),
)


@dataclass
class Expected:
    """One timer as the dictionary has it."""

    id: str
    topic: str
    body: bytes
    due_ms: int
    state: str = "pending"
    level: int = 0  # of the delay levels, 0 for a timer
    passed: bool = False  # its level's loop is behind it
    key: str | None = None


class DictionaryMachine(StoreMachine):
    """A store and its dictionary. Whoever opens it says `slot_ms`."""

    slot_ms: int

    def __init__(self) -> None:
        super().__init__()
        self.timers: dict[str, Expected] = {}
        self.retries: list[Expected] = []
        self.order: list[str] = []
        self.in_levels: list[list[Expected]] = [[] for _ in LEVELS_MS]
        self.level_offsets = [0 for _ in LEVELS_MS]
        self.highest_ms = START_MS
        self.body_number = 0

    def settle(self) -> None:
        """What is due by now was fired, each timer once."""
        self.highest_ms = max(self.highest_ms, self.now_ms)
        for timer in [*self.timers.values(), *self.retries]:
            if timer.state == "pending" and not timer.level and timer.due_ms <= self.now_ms:
                timer.state = "fired"
        for i, (level_ms, queue) in enumerate(zip(LEVELS_MS, self.in_levels, strict=True)):
            for timer in queue[self.level_offsets[i] :]:
                if not naive.level_is_due(timer.due_ms, level_ms, self.now_ms):
                    break
                self.level_offsets[i] += 1
                timer.passed = True
                if timer.state == "pending":
                    timer.state = "fired"

    def pick(self, index: int) -> str:
        return self.order[index % len(self.order)]

    def body(self) -> bytes:
        self.body_number += 1
        return b"%d" % self.body_number * (1 + self.body_number % 40)

    def due(self, slots: float) -> int:
        return self.now_ms + round(slots * self.slot_ms)

    def note(
        self,
        id: str,
        topic: str,
        body: bytes,
        due_ms: int,
        level: int = 0,
        key: str | None = None,
    ) -> None:
        assert id not in self.timers
        self.timers[id] = Expected(id, topic, body, due_ms, level=level, key=key)
        self.order.append(id)
        if level:
            self.in_levels[level - 1].append(self.timers[id])

    # --- the public calls

    @rule(topic=TOPICS, slots=DELAYS)
    def put(self, topic: str, slots: float) -> None:
        body, due_ms = self.body(), self.due(slots)
        self.note(self.store.put(body, topic=topic, at_ms=due_ms), topic, body, due_ms)
        self.settle()

    @rule(topic=TOPICS, slots=st.lists(DELAYS, min_size=1, max_size=12))
    def put_many(self, topic: str, slots: list[float]) -> None:
        bodies = [self.body() for _ in slots]
        due_ms = [self.due(each) for each in slots]
        ids = self.store.put_many(bodies, topic=topic, at_ms=due_ms)
        for id, body, due in zip(ids, bodies, due_ms, strict=True):
            self.note(id, topic, body, due)
        self.settle()

    @rule(topic=TOPICS, level=st.integers(1, 8), tag=st.sampled_from([None, "tag"]))
    def put_at_level(self, topic: str, level: int, tag: str | None) -> None:
        body = self.body()
        id = self.store.put(body, topic=topic, delay_level=level, tag=tag)
        level = min(level, len(LEVELS_MS))
        self.note(id, topic, body, self.now_ms + LEVELS_MS[level - 1], level)
        self.settle()

    @rule(topic=TOPICS, level=st.integers(1, 4), count=st.integers(1, 8))
    def put_many_at_level(self, topic: str, level: int, count: int) -> None:
        bodies = [self.body() for _ in range(count)]
        ids = self.store.put_many(bodies, topic=topic, delay_level=level)
        for id, body in zip(ids, bodies, strict=True):
            self.note(id, topic, body, self.now_ms + LEVELS_MS[level - 1], level)
        self.settle()

    def verdict(self, id: str) -> bool:
        timer = self.timers[id]
        if timer.state == "pending":
            timer.state = "cancelled"
            return True
        # Asked again: True until the due time, False afterwards; see `agree`.
        return timer.state == "cancelled" and timer.due_ms > self.highest_ms and not timer.passed

    def agree(self, found: bool, expected: bool, id: str) -> bool:
        """Once the clock went back over a cancelled timer's due time, either answer is right."""
        timer = self.timers[id]
        unsure = timer.state == "cancelled" and self.now_ms < timer.due_ms <= self.highest_ms
        return unsure or found == expected

    @precondition(lambda self: self.order)
    @rule(index=st.integers(0, 999))
    def cancel(self, index: int) -> None:
        id = self.pick(index)
        expected = self.verdict(id)
        assert self.agree(self.store.cancel(id), expected, id)
        self.settle()

    @precondition(lambda self: self.order)
    @rule(indexes=st.lists(st.integers(0, 999), min_size=1, max_size=6, unique=True))
    def cancel_many(self, indexes: list[int]) -> None:
        ids = list(dict.fromkeys(map(self.pick, indexes)))
        expected = [self.verdict(id) for id in ids]
        found = self.store.cancel_many(ids).tolist()
        assert all(map(self.agree, found, expected, ids))
        self.settle()

    @precondition(lambda self: self.order)
    @rule(index=st.integers(0, 999), slots=st.one_of(st.none(), DELAYS), other=st.booleans())
    def reschedule(self, index: int, slots: float | None, other: bool) -> None:
        old = self.timers[self.pick(index)]
        due_ms = old.due_ms if slots is None else self.due(slots)
        given: dict[str, Any] = {} if slots is None else {"at_ms": due_ms}
        body = self.body() if other or slots is None else None
        if body is not None:
            given |= {"body": body, "properties": {"n": "1"}}
        if old.level or old.state != "pending":
            errors = (InvalidArgumentError, TooLateError) if old.level else TooLateError
            with pytest.raises(errors):
                self.store.reschedule(old.id, **given)
            return
        new = self.store.reschedule(old.id, **given)
        self.note(new, old.topic, body or old.body, due_ms, key=old.key)
        old.state = "cancelled"
        self.settle()

    @rule(limit=st.integers(1, 9))
    def pending(self, limit: int) -> None:
        open_ones = [t for t in [*self.timers.values(), *self.retries] if t.state == "pending"]
        found = list(self.store.pending())
        assert [timer.due_ms for timer in found] == sorted(timer.due_ms for timer in open_ones)
        assert sorted(timer.id for timer in found) == sorted(timer.id for timer in open_ones)
        first = [timer.id for timer in self.store.pending(limit=limit)]
        assert first == [timer.id for timer in found][:limit]

    # --- time

    @rule(slots=st.one_of(st.integers(1, 40).map(lambda n: n / 4), st.integers(1, 40)))
    def advance(self, slots: float) -> None:
        self.move(slots)

    @rule(slots=st.integers(60, 200))
    def advance_far(self, slots: int) -> None:
        self.move(slots)

    def move(self, slots: float) -> None:
        self.let_pass(round(slots * self.slot_ms))
        self.settle()

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.settle()
