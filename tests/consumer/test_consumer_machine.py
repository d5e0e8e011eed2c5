"""The consumer as a state machine against a dictionary, on a manual clock.

Handlers fail, take long, kill the process, or do well, as each message's script says. The
dictionary holds each copy of each message: as put, as retried, as buried, as redriven. A copy waits
until it is acknowledged, or sent back (then its successor waits), or buried (then that is a dead
letter, until it is redriven).
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.rigs.machine import StoreMachine, cases_of
from tests.rigs.storm_taken import entry_of, queue_of
from tests.small_store import SMALL
from tests.tiers import how_many
from timerstore import (
    Consumer,
    Delivery,
    ManualClock,
    Retry,
    StoreFullError,
    TimerStore,
)
from timerstore.calls.consuming import run as run_module
from timerstore.calls.consuming.consuming import begin_groups
from timerstore.calls.consuming.delivery import AGAIN_MS
from timerstore.core.offsets import read_tables
from timerstore.testing.disk import QuietDisk

pytestmark = pytest.mark.long

EXAMPLES = how_many("MACHINE_EXAMPLES", 10, 100)
TIMEOUT_MS = 20_000
MAX_ATTEMPTS = 3
GROUP, RETRY, DEAD_LETTERS = "g", "%RETRY%g", "%DLQ%g"
SCRIPT = st.lists(
    st.sampled_from(
        [
            *("raise", "retry", "retry 1", "retry 6", "retry 1234 ms", "give up", "wrong"),
            "slow",
            "slowish",
            "kill",
            "flush, kill",
        ]
    ),
    max_size=6,
)


class Killed(KeyboardInterrupt):
    """The process is gone."""


@dataclass
class Copy:
    """One message of the log as the dictionary has it."""

    id: str
    attempt: int
    due_ms: int
    state: str = "waiting"
    place: tuple[str, int] | None = None  # queue, index; once it was handled


class ConsumerMachine(StoreMachine):
    """A store with a consumer, and their dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Copy] = []
        self.scripts: dict[str, list[str]] = {}
        self.lists = False
        self.failing_count = 0
        self.doubled: set[str] = set()
        self.committed: dict[tuple[str, int], int] = {}
        self.busy_until_ms = 0
        self.wrong: AssertionError | None = None

    @initialize(
        commitlog_bytes=st.sampled_from([8192, 1 << 16]),
        durability=st.sampled_from(["group", "process"]),
        count_max=st.sampled_from([1, 3, 1000]),
        pull_count=st.sampled_from([4, 32]),
        batch_count=st.sampled_from([1, 1, 3]),
    )
    def make(
        self,
        commitlog_bytes: int,
        durability: Any,
        count_max: int,
        pull_count: int,
        batch_count: int,
    ) -> None:
        self.options = {"batch_count": batch_count, "pull_count": pull_count}
        self.lists = batch_count > 1
        self.config = replace(
            SMALL,
            durability=durability,
            commitlog_segment_bytes=commitlog_bytes,
            retention_ms=3_600_000,
            inflight_count_max=count_max,
        )
        self.open()

    def open(self) -> None:
        self.clock = ManualClock(self.now_ms)
        path = self.folder / "store"
        self.store = TimerStore(path, config=self.config, clock=self.clock, disk=QuietDisk())
        # Readers of the test's own, so that retention keeps what they have not seen.
        readers = [(DEAD_LETTERS, "order"), (DEAD_LETTERS, "audit")]
        begin_groups(self.store.consuming, readers, "earliest")
        self.committed = {}
        self.busy_until_ms = self.now_ms
        self.consumer = Consumer(
            self.store,
            GROUP,
            max_attempts=MAX_ATTEMPTS,
            timeout=timedelta(milliseconds=TIMEOUT_MS),
            **self.options,
        )
        self.consumer.subscribe("a", self.handle)
        self.consumer.subscribe("b", self.handle)
        self.consumer.start()

    # --- the handler

    def handle(self, got: Any) -> Any:
        deliveries: list[Delivery] = got if self.lists else [got]
        try:
            taken = [self.take(delivery) for delivery in deliveries]
        except AssertionError as e:
            self.wrong = e  # the consumer would take it for a failure of the handler
            raise
        acts = [self.act_of(copy) for copy in taken]
        if "kill" in acts or "flush, kill" in acts:
            if "flush, kill" in acts:
                self.store.flush()
            self.store.abandon()
            raise Killed
        act = next((act for act in acts if act), "")
        level = {"retry 1": 1, "retry 6": 6, "give up": -1}.get(act, 0)
        if act in ("slow", "slowish"):
            wait_ms = TIMEOUT_MS + 7 if act == "slow" else TIMEOUT_MS - 7
            now_ms = self.clock.now_ms
            if act == "slow":
                self.judge(taken, 3, now_ms + TIMEOUT_MS)
            self.clock.advance(timedelta(milliseconds=wait_ms))
            self.busy_until_ms = self.clock.now_ms
            if act == "slowish":
                self.settle(taken)
            return None
        if not act:
            self.settle(taken)
            return None
        good = acts.index(act) if self.lists and act.startswith(("retry", "give up")) else 0
        self.settle(taken[:good])
        own = timedelta(milliseconds=1_234) if act == "retry 1234 ms" else None
        self.judge(taken[good:], level, self.clock.now_ms, own)
        if act == "raise":
            raise OSError("no luck")
        return "done" if act == "wrong" else Retry(delay_level=level, ack_index=good, delay=own)

    def take(self, delivery: Delivery) -> Copy:
        """Find the copy; it must be waiting, and due to the millisecond."""
        now_ms = self.clock.now_ms
        who = delivery.id, delivery.attempt
        same = [c for c in self.copies if (c.id, c.attempt, c.state) == (*who, "waiting")]
        of_it = [copy for copy in self.copies if copy.id == delivery.id]
        assert same, f"{who} was handed out at {now_ms}, and is not waiting: {of_it}"
        copy = min(same, key=lambda each: each.due_ms)
        assert copy.due_ms <= now_ms, f"{copy} came early, at {now_ms}"
        assert now_ms == copy.due_ms or copy.due_ms <= self.busy_until_ms, (
            f"{copy} came late, at {now_ms}"
        )
        run, (index,) = entry_of(delivery)
        copy.place = queue_of(run), index
        assert delivery.topic in ("a", "b")
        assert delivery.body == delivery.properties["body"].encode()
        return copy

    def act_of(self, copy: Copy) -> str:
        script = self.scripts[copy.id]
        return script.pop(0) if script else ""

    def settle(self, copies: list[Copy]) -> None:
        for copy in copies:
            copy.state = "acknowledged"

    def judge(
        self, copies: list[Copy], level: int, now_ms: int, own: timedelta | None = None
    ) -> None:
        """What the rules make of copies that failed."""
        left = self.failing_count
        for copy in copies:
            dead = level < 0 or copy.attempt >= MAX_ATTEMPTS
            if dead and left == self.failing_count == 0:
                copy.state = "buried"
                self.copies.append(Copy(copy.id, copy.attempt + 1, now_ms, "dead letter"))
            elif left or (self.failing_count and dead):
                # The first one that cannot be sent back keeps those behind it too.
                copy.due_ms = now_ms + AGAIN_MS
                # Meanwhile it may take all the room that its queue has.
                self.busy_until_ms = max(self.busy_until_ms, copy.due_ms)
                left = max(left, 1)
            else:
                copy.state = "sent"
                wait_ms = self.config.delay_levels_ms()[(level or 3 + copy.attempt) - 1]
                if own is not None:
                    wait_ms = own // timedelta(milliseconds=1)
                self.copies.append(Copy(copy.id, copy.attempt + 1, now_ms + wait_ms))

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Run handlers; where one kills the process, open the store again."""

        def fail(*_: Any, **__: Any) -> None:
            raise StoreFullError("no space. Free some.")

        failing = [
            mock.patch.object(run_module, name, fail) for name in ("send_back", "send_to_dead")
        ]
        try:
            if self.failing_count:
                for each in failing:
                    each.start()
            yield
        except Killed:
            self.now_ms = self.clock.now_ms
            self.reopen()
        finally:
            mock.patch.stopall()
        self.now_ms = self.clock.now_ms

    # --- what a program does

    @rule(
        topic=st.sampled_from(["a", "b"]),
        delay_ms=st.sampled_from([0, 0, 1, 999, 5_000, 60_000]),
        script=SCRIPT,
    )
    def put(self, topic: str, delay_ms: int, script: list[str]) -> None:
        body = b"%d" % len(self.scripts)
        due_ms = self.now_ms + delay_ms
        id = self.store.put(body, topic=topic, at_ms=due_ms, properties={"body": body.decode()})
        self.scripts[id] = script
        self.copies.append(Copy(id, 0, due_ms))

    @rule()
    def step(self) -> None:
        with self.playing():
            self.consumer.step()

    @rule(ms=st.sampled_from([1, 1_000, 9_999, 30_000, 120_000, 3_600_000]))
    def advance(self, ms: int) -> None:
        before_ms = self.now_ms
        with self.playing():
            self.clock.advance(timedelta(milliseconds=ms))
            assert self.clock.now_ms >= before_ms + ms

    @rule(failing=st.booleans())
    def sending_fails(self, failing: bool) -> None:
        self.failing_count = int(failing)

    @rule()
    def flush(self) -> None:
        self.store.flush()

    @precondition(lambda self: any(copy.state == "dead letter" for copy in self.copies))
    @rule(limit=st.sampled_from([None, 1]))
    def redrive(self, limit: int | None) -> None:
        dead = [copy for copy in self.copies if copy.state == "dead letter"]
        count = self.consumer.retry_dead_letters(limit)
        assert count == len(dead[:limit])
        # Dead letters are read in the order in which they died; the dictionary knows how many.
        revived = self.revived_ids(count)
        for id in revived:
            copy = next(copy for copy in dead if copy.id == id and copy.state == "dead letter")
            copy.state = "redriven"
            self.copies.append(Copy(id, 0, self.now_ms))

    def revived_ids(self, count: int) -> list[str]:
        """The dead letters that were put back, read in their order by a group of the test's own."""
        ids = self.store.pull(DEAD_LETTERS, group="order", max_count=count, timeout=0)
        assert len(ids) == count
        ids.ack()
        self.store.flush()
        return [str(id) for id in ids.ids.to_pylist()]

    @rule(stop_ms=st.sampled_from([0, 1, 7_000, 600_000]))
    def close_and_reopen(self, stop_ms: int) -> None:
        self.consumer.close()
        self.store.close()
        self.now_ms += stop_ms
        self.reopen()

    @rule(stop_ms=st.sampled_from([0, 1, 7_000, 600_000]), flushed=st.booleans())
    def kill_and_reopen(self, stop_ms: int, flushed: bool) -> None:
        if flushed:
            self.store.flush()
        self.store.abandon()
        self.now_ms += stop_ms
        self.reopen()

    def reopen(self) -> None:
        """What the offsets do not say comes again, also where it was done."""
        path = self.folder / "store" / "config" / "consumerOffset.json"
        table, ahead = read_tables(json.loads(path.read_text()))
        for copy in self.copies:
            if copy.place is not None:
                topic, index = copy.place
                name = f"{topic}@{GROUP}"
                done = [(0, table.get(name, {}).get("0", 0)), *ahead.get(name, {}).get("0", [])]
                if not any(start <= index < stop for start, stop in done):
                    if copy.state != "waiting":
                        self.doubled.add(copy.id)
                    copy.state = "waiting"
            if copy.state == "waiting" and copy.place is not None:
                # What was to be handed in again after some seconds is there at once.
                copy.due_ms = min(copy.due_ms, self.now_ms)
        self.open()

    # --- what must hold

    @invariant()
    def handlers_saw_nothing_wrong(self) -> None:
        if self.wrong is not None:
            raise self.wrong

    @invariant()
    def offsets_grow(self) -> None:
        if not self.is_open:
            return
        for subscription in self.consumer._workings.subscriptions:
            for queue, index in subscription.group.committed().items():
                assert index >= self.committed.get(queue, 0), f"{queue} went back"
                self.committed[queue] = index

    @invariant()
    def pending_are_counted(self) -> None:
        if not self.is_open:
            return
        later = [
            copy
            for copy in self.copies
            if copy.state == "waiting" and copy.place is None and copy.due_ms > self.now_ms
        ]
        assert self.store.count() == len(later), later

    def finish(self) -> None:
        """Let everything come to its end: each message is acknowledged, or a dead letter."""
        self.failing_count = 0
        for _ in range(100):
            if all(copy.state != "waiting" for copy in self.copies):
                break
            self.advance(ms=3_600_000)
            self.handlers_saw_nothing_wrong()
        ends = Counter(c.id for c in self.copies if c.state in ("acknowledged", "dead letter"))
        assert ends.keys() == self.scripts.keys(), "a message is lost"
        for id, count in ends.items():
            assert count == 1 or id in self.doubled, f"{id} ended {count} times"
        letters = self.store.consume(DEAD_LETTERS, group="audit", timeout=0)
        dead = Counter(c.id for c in self.copies if c.state in ("dead letter", "redriven"))
        assert dead <= Counter(d.id for d in letters)
        self.consumer.close()
        self.store.close()


TestConsumer = cases_of(ConsumerMachine, EXAMPLES, 25, shrinks=False)
