"""A real process that is killed with SIGKILL at random moments of its work.

It puts, at times and at delay levels, cancels, reschedules and consumes; each time the log must
hold what was acknowledged.

KILL_ROUNDS=400 in the environment kills that often, from SEED=7 on; CI does with fewer.
"""

import os
import random
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests.models.ledger import read_ledger
from tests.rigs.kill_worker import CONFIG, CONFIGS, GROUP, SayingDisk, work
from tests.tiers import SEED, Told, how_many
from timerstore import ManualClock, TimerStore
from timerstore.jit import host
from timerstore.testing import Program
from timerstore.testing.ledger import Ledger, check_counters, check_store

pytestmark = pytest.mark.on_disk

ROUNDS = how_many("KILL_ROUNDS", 10, 100)
LONGEST_S = float(os.environ.get("KILL_S", "0.9"))
"""A child lives so long at most; on a slow machine let it get further."""


def attack(path: Path, program: Program, kind: str, rounds: int, longest_s: float) -> int:
    """Kill a child in each round, after `longest_s` at most; judge; fire the rest at the end.

    Returns how many rounds there were: more than `rounds`, four times as many at most, until a
    segment was used again, and the floor moved if the kind is cleaned. On a busy machine a child
    gets less far.
    """
    rnd, reused_count, killed_count = random.Random(SEED), 0, 0
    ledger = Ledger(levels_ms=CONFIG.delay_levels_ms())
    is_cleaned = kind != "cleaned"
    for number in range(4 * rounds):
        is_reused = kind == "kept" or reused_count or host.RENAME is None
        if number >= rounds and is_reused and is_cleaned:
            break
        killed_count += 1
        kill_s = longest_s * rnd.uniform(*rnd.choice(((0, 0.06), (0, 0.3), (0.3, 1))))
        reused_count += len(program.kill(path, rnd.randrange(1 << 30), kind, after_s=kill_s).said)
        account = program.accounts[str(path)]
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
            assert reused_count or host.RENAME is None
        assert kind != "cleaned" or store.core.engine.world.cleaning.floor > 0
    cancelled = len(account.cancelled)
    print(f"{killed_count} kills, {len(ledger.roots)} timers, {cancelled=}, {reused_count=}")
    return killed_count


@pytest.mark.tier("promise", only=("cleaned",))
@pytest.mark.tier("prove", but=("cleaned",))
@pytest.mark.slow
@pytest.mark.timeout((60 + 10 * ROUNDS) * max(1, LONGEST_S))
@pytest.mark.parametrize("kind", CONFIGS)
def test_killed_again_and_again(tmp_path: Path, kind: str, record_property: Told) -> None:
    with Program(work) as program:
        count = attack(tmp_path / "store", program, kind, ROUNDS, longest_s=LONGEST_S)
    record_property("kills", count)


def open_still(path: Path, kind: str, now_ms: int) -> TimerStore:
    clock = ManualClock(now_ms, force=True)
    return TimerStore(path, config=CONFIGS[kind], clock=clock, disk=SayingDisk())
