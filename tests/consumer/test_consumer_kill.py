"""A consumer with many threads that is killed with SIGKILL, many times.

None of its messages is lost, none is given up before its last attempt failed.

CONSUMER_KILLS=50 CONSUMER_MESSAGES=100000 in the environment make it a long one; CI does with less.
"""

import os
import random
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.rigs import consumer_worker
from tests.rigs.consumer_worker import CONFIG, GROUP, MAX_ATTEMPTS, TOPIC, open_consumer
from tests.tiers import SEED, Told, how_many
from timerstore import TimerStore
from timerstore.testing import Program

pytestmark = pytest.mark.prove

KILLS = how_many("CONSUMER_KILLS", 5, 40)
MESSAGES = int(os.environ.get("CONSUMER_MESSAGES", "8000"))


def is_drained(store: TimerStore) -> bool:
    """Nothing is pending, and the group's offsets have reached the end of its queues."""
    if store.count():
        return False
    reader = store.consuming.group(TOPIC, GROUP)
    return all(
        index == store.core.engine.queues.next_index(store.core.engine.queues.row(topic.encode()))
        for (topic, _), index in reader.committed().items()
    )


def finish(store: TimerStore) -> None:
    """Handle all that is left."""
    with open_consumer(store, 0):
        deadline = time.monotonic() + 240
        while not is_drained(store):
            assert time.monotonic() < deadline, "it does not come to an end"
            time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(300 + 4 * KILLS)
def test_killed_again_and_again(tmp_path: Path, record_property: Told) -> None:
    rnd = random.Random(SEED)
    path = tmp_path / "store"
    with TimerStore(path, config=CONFIG) as store:
        delays = [rnd.randrange(200 * KILLS) for _ in range(MESSAGES)]
        ids = set(store.put_many([b"job"] * MESSAGES, topic=TOPIC, delay_ms=delays))
    with Program(consumer_worker.work, prepare=consumer_worker.prepare) as program:
        for _ in range(KILLS):
            after_s = rnd.choice((0.1, rnd.uniform(0.1, 0.8)))
            program.kill(path, rnd.randrange(1 << 30), after_s=after_s)
    with TimerStore(path, config=CONFIG) as store:
        finish(store)
        dead = {d.id: d.attempt for d in store.consume(f"%DLQ%{GROUP}", timeout=0)}
    failed: dict[str, set[int]] = defaultdict(set)
    done: set[str] = set()
    count = 0
    for line in (tmp_path / "handled").read_text().splitlines():
        id, attempt, what = line.split()
        count += 1
        if what == "done":
            done.add(id)
        else:
            failed[id].add(int(attempt))
    assert done | dead.keys() == ids, "a message is lost"
    for id, attempt in dead.items():
        assert attempt == MAX_ATTEMPTS + 1
        assert failed[id] == set(range(MAX_ATTEMPTS + 1)), f"{id} was given up too early"
    record_property("kills", KILLS)
    print(f"{KILLS} kills, {MESSAGES} messages, {count} handled, {len(dead)} dead letters")
