"""Chains that go on by acknowledging with a put, in a process that is killed with SIGKILL.

After each kill every chain has one token, and each receipt is there once.

CHAIN_KILLS=200 in the environment kills more often; CI does with few.
"""

import random
import time
from pathlib import Path

import pytest

from tests.models.ledger import read_messages
from tests.rigs.chain_worker import CHAINS, GROUP, RECEIPTS, TOPIC, config_of, prepare, work
from tests.tiers import SEED, Told, how_many
from timerstore import ManualClock, TimerStore
from timerstore.testing import Program

pytestmark = pytest.mark.on_disk

KILLS = how_many("CHAIN_KILLS", 4, 40)


def check(path: Path, durability: str) -> int:
    """Open the store without anybody who goes on; return how far all chains have come."""
    clock = ManualClock(time.time_ns() // 1_000_000, force=True)
    store = TimerStore(path, config=config_of(durability), clock=clock)
    try:
        tokens = [t.body for t in store.pending() if t.topic == TOPIC]
        tokens += [d.body for d in store.consume(TOPIC, group=GROUP, timeout=0)]
        chains = dict(tuple(map(int, each.split(b":"))) for each in tokens)
        assert len(tokens) == len(chains) == CHAINS, sorted(tokens)
        receipts = [d.body for d in store.consume(RECEIPTS, group="look", timeout=0)]
        expected = [b"%d:%d" % (c, n) for c in chains for n in range(0, chains[c], 3)]
        assert sorted(receipts) == sorted(expected)
        return sum(chains.values())
    finally:
        store.abandon()


@pytest.mark.tier("promise", only=("process",))
@pytest.mark.tier("prove", but=("process",))
@pytest.mark.slow
@pytest.mark.timeout(120 + 3 * KILLS)
@pytest.mark.parametrize("durability", ["group", "process"])
def test_killed_again_and_again(tmp_path: Path, durability: str, record_property: Told) -> None:
    rnd = random.Random(SEED)
    path = tmp_path / "store"
    with Program(work, prepare=prepare) as program:
        with TimerStore(path, config=config_of(durability)) as store:
            for c in range(CHAINS):
                store.put(b"%d:0" % c, topic=TOPIC)
        count = kills = 0
        while kills < KILLS or not count:  # a busy machine comes to nothing in a short life
            kills += 1
            seed, after_s = rnd.randrange(1 << 30), rnd.uniform(0.05, 0.6)
            program.kill(path, seed, durability, after_s=after_s)
            if rnd.random() < 0.7:  # else killed twice without a look
                count = check(path, durability)
        count = check(path, durability)
    torn = [each for each in read_messages(path) if each.topic == "rmq_sys_timerstore_acks"]
    record_property("kills", kills)
    print(f"{kills} kills, {count} steps of {CHAINS} chains, {len(torn)} records")
