"""A real process that is killed with SIGKILL at random moments of its work.

It puts, at times and at delay levels, cancels, reschedules and consumes; each time the log must
hold what was acknowledged.

KILL_ROUNDS=400 in the environment kills that often; CI does with fewer.
"""

import os
import random
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from tests.models.ledger import Ledger, check_counters, check_store, read_ledger
from tests.rigs.kill_worker import CONFIG, CONFIGS, GROUP, SayingDisk
from tests.rigs.nursery import Nursery
from tests.tiers import how_many
from timerstore import ManualClock, TimerStore
from timerstore.jit import host

pytestmark = pytest.mark.on_disk

ROUNDS = how_many("KILL_ROUNDS", 10, 100)
LONGEST_S = float(os.environ.get("KILL_S", "0.9"))
"""A child lives so long at most; on a slow machine let it get further."""


class Account:
    """What all children said together."""

    def __init__(self) -> None:
        self.put: set[str] = set()
        self.cancelled: set[str] = set()
        self.late: set[str] = set()
        self.unsure: set[str] = set()
        self.got: set[str] = set()
        self.reused = 0

    def take(self, said: list[str]) -> None:
        asked: Counter[str] = Counter()
        for line in said:
            word, *ids = line.split()
            if word == "put":
                self.put.add(ids[0])
            elif word == "cancelling":
                asked[ids[0]] += 1
            elif word in ("cancelled", "moved"):
                self.cancelled.add(ids[0])
                self.put.update(ids[1:])
                asked[ids[0]] -= 1
            elif word == "late":
                self.late.add(ids[0])
                asked[ids[0]] -= 1
            elif word == "got":
                self.got.add(ids[0])
            elif word == "reused":
                self.reused += 1
        self.unsure.update(+asked)

    def check(self, ledger: Ledger) -> None:
        roots = {root.key: root for root in ledger.roots.values()}
        assert self.put <= roots.keys(), "a put that was acknowledged is lost"
        for id in self.cancelled:
            assert roots[id].deleted, f"{roots[id]} was cancelled, and is still to come"
        for id in self.got:
            assert roots[id].fired_ms, f"{roots[id]} was handed out, and its firing is lost"
        for id in self.late:
            assert not roots[id].pending, f"{roots[id]} was too late to cancel, and still waits"
        replaced = {root.replaces for root in roots.values() if root.replaces}
        asked = self.cancelled | self.unsure | replaced
        for root in roots.values():
            assert root.deleted <= (root.key in asked)
        for id in replaced:
            assert roots[id].deleted, "both times of a reschedule hold"
        for root in ledger.roots.values():  # the ledger itself allows for a clock that goes back
            assert all(fired >= root.due_ms for fired in root.fired_ms), f"{root} came early"


def attack(path: Path, nursery: Nursery, kind: str, rounds: int, longest_s: float) -> Account:
    """Kill a child in each round, after `longest_s` at most; judge; fire the rest at the end.

    More rounds, four times as many at most, until a segment was used again, and the floor
    moved if the kind is cleaned: on a busy machine a child gets less far.
    """
    rnd, account = random.Random(int(os.environ.get("KILL_SEED", "1"))), Account()
    ledger = Ledger(levels_ms=CONFIG.delay_levels_ms())
    is_cleaned = kind != "cleaned"
    for number in range(4 * rounds):
        is_reused = kind == "kept" or account.reused or host.RENAME is None
        if number >= rounds and is_reused and is_cleaned:
            break
        kill_s = longest_s * rnd.uniform(*rnd.choice(((0, 0.06), (0, 0.3), (0.3, 1))))
        account.take(nursery.run(path, rnd.randrange(1 << 30), kill_s, kind))
        if rnd.random() < 0.3:
            continue  # killed twice without a look
        now_ms = time.time_ns() // 1_000_000
        store = open_still(path, kind, now_ms)
        ledger = read_ledger(path, ledger)
        ledger.check()
        account.check(ledger)
        check_store(store, ledger)
        check_counters(store, ledger)
        assert not ledger.overdue(now_ms), "due timers did not fire at opening"
        is_cleaned = is_cleaned or store.core.engine.world.cleaning.floor > 0
        store.abandon() if rnd.random() < 0.7 else store.close()

    with open_still(path, kind, time.time_ns() // 1_000_000) as store:
        assert isinstance(store.core.clock, ManualClock)
        store.core.clock.advance(timedelta(seconds=6))
        ledger = read_ledger(path, ledger)
        ledger.check()
        account.check(ledger)
        check_store(store, ledger)
        check_counters(store, ledger)
        assert store.count() == 0
        account.got.update(d.id for d in store.consume("default", group=GROUP, timeout=0))
        fired = {root.key for root in ledger.roots.values() if root.fired_ms}
        assert fired <= account.got, "a group missed a message"
        if kind == "kept":
            everyone = [d.id for d in store.consume("default", group="audit", timeout=0)]
            assert sorted(everyone) == sorted(fired)
        else:
            assert account.reused or host.RENAME is None
        assert kind != "cleaned" or store.core.engine.world.cleaning.floor > 0
    cancelled = len(account.cancelled)
    print(f"{rounds} kills, {len(ledger.roots)} timers, {cancelled=}, {account.reused=}")
    return account


@pytest.mark.tier("promise", only=("cleaned",))
@pytest.mark.tier("prove", but=("cleaned",))
@pytest.mark.slow
@pytest.mark.timeout((60 + 10 * ROUNDS) * max(1, LONGEST_S))
@pytest.mark.parametrize("kind", CONFIGS)
def test_killed_again_and_again(tmp_path: Path, kind: str) -> None:
    with Nursery("kill_worker") as nursery:
        attack(tmp_path / "store", nursery, kind, ROUNDS, longest_s=LONGEST_S)


def open_still(path: Path, kind: str, now_ms: int) -> TimerStore:
    clock = ManualClock(now_ms, force=True)
    return TimerStore(path, config=CONFIGS[kind], clock=clock, disk=SayingDisk())
