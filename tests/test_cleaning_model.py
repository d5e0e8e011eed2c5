"""The real store in the histories of `tests/models/cleaning_model.py`, step by step.

What `tests/test_rules_model.py` does, with groups that consume, cleaning in single steps, segments
that are removed, at sizes where all of that happens all the time. Whatever the history, nothing is
lost, twice, early, or fired after a cancel; what is listed is what the log says; and in the end
every segment goes. CLEANING_RUNS=500 in the environment plays more of them.
"""

from pathlib import Path

import pytest

from tests.models import cleaning_model
from tests.models.rules_model import found
from tests.rigs.history import LEVELS, SLOT_MS, UNIT_MS, Act, Acts, History
from tests.tiers import SEED, Told, how_many
from timerstore import Config, Tuning
from timerstore.jit.kernel import INTERPRETED

RUNS = how_many("CLEANING_RUNS", 4 if INTERPRETED else 5, 200)


class CleanedHistory(History):
    """One random history of one small store, which is cleaned."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.eaten: set[str] = set()
        self.copied_count = self.removed_count = 0
        folder.mkdir(exist_ok=True)
        super().__init__(folder, seed)

    # --- opening

    def open(self) -> None:
        rnd = self.rnd
        if not hasattr(self, "store"):
            self.config = Config(
                durability=self.config.durability,
                delay_levels=LEVELS,
                tuning=Tuning(
                    precision_ms=SLOT_MS,
                    roll_window_slots=6,
                    wheel_slot_count=64 * 2,
                    commitlog_segment_bytes=rnd.choice((1 << 11, 1 << 12, 1 << 13)),
                    consumequeue_segment_bytes=rnd.choice((60, 400)),
                    timerlog_segment_bytes=rnd.choice((104, 520)),
                    near_count_max=1 << 14,
                    level_batch_count=rnd.choice((1, 3, 1024)),
                    cleaning=rnd.random() < 0.5,
                    cleaning_slack_bytes=rnd.choice((0, 1 << 13)),
                ),
            )
        Acts.open(self)
        self.play = self.store.core.runner.play
        self.store.core.runner.play = lambda start_ms, stop_ms: None  # type: ignore[method-assign]
        retention = self.store.core.upkeep.retention
        self.run_retention, retention.run = retention.run, self.remove  # type: ignore[method-assign]
        retention._wanted_ahead = lambda: rnd.randrange(4)  # type: ignore[method-assign]
        self.store.core.upkeep.cleaner.wait_slots = rnd.randrange(4)
        self.store.core.upkeep.cleaner.units_at_once = rnd.choice((3, 16, 1_000))
        self.settle()

    # --- what is new

    def someone_puts(self) -> None:
        rnd = self.rnd
        near, far = rnd.randrange(-40, 12), rnd.randrange(100, 900)
        units = rnd.choice((near, rnd.randrange(30), rnd.randrange(260), far))
        due_ms = self.now_ms + units * UNIT_MS + rnd.randrange(UNIT_MS)
        self.before_step = self.end
        id = self.store.put(b"x" * rnd.randrange(1, 60), topic=rnd.choice("ab"), at_ms=due_ms)
        self.put[id] = self.end

    def someone_eats(self) -> None:
        for topic in "ab":
            batch = self.store.pull(topic, max_count=self.rnd.randrange(1, 40), timeout=0)
            if len(batch):
                self.eaten.update(each.id for each in batch)
                batch.ack()

    def many_put(self) -> None:
        """More than a segment, of which nothing is linked yet."""
        for _ in range(self.rnd.randrange(5, 30)):
            self.someone_puts()
        self.clean()

    def clean(self) -> None:
        for _ in range(self.rnd.randrange(1, self.rnd.choice((4, 25)))):
            self.before_step = self.end
            self.store.core.upkeep.cleaner.step()

    def remove(self) -> int:
        """Let segments go, or be used again."""
        self.copied_count += int(self.store.core.engine.world.cleaning.copied_count)
        removed_count = self.run_retention()
        self.removed_count += removed_count
        return removed_count

    def settle(self) -> None:
        super().settle()
        pending = sorted(root.key for root in self.ledger().roots.values() if root.pending)
        assert sorted(each.id for each in self.store.pending()) == pending
        if self.rnd.random() < 0.2:
            for id in self.rnd.sample(pending, min(3, len(pending))):
                timer = self.store.get(id)
                assert timer is not None and timer.id == id

    def acts(self) -> list[tuple[int, Act]]:
        rnd = self.rnd
        return [
            (22, self.someone_puts),
            (4, self.someone_puts_at_a_level),
            (8, self.someone_cancels),
            (12, lambda: self.tick(rnd.randrange(1, 9))),
            (40, self.one_step),
            (7, self.flush),
            (2, lambda: self.tick(rnd.randrange(-240, 241))),
            (3, self.settle),
            (2, self.kill),
            (3, self.power_cut),
            (1, self.close),
            (20, self.clean),
            (6, self.remove),
            (8, self.someone_eats),
            (2, self.many_put),
        ]

    def run(self) -> None:
        self.happen(self.rnd.randrange(60, 200))
        self.free()
        self.finish()

    def free(self) -> None:
        """Clean all there is: nothing stays for a far timer's sake."""
        store = self.store
        self.now_ms = max(self.now_ms, store.core.engine.read_slot * SLOT_MS) + 5_100
        self.clock._now_ms = self.now_ms  # behind all delay levels
        self.settle()
        end = self.end // self.config.commitlog_segment_bytes * self.config.commitlog_segment_bytes
        for _ in range(200):
            self.eat_all()
            while store.core.upkeep.cleaner.step() and store.core.engine.world.cleaning.floor < end:
                pass
            self.tick(4)
            self.settle()
            store.flush()
            if store.core.engine.commitlog.start >= end:
                return
        raise AssertionError(f"space stays: {store.core.engine.commitlog.start} of {end}")

    def eat_all(self) -> None:
        for topic in "ab":
            while len(batch := self.store.pull(topic, timeout=0)):
                self.eaten.update(each.id for each in batch)
                batch.ack()

    def finish(self) -> None:
        close = self.store.close
        self.store.close = lambda: None  # type: ignore[method-assign]
        super().finish()
        self.eat_all()
        fired = {root.key for root in self.ledger().roots.values() if root.fired_ms}
        assert fired <= self.eaten, "what nobody had consumed was removed"
        close()


def test_the_model_itself() -> None:
    assert found(cleaning_model.History, 0, 100) == set()
    # Where something goes wrong first without each rule, and what.
    firsts = {
        ("mark", "floor"): (2, "two live units"),
        ("at", "slot"): (5, "two live units"),
        ("find", "first units"): (0, "lost"),
        ("find", "messages"): (13, "twice"),
        ("frontier", "no"): (225, "twice"),
        ("begins", "fired"): (13, "twice"),
        ("flight", "no"): (1107, "read what was removed"),
        ("end", "early"): (6, "lost"),
        ("end", "late"): (55, "damage"),
        ("units", "first"): (33, "lost"),
        ("rebuild", "scan"): (6, "twice"),
        ("counts", "all"): (0, "two live units"),
        ("hopped", "end"): (169, "two live units"),
        ("near", "copy"): (3, "twice"),
        ("wait", "no"): (0, "lost"),
        ("scan", "early"): (0, "twice"),
        ("capture", "late"): (126, "lost"),
        ("order", "floor first"): (77, "read what was removed"),
        ("remove", "memory"): (10, "read what was removed"),
        ("reach", "all"): (5, "lost"),
        ("deletes", "forget at once"): (283, "cancelled but fired"),
        ("deletes", "never forget"): (16, "count at end"),
        ("deletes", "drop all"): (1496, "reschedule: both"),
        ("eaten", 0): (41, "removed unconsumed"),
        ("cancel", "split"): (0, "lost"),
        ("walk", "-1"): (0, "read what was removed"),
        ("floor", "no"): (0, "two live units"),
        ("hold", "ignored"): (0, "listing: left out"),
        ("lapse", "silent"): (0, "listing: left out"),
        ("listed", "place"): (5, "listing: twice"),
        ("dead", "copy"): (2, "reschedule: both"),
    }
    assert len(firsts) == len(cleaning_model.WRONG)
    for wrong in cleaning_model.WRONG:
        seed, what = firsts[next(iter(wrong.items()))]
        # What listings hold is not missed.
        switches = {"listings": 0} | wrong
        assert what in found(cleaning_model.History, seed, 1, **switches), wrong
    for same in cleaning_model.SAME:
        assert found(cleaning_model.History, 0, 10, **same) == set(), same


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
def test_history(seed: int, tmp_path: Path, record_property: Told) -> None:
    history = CleanedHistory(tmp_path, seed)
    history.run()
    record_property("cuts", history.lives)


@pytest.mark.long
def test_it_cleans(tmp_path: Path) -> None:
    for seed in range(3):
        history = CleanedHistory(tmp_path / str(seed), seed)
        history.run()
        if history.copied_count and history.removed_count:
            return
    pytest.fail("nothing was copied, or nothing removed")
