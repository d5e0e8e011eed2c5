"""Stores that Hypothesis makes up: what is put, cancelled, moved, sent back, how they end."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from tests.models.quiet_disk import QuietDisk
from timerstore import Config, ManualClock, TimerStore
from timerstore.consuming.sendback import send_back
from timerstore.errors import InvalidArgumentError, TooLateError

START_MS = 1_800_000_000_000
DELAYS = st.one_of(st.integers(-5, 12), st.integers(0, 60), st.sampled_from([200, 10**9]))


class Step(NamedTuple):
    """One thing that happens; what `number` means depends on it."""

    what: str
    number: int = 0
    delays: tuple[int, ...] = ()


class Story(NamedTuple):
    """A store's life."""

    config: Config
    steps: tuple[Step, ...]
    ends_in: str


def configs() -> st.SearchStrategy[Config]:
    return st.builds(
        Config,
        durability=st.just("process"),
        precision_ms=st.sampled_from([100, 1000]),
        roll_window_slots=st.integers(2, 12),
        wheel_slot_count=st.just(128),
        commitlog_segment_bytes=st.sampled_from([4096, 6144, 1 << 16]),
        timerlog_segment_bytes=st.sampled_from([104, 520, 5248]),
        consumequeue_segment_bytes=st.sampled_from([60, 2000]),
        retention_ms=st.sampled_from([1_000, 3_600_000]),
        near_count_max=st.just(1 << 16),
    )


def steps() -> st.SearchStrategy[Step]:
    numbers = st.integers(0, 999)
    return st.one_of(
        st.builds(Step, st.just("put"), numbers, st.lists(DELAYS, min_size=1).map(tuple)),
        st.builds(Step, st.sampled_from(["cancel", "move", "nack", "pull"]), numbers),
        st.builds(Step, st.sampled_from(["level", "back"]), numbers),
        st.builds(Step, st.just("advance"), st.one_of(st.integers(1, 30), st.integers(60, 200))),
        st.builds(Step, st.sampled_from(["flush", "kill", "close"])),
    )


def stories() -> st.SearchStrategy[Story]:
    many = st.lists(steps(), min_size=1, max_size=20).map(tuple)
    return st.builds(Story, configs(), many, st.sampled_from(["close", "kill"]))


class Told(NamedTuple):
    """A store that a story left behind."""

    path: Path
    pending: int


def tell(story: Story, path: Path) -> Told:
    """Let a story happen; return how many timers are pending at its end."""
    return _Teller(story, path).tell()


class _Teller:
    def __init__(self, story: Story, path: Path) -> None:
        self.story, self.path, self.now_ms = story, path, START_MS
        self.ids: list[str] = []
        self.open()

    def open(self) -> None:
        self.clock = ManualClock(self.now_ms, force=True)
        config = self.story.config
        self.store = TimerStore(self.path, config=config, clock=self.clock, disk=QuietDisk())

    def tell(self) -> Told:
        for step in self.story.steps:
            self.happen(step)
        pending = self.store.count()
        if self.story.ends_in == "close":
            self.store.close()
        else:
            self.store.abandon()
        return Told(self.path, pending)

    def happen(self, step: Step) -> None:
        store, what, number = self.store, step.what, step.number
        slot_ms = self.story.config.precision_ms
        if what == "put":
            at_ms = [self.now_ms + delay * slot_ms + number for delay in step.delays]
            bodies = [b"%d" % i * (1 + i % 40) for i in range(len(at_ms))]
            topic = "ab"[number % 2]
            tag = "t" * (number % 3) or None
            self.ids += list(store.put_many(bodies, topic=topic, at_ms=at_ms, tag=tag))
        elif what in ("cancel", "move") and self.ids:
            self.change(self.ids[number % len(self.ids)], what, number)
        elif what == "level":
            bodies = [b"level"] * (1 + number % 7)
            ids = store.put_many(bodies, topic="ab"[number % 2], delay_level=1 + number % 4)
            self.ids += list(ids)
        elif what == "back":
            # What was sent back once comes from its own topic, and may be sent back again.
            topic = ["a", "b", "%RETRY%g"][number % 3]
            batch = store.pull(topic, group="g", timeout=0, max_count=1 + number % 4)
            for delivery in batch:
                message = delivery._handed.message(delivery._i)
                send_back(store.putting, "g", message, delay_level=1 + number % 4)
            batch.ack()
        elif what in ("nack", "pull"):
            batch = store.pull("a", timeout=0, max_count=1 + number % 4)
            for delivery in batch if what == "nack" else ():
                delivery.nack(timedelta(milliseconds=number * 10))
            batch.ack()
        elif what == "advance":
            self.now_ms += number * slot_ms
            self.clock.advance(timedelta(milliseconds=number * slot_ms))
        elif what == "flush":
            store.flush()
        elif what in ("kill", "close"):
            (store.abandon if what == "kill" else store.close)()
            self.open()

    def change(self, id: str, what: str, number: int) -> None:
        if what == "cancel":
            self.store.cancel(id)
            return
        with suppress(TooLateError, InvalidArgumentError):  # gone, or in a delay level
            self.ids.append(self.store.reschedule(id, at_ms=self.now_ms + number * 100))
