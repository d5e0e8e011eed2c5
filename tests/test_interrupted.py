"""A signal's exception in the midst of what a flush does: nothing is lost, twice, or left held."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.interrupting import Interrupt, interrupted
from tests.small_store import SMALL, few_maps
from timerstore import ManualClock, TimerStore
from timerstore.jit.kernel import INTERPRETED
from timerstore.testing.disk import QuietDisk

pytestmark = pytest.mark.long

START_MS = 1_800_000_000_000
CONFIG = replace(
    SMALL,
    commitlog_segment_bytes=4_096,
    timerlog_segment_bytes=52 * 16,
    retention_ms=0,
    cleaning_slack_bytes=0,
    cleaning_factor=1,
)
FILES = (
    *(
        "services/cleaning/cleaning.py",
        "services/looking/read_units.py",
        "services/cleaning/pass_units.py",
    ),
    "services/cleaning/retention.py",
)


class Life:
    """A store in which one timer in eight is due late, and all the rest goes soon."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, ManualClock(START_MS)
        self.put_count, self.bodies = 0, Counter[bytes]()
        self.open()

    def open(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            few_maps(patch)
            self.store = TimerStore(self.path, config=CONFIG, clock=self.clock, disk=QuietDisk())

    def put(self, count: int) -> None:
        for _ in range(count):
            late = self.put_count % 8 == 0
            delay = timedelta(seconds=300 if late else 1)
            self.store.put(b"%d" % self.put_count, topic="t", delay=delay)
            self.put_count += 1

    def consume(self) -> None:
        for delivery in self.store.consume("t", timeout=0):
            self.bodies[delivery.body] += 1
            delivery.ack()

    def go_on(self) -> None:
        """What is worth cleaning comes up again."""
        self.put(40)
        self.clock.advance(timedelta(seconds=2))
        self.consume()

    def interrupt(self, call: Callable[[], object], at: int, files: tuple[str, ...]) -> bool:
        """Whether the exception came before the call had ended."""
        try:
            with interrupted(at, *files):
                call()
        except Interrupt:
            return True
        return False

    def check(self) -> None:
        """Nothing is held, what can go goes, and each timer fires once."""
        store = self.store
        self.clock.advance(timedelta(seconds=30))
        self.consume()
        store.clean()
        log = store.core.engine.commitlog
        assert log.end - log.start < 800 * store.count() + 20 * log.segment_bytes
        passes = store.core.engine.world.cleaning.pass_count
        assert passes == sum(each.first_slot >= 0 for each in store.core.upkeep.cleaner._passes)
        self.clock.advance(timedelta(seconds=400))
        self.consume()
        assert store.count() == 0
        missing = set(range(self.put_count)) - {int(each) for each in self.bodies}
        assert not missing and set(self.bodies.values()) == {1}


if not INTERPRETED:  # no signal ends a kernel half-way; it would end an interpreted one

    @pytest.mark.timeout(120)
    @pytest.mark.parametrize("call", ["flush", "clean"])
    def test_cleaning_goes_on_wherever_it_was_ended(tmp_path: Path, call: str) -> None:
        life, at, ended = Life(tmp_path / "s"), 0, True
        while ended:
            life.go_on()
            ended = life.interrupt(getattr(life.store, call), at, FILES)
            if at % 3:
                life.store.flush()
            at += 1 + at // 5
        assert at > 300
        life.check()
        life.store.close()
