"""Random histories in which pages are missing, at the smallest sizes: what is owed is never lost.

Those of `tests/test_rules_model.py` and `tests/test_cleaning_model.py`, interpreted, with kernels
that take a few units at a time, rings of two entries, a clock that steps by anything up to an hour,
listings in between, openings after which nothing is played at once; with units that are damaged
while they are owed, and scrubbing. OWED_RUNS=200 in the
environment plays more of them, from SEED on.
"""

import random
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from tests.rigs.history import SLOT_MS, Act, History
from tests.services.alone import step
from tests.test_cleaning_model import CleanedHistory
from tests.tiers import SEED, how_many
from tests.wheel_checks import check_near
from timerstore import TimerStore
from timerstore.jit.kernel import INTERPRETED
from timerstore.jit.record import acting_as
from timerstore.services.looking.instant import list_owed
from timerstore.services.looking.read_units import slot_units
from timerstore.services.pipeline import dequeue_get
from timerstore.services.world.needs import NOTHING
from timerstore.services.world.state import DEQUEUE_GET, PREFETCH
from timerstore.testing.ledger import Root
from timerstore.timelog.bytes import format as fmt

RUNS = how_many("OWED_RUNS", 1, 20)
SIZES = {
    "RING_COUNT": (2, 2, 4, 4_096),
    "CLAIM_UNITS": (1, 2, 7, 2_048),
    "CLAIM_SLOTS": (1, 2, 256),
    "TAKE_COUNT": (1, 5, 1_024),
    "COLD_COUNT": (1, 2, 256),
    "HOP_COUNT": (1, 2, 64),
    "FIRST_COUNT": (0, 0, 3, 16_384),
}
STEPS_MS = 1, 99, 101, 1_000, 60_000, 3_600_000


class ColdHistory(History):
    """One in which pages are missing by chance."""

    patches: ExitStack
    opens = False
    most_owed = 0

    def open(self) -> None:
        first = not hasattr(self, "store")
        self.opens = not first and self.rnd.random() < 0.7  # what is owed then stays so for a while
        super().open()
        self.opens = False
        with acting_as(DEQUEUE_GET):
            self.store.core.engine.world.dequeue_get.touch_ns = 0
        self.set_cold()

    def set_cold(self) -> None:
        self.say_cold(self.rnd.random() < 0.8)

    def say_cold(self, is_cold: bool) -> None:
        with acting_as(PREFETCH):
            self.store.core.engine.world.prefetch.is_active = int(is_cold)

    def settle(self) -> None:
        if not self.opens:
            self.say_cold(False)  # on a clock moved by hand nobody looks for pages
            super().settle()
            self.set_cold()

    def one_step(self) -> None:
        super().one_step()
        engine = self.store.core.engine
        get, passed = engine.world.dequeue_get, engine.read_slot
        assert passed <= get.walked_slot <= get.owed_slot <= get.claimed_slot
        assert get.claimed_slot - passed <= self.config.wheel_slot_count // 2
        owed = get.claimed_slot - get.owed_slot
        self.most_owed = max(self.most_owed, owed)
        if self.rnd.random() < 0.1:
            check_near(engine.near)
            self.step_twice()

    def step_twice(self) -> None:
        """What found no work finds none in the next step: else a manual clock stops too early."""
        engine = self.store.core.engine
        self.say_cold(False)
        for _ in range(9):
            self.before_step = self.end
            done = step(engine.world, DEQUEUE_GET, self.now_ms)
            if engine.need(DEQUEUE_GET) == NOTHING and done == 0:
                assert step(engine.world, DEQUEUE_GET, self.now_ms) == 0
                break
        self.set_cold()

    def step_clock(self) -> None:
        self.tick(-1)  # what was taken by the old one is appended
        self.now_ms += self.rnd.choice(STEPS_MS) * self.rnd.choice((1, 1, 1, -1))
        self.clock._now_ms = self.now_ms

    def put_together(self) -> None:
        rnd = self.rnd
        at_ms, spread_ms = self.now_ms + rnd.randrange(-300, 1_500), rnd.choice((1, 100, 400))
        for _ in range(rnd.randrange(3, 20)):
            self.before_step = self.end
            due_ms = at_ms + rnd.randrange(spread_ms)
            id = self.store.put(b"m" * rnd.randrange(1, 60), topic=rnd.choice("ab"), at_ms=due_ms)
            self.put[id] = self.end

    def look(self) -> None:
        pending = {root.key for root in self.ledger().roots.values() if root.pending}
        assert {timer.id for timer in self.store.pending()} == pending
        for id in self.rnd.sample(sorted(pending), min(3, len(pending))):
            timer = self.store.get(id)
            assert timer is not None and timer.id == id

    def acts(self) -> list[tuple[int, Act]]:
        mine = [(4, self.set_cold), (3, self.step_clock), (6, self.put_together), (3, self.look)]
        return [*super().acts(), *mine, (10, self.someone_cancels)]


class ColdCleanedHistory(ColdHistory, CleanedHistory):
    """The same, with cleaning and retention."""


class DamagedHistory(ColdHistory):
    """One in which units of owed slots are damaged: only their own timers wait for an opening."""

    damaged: set[str]  # whose units were, since the timer index was made anew
    damaged_in: TimerStore | None = None

    def may_wait(self, root: Root) -> bool:
        return root.key in self.damaged

    def settle(self) -> None:
        if self.damaged_in is not self.store:
            if self.damaged_in is None or "timer index" in self.store.core.findings.rebuilt:
                self.damaged = set()
            self.damaged_in = self.store
        super().settle()

    def damage(self) -> None:
        """Flip a bit of a unit that is owed; by chance of one beside it in its slot, too."""
        engine, rnd = self.store.core.engine, self.rnd
        rows = np.zeros((200, 2), np.int64)
        count = list_owed(engine.world, rows)
        if not 0 < count <= len(rows):
            return
        slot, offset = rows[rnd.randrange(count)].tolist()
        offsets, messages = list[int](), list[int]()
        for units in slot_units(engine, slot, offset):
            offsets += units.offset.tolist()
            messages += units.message.tolist()
        roots = self.ledger().root_of
        for at in rnd.sample(range(len(offsets)), min(len(offsets), rnd.choice((1, 1, 2)))):
            root = roots.get(messages[at])
            if root is not None:
                self.damaged.add(root.key)
            unit = engine.timerlog.view(offsets[at])[: fmt.UNIT_BYTES]
            unit[rnd.randrange(len(unit))] ^= 1 << rnd.randrange(8)

    def scrub(self) -> None:
        for _ in range(self.rnd.randrange(1, 6)):
            self.store.core.upkeep.scrub.step()

    def look(self) -> None:
        pending = {root.key for root in self.ledger().roots.values() if root.pending}
        assert {timer.id for timer in self.store.pending()} | self.damaged >= pending

    def finish(self) -> None:
        self.now_ms = max(self.now_ms, self.store.core.engine.read_slot * SLOT_MS) + 100_000
        self.clock._now_ms = self.now_ms
        self.settle()
        self.close()
        super().finish()

    def acts(self) -> list[tuple[int, Act]]:
        return [*super().acts(), (8, self.damage), (4, self.scrub)]


if INTERPRETED:

    @pytest.mark.parametrize("kind", [ColdHistory, ColdCleanedHistory, DamagedHistory])
    @pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
    def test_history(seed: int, kind: type[ColdHistory], tmp_path: Path) -> None:
        rnd = random.Random(seed)
        hit = rnd.choice((0.0, 0.3, 0.7, 0.95))
        with ExitStack() as patches:
            for name, values in SIZES.items():
                value = rnd.choice(values)
                for module in [m for at, m in sys.modules.items() if at.startswith("timerstore.")]:
                    if isinstance(getattr(module, name, None), int):
                        patches.enter_context(patch.object(module, name, value))
            patches.enter_context(
                patch.object(dequeue_get, "is_resident", lambda *_: rnd.random() < hit)
            )
            kind(tmp_path, seed).run()
