"""A broker's stores fire after cleaning what they fire without it, each at its own millisecond."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.models.ledger import read_messages
from timerstore import Config, ManualClock, TimerStore, Tuning, verify
from timerstore.testing.disk import QuietDisk
from timerstore.validation import validate

pytestmark = pytest.mark.slow

# From the store's last message on: its timers, which lie up to ten days ahead, begin to be cleaned
# once the delay levels, the longest of which is two hours, have delivered what holds the log.
MOMENTS_S = [1, 5, 60, 7_300, 8_000, 40_000, *range(86_400, 12 * 86_400, 43_200)]


class Fired(NamedTuple):
    """A message as it was handed out."""

    topic: str
    id: str
    body: bytes
    due_ms: int
    fired_ms: int


class Life:
    """A golden store that runs on, a group reading all its topics."""

    def __init__(self, path: Path, *, cleaned: bool) -> None:
        messages = read_messages(path)
        self.path, self.cleaned = path, cleaned
        self.end = messages[-1].offset
        self.topics = sorted({m.properties.get("REAL_TOPIC", m.topic) for m in messages})
        self.start_ms = max(message.stored_ms for message in messages)
        self.now_ms = self.start_ms
        self.copied_count = 0
        self.fired: list[Fired] = []
        self.config = Config(
            durability="process",
            tuning=Tuning(
                precision_ms=1_000 if path.name == "pending" else 100,
                roll_window_slots=172_800 if path.name == "pending" else 20,
                cleaning=cleaned,
                cleaning_factor=1,
                cleaning_slack_bytes=0,
            ),
        )
        self.open()

    def open(self) -> None:
        self.clock = ManualClock(self.now_ms, force=True)
        self.store = TimerStore(self.path, config=self.config, clock=self.clock, disk=QuietDisk())

    def reopen(self, how: str) -> None:
        getattr(self.store, how)()
        self.open()

    def go_to(self, second: int) -> None:
        """Let time pass up to a second from the start; take what fired; clean all there is."""
        self.now_ms = self.start_ms + 1_000 * second
        self.clock.advance(timedelta(milliseconds=self.now_ms - self.clock.now_ms))
        for topic in self.topics:
            while len(batch := self.store.pull(topic, timeout=0)):
                self.fired += [
                    Fired(topic, each.id, each.body, each.due_ms, each.fired_ms) for each in batch
                ]
                batch.ack()
        before = self.store.stats().cleaning.copied_count
        if self.cleaned:
            self.store.clean()
        self.store.flush()
        self.copied_count += self.store.stats().cleaning.copied_count - before

    def fill_a_segment(self) -> None:
        """Put, and consume, so much that the segment which a broker left half full can go."""
        count = self.store.core.engine.commitlog.segment_bytes // 10_000
        self.store.put_many([b"x" * 10_000] * count, topic="filler")
        self.clock.advance(timedelta(seconds=1))
        while len(batch := self.store.pull("filler", timeout=0)):
            batch.ack()
        self.store.clean()
        self.store.flush()

    def pending(self) -> list[tuple[str, str, bytes, int]]:
        return sorted((t.topic, t.id, t.body, t.due_ms) for t in self.store.pending())


@pytest.mark.tier("prove", but=("crashed-abandon",))
@pytest.mark.parametrize("how", ["close", "abandon"])
@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
def test_what_comes_out_is_the_same(golden: Callable[[str], Path], name: str, how: str) -> None:
    """Also over reopening, and over a crash, after which passes begin again."""
    plain, cleaned = (Life(golden(name), cleaned=each) for each in (False, True))
    for turn, second in enumerate(MOMENTS_S):
        plain.go_to(second)
        cleaned.go_to(second)
        assert cleaned.pending() == plain.pending()
        assert cleaned.store.count() == plain.store.count()
        if turn % 3 == 0:
            cleaned.reopen(how)
    assert plain.store.count() == cleaned.store.count() == 0
    assert sorted(cleaned.fired) == sorted(plain.fired)
    cleaned.fill_a_segment()
    # What a broker wrote is gone: the segments that it left, and the copies of what was pending.
    assert cleaned.store.core.engine.commitlog.start > cleaned.end
    assert (cleaned.copied_count > 1_000) == (name == "pending")
    assert plain.copied_count == 0
    cleaned.store.close()
    assert verify(cleaned.path).ok
    assert validate(cleaned.path).ok, str(validate(cleaned.path))
