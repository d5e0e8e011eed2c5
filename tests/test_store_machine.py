"""The whole store as a state machine against a dictionary, on a manual clock.

Windows, rings and segments are tiny, so that every boundary is crossed. After each step the commit
log is read again by the slow twins: what it says must be what the dictionary says.
"""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.models.archive import KeptDisk
from tests.models.ledger import read_ledger
from tests.rigs.dictionary import (
    DELAYS,
    LEVELS,
    LEVELS_MS,
    TOPICS,
    DictionaryMachine,
    Expected,
)
from tests.rigs.machine import cases_of
from tests.small_store import few_maps, small
from tests.sparse_copy import copy_tree
from tests.tiers import how_many
from timerstore import (
    InvalidArgumentError,
    ManualClock,
    TimerStore,
    UnknownTimerError,
)
from timerstore.calls.consuming.sendback import send_back
from timerstore.jit.kernel import INTERPRETED
from timerstore.testing.ledger import Ledger, check_store
from timerstore.timelog.bytes import format as fmt

YEAR_MS = 365 * 86_400_000
GROUP = "workers"
RETRY_TOPIC = f"%RETRY%{GROUP}"
EXAMPLES = how_many("MACHINE_EXAMPLES", 3 if INTERPRETED else 8, 100)
KEYS = st.sampled_from(["k", "two words", " "])


class WholeMachine(DictionaryMachine):
    """A store with all its calls, and their dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.path = self.folder / "store0"
        self.opened = 0
        self.delivered: dict[str, int] = {}
        self.held: list[Any] = []
        self.ledger: Ledger | None = None

    # --- opening

    @initialize(
        precision_ms=st.sampled_from([100, 1000]),
        window=st.integers(2, 12),
        commitlog_bytes=st.sampled_from([4096, 6144, 1 << 16]),
        timerlog_bytes=st.sampled_from([104, 156, 520, 5248]),
        queue_bytes=st.sampled_from([60, 100, 2000]),
        durability=st.sampled_from(["group", "process"]),
        spread=st.sampled_from([1, 7, 64]),
        retention_ms=st.sampled_from([1, 3_600_000]),
    )
    def make(
        self,
        precision_ms: int,
        window: int,
        commitlog_bytes: int,
        timerlog_bytes: int,
        queue_bytes: int,
        durability: Any,
        spread: int,
        retention_ms: int,
    ) -> None:
        self.slot_ms, self.map_count = precision_ms, spread
        self.config = small(
            commitlog_bytes,
            queue_bytes,
            timerlog_bytes,
            precision_ms=precision_ms,
            roll_window_slots=window,
            level_batch_count=spread,
            near_count_max=1 << 16,
            durability=durability,
            retention_ms=retention_ms,
            delay_levels=LEVELS,
        )
        self.open()

    def open(self) -> None:
        self.clock = ManualClock(self.now_ms)
        with pytest.MonkeyPatch.context() as patch:
            few_maps(patch, self.map_count)
            disk = KeptDisk()
            self.store = TimerStore(self.path, config=self.config, clock=self.clock, disk=disk)
        self.store.core.upkeep.retention._wanted_ahead = lambda: 3  # type: ignore[method-assign]
        self.held = []
        self.ledger = None
        self.settle()

    def fall_back(self, offsets: list[int]) -> None:
        """After a kill the loops go on where the checkpoint was, or behind their last copy."""
        for i, queue in enumerate(self.in_levels):
            fired = (k + 1 for k, timer in enumerate(queue) if timer.state == "fired")
            self.level_offsets[i] = max(offsets[i], *fired, 0)
            for timer in queue[self.level_offsets[i] :]:
                timer.passed = False

    # --- by a key

    def of_key(self, topic: str, key: str) -> list[Expected]:
        """The pending timers with a key."""
        timers = self.timers.values()
        return [t for t in timers if (t.topic, t.key, t.state) == (topic, key, "pending")]

    @rule(topic=TOPICS, key=KEYS, slots=DELAYS, how=st.sampled_from(["", "if_absent", "replace"]))
    def put_key(self, topic: str, key: str, slots: float, how: str) -> None:
        body, due_ms, before = self.body(), self.due(slots), self.of_key(topic, key)
        given: dict[str, Any] = {how: True} if how else {}
        if how == "replace" and before and all(timer.level for timer in before):
            with pytest.raises(InvalidArgumentError):
                self.store.put(body, topic=topic, at_ms=due_ms, key=key, **given)
            return
        id = self.store.put(body, topic=topic, at_ms=due_ms, key=key, **given)
        if how == "if_absent" and before:
            assert id in [timer.id for timer in before]
            return
        if how == "replace" and before:
            gone = [timer for timer in before if self.store.get(timer.id) is None]
            assert len(gone) == 1
            gone[0].state = "cancelled"
        self.note(id, topic, body, due_ms, key=key)
        self.settle()

    @rule(topic=TOPICS, key=KEYS, level=st.integers(1, 4))
    def put_key_at_level(self, topic: str, key: str, level: int) -> None:
        body = self.body()
        id = self.store.put(body, topic=topic, delay_level=level, key=key)
        self.note(id, topic, body, self.now_ms + LEVELS_MS[level - 1], level, key)
        self.settle()

    @rule(topic=TOPICS, key=KEYS)
    def get_key(self, topic: str, key: str) -> None:
        expected = {timer.id: timer for timer in self.of_key(topic, key)}
        timer = self.store.get_key(topic, key)
        assert (timer is None) == (not expected)
        if timer is not None:
            found = expected[timer.id]
            assert (timer.body, timer.due_ms, timer.key) == (found.body, found.due_ms, key)
        listed = {timer.id for timer in self.store.pending(topic=topic, key=key)}
        assert listed == expected.keys()

    @rule(topic=TOPICS, key=KEYS)
    def cancel_key(self, topic: str, key: str) -> None:
        expected = self.of_key(topic, key)
        assert self.store.cancel_key(topic, key) == len(expected)
        for timer in expected:
            timer.state = "cancelled"

    @precondition(lambda self: self.order)
    @rule(index=st.integers(0, 999))
    def get(self, index: int) -> None:
        expected = self.timers[self.pick(index)]
        timer = self.store.get(expected.id)
        if expected.state != "pending":
            assert timer is None
            return
        assert timer is not None
        found = timer.id, timer.topic, timer.body, timer.due_ms
        assert found == (expected.id, expected.topic, expected.body, expected.due_ms)

    @precondition(lambda self: self.order)
    @rule(index=st.integers(0, 999))
    def find(self, index: int) -> None:
        """What became of a timer is known while its first message is kept, and never wrong."""
        expected = self.timers[self.pick(index)]
        found = self.store.find(expected.id)
        if found.state == "unknown":
            offset = int(expected.id[12:24], 16) & ~fmt.LEVEL_MARK
            assert expected.state != "pending" and offset < self.store.stats().commitlog_start
            return
        state = "cancelled" if found.state == "moved" else found.state
        assert (found.id, state, found.due_ms) == (expected.id, expected.state, expected.due_ms)
        assert found.topic in (expected.topic, None if state == "cancelled" else expected.topic)
        if state == "fired" and not expected.level:
            assert found.fired_ms is not None and found.fired_ms >= expected.due_ms

    @rule()
    def unknown_id(self) -> None:
        with pytest.raises(UnknownTimerError):
            self.store.cancel("F" * 32)

    # --- consuming

    @rule(topic=TOPICS, count=st.integers(1, 5))
    def pull(self, topic: str, count: int) -> None:
        batch = self.store.pull(topic, group=GROUP, max_count=count, timeout=0)
        for delivery in batch:
            timer = self.timers[delivery.id]
            assert timer.state == "fired" and timer.body == delivery.body
            self.delivered[delivery.id] = self.delivered.get(delivery.id, 0) + 1
            self.held.append(delivery)

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 99))
    def ack(self, index: int) -> None:
        self.held.pop(index % len(self.held)).ack()

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 99), slots=st.integers(0, 40))
    def nack(self, index: int, slots: int) -> None:
        delivery = self.held.pop(index % len(self.held))
        delay = slots * self.slot_ms
        delivery.nack(timedelta(milliseconds=delay))
        timer = Expected(delivery.id, RETRY_TOPIC, delivery.body, self.now_ms + delay)
        self.retries.append(timer)
        self.settle()

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 99), level=st.integers(1, 6))
    def send_back_through_level(self, index: int, level: int) -> None:
        delivery = self.held.pop(index % len(self.held))
        message = delivery._handed.message(delivery._i)
        send_back(self.store.putting, GROUP, message, delay_level=level)
        delivery.ack()
        level = min(level, len(LEVELS_MS))
        due_ms = self.now_ms + LEVELS_MS[level - 1]
        timer = Expected(delivery.id, RETRY_TOPIC, delivery.body, due_ms, level=level)
        self.retries.append(timer)
        self.in_levels[level - 1].append(timer)
        self.settle()

    # --- time

    @rule(slots=st.integers(-120, -1))
    def step_back(self, slots: int) -> None:
        self.move(slots)

    # --- ends and beginnings

    @rule(stop=st.sampled_from([0, 0, 1, 20, 150, 400, -30]))
    def close_and_reopen(self, stop: int) -> None:
        self.store.close()
        self.now_ms += stop * self.slot_ms
        self.open()
        assert self.store.core.findings.clean

    @rule(stop=st.sampled_from([0, 0, 1, 20, 150, 400, -30]), copied=st.booleans())
    def kill_and_reopen(self, stop: int, copied: bool) -> None:
        checkpoint = self.store.core.flusher.last
        assert checkpoint is not None
        self.store.abandon()
        self.fall_back(checkpoint.level_offsets)
        self.now_ms += stop * self.slot_ms
        if copied:
            self.opened += 1
            self.path = copy_tree(self.path, self.folder / f"store{self.opened}")
        self.open()

    # --- what must hold

    @invariant()
    def the_log_agrees(self) -> None:
        if not self.is_open:
            return
        ledger = self.ledger or Ledger(levels_ms=LEVELS_MS)
        ledger = self.ledger = read_ledger(self.path, ledger)
        ledger.check()
        check_store(self.store, ledger)
        first_puts = {}
        retries = []
        for root in ledger.roots.values():
            if root.topic == RETRY_TOPIC:
                retries.append((root.key, root.due_ms, bool(root.fired_ms)))
            else:
                first_puts[root.key] = root
        assert first_puts.keys() == self.timers.keys()
        for id, timer in self.timers.items():
            root = first_puts[id]
            found = "fired" if root.fired_ms else "cancelled" if root.deleted else "pending"
            assert found == timer.state, (timer, root, self.now_ms)
            assert (root.topic, root.body, root.due_ms) == (timer.topic, timer.body, timer.due_ms)
            assert root.level == timer.level
            for fired_ms in root.fired_ms:
                assert fired_ms <= self.highest_ms
        expected = [(r.id, r.due_ms, r.state == "fired") for r in self.retries]
        assert sorted(retries) == sorted(expected)

    @invariant()
    def the_counts_agree(self) -> None:
        if not self.is_open:
            return
        found = {each.topic: each for each in self.store.stats().topics}
        timers = [*self.timers.values(), *self.retries]
        assert found.keys() == {timer.topic for timer in timers}
        for topic, each in found.items():
            mine = [timer for timer in timers if timer.topic == topic]
            states = Counter(timer.state for timer in mine)
            pending = [timer for timer in mine if timer.state == "pending"]
            assert each.put_count == each.set_delay.count == len(mine)
            assert each.fired_count == each.lateness.count == states["fired"]
            assert each.cancelled_count == states["cancelled"]
            assert each.unreadable_count == 0
            assert each.pending_count == len(pending)
            assert each.pending_bytes == sum(len(timer.body) for timer in pending)
            ahead, known = each.upcoming, [count for _, count in each.upcoming.within]
            assert ahead == self.store.upcoming(topic)
            assert ahead.overdue_count + known[-1] + ahead.later_count == len(pending)
            assert known == sorted(known)
            first_ms = min((timer.due_ms for timer in pending), default=None)
            times = [ms for ms in (each.oldest_due_ms, each.next_due_ms) if ms is not None]
            assert bool(times) <= bool(pending)
            if times and first_ms is not None:
                assert min(times) <= max(first_ms, self.now_ms)

    def finish(self) -> None:
        """Let everything fire that is not years ahead; a new group gets each one once.

        But for what was handed out to the other group, and went since.
        """
        back_ms = self.highest_ms - self.now_ms  # the read cursor stays where the clock was
        self.move(500 + back_ms // self.slot_ms)
        self.the_log_agrees()
        stats = self.store.stats()
        far = {t.id for t in self.timers.values() if t.state == "cancelled"}
        if all(self.timers[id].due_ms < self.now_ms - self.slot_ms for id in far):
            assert stats.cancelled_count == 0, "the cancelled set was not emptied"
            assert self.store.core.engine.cancelled.set.held_count == 0
        for topic in ("a", "b"):
            ids = [d.id for d in self.store.consume(topic, group="audit", timeout=0)]
            fired = [t.id for t in self.timers.values() if (t.state, t.topic) == ("fired", topic)]
            assert len(set(ids)) == len(ids) and set(ids) <= set(fired)
            gone = set(fired) - set(
                ids
            )  # with retention at once: what the first group is done with
            assert not gone or self.store.core.engine.config.retention_ms == 1
            assert gone <= self.delivered.keys()
            for delivery in self.store.consume(topic, group=GROUP, timeout=0):
                self.delivered[delivery.id] = 1
            assert set(fired) <= self.delivered.keys(), "a group missed a message"
        self.store.close()


TestStore = cases_of(WholeMachine, EXAMPLES, 30, shrinks=True)
