"""The command `move`, from a store to a cluster whose proxy hands its timers out."""

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.cli.shell import SMALL, finish, process
from tests.interop.conftest import OTHERS
from tests.interop.test_common_calls import now_ms, take
from tests.tiers import SEED
from timerstore.rocketmq.sending import note_of, read_note

pytestmark = [
    pytest.mark.slow,
    # RocketMQ's client calls what Python has renamed.
    pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated"),
]


def test_each_timer_comes_once_under_its_own_id(cluster: Any, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "timers"
    with timerstore.open(path, config=SMALL) as store:
        store.pause("firing")  # also if the commands take longer than that
        start_ms = now_ms() + 10_000
        for i in range(300):  # the first third is overdue when it is sent
            at_ms = start_ms - 11_000 + 110 * i
            store.put(b"%d" % i, topic=topic, at_ms=at_ms, key=f"k{i}")
        wrong = store.put(b"wrong", topic=topic, at_ms=start_ms + 600_000)
        expired = store.put(b"stale", topic=topic, at_ms=start_ms - 11_000, expires_ms=start_ms)
        kept_ms = start_ms + 600_000
        kept = store.put(b"kept", topic=topic, at_ms=start_ms - 11_000, expires_ms=kept_ms)
        far = store.put(b"far", topic=topic, at_ms=start_ms + 2 * 86_400_000)
        normal = store.put(b"x", topic="of-normal", at_ms=start_ms + 600_000)
        wanted = {timer.id: timer for timer in store.pending()}
    status, out, err = finish(process("move", path, cluster.address))
    assert (status, err) == (0, "") and "--partly sends the others" in out
    assert "further ahead" in out and far in out
    assert "for other messages" in out and normal in out
    address = f"rocketmq://{cluster.address}"
    told = finish(process("move", path, address, "--partly", "--json"))
    assert told[0] == 0, told
    assert json.loads(told[1])["moved"] == 303, told
    with timerstore.open(path, config=SMALL) as store:
        assert [timer.id for timer in store.pending()] == [normal, far]
    assert cluster.cancel(wrong, topic=topic)
    again = json.loads(finish(process("move", path, cluster.address, "--partly", "--json"))[1])
    assert again["moved"] == 0
    got: Counter[str] = Counter()
    time.sleep(max(0, start_ms - now_ms()) / 1_000)
    for delivery in take(cluster, topic, 301):
        timer = wanted[delivery.id]
        assert (delivery.body, delivery.key) == (timer.body, timer.key)
        assert 0 <= delivery.due_ms - timer.due_ms < 1_000
        assert delivery.expires_ms == timer.expires_ms
        got[delivery.id] += 1
    assert got == dict.fromkeys(wanted.keys() - {wrong, normal, far, expired}, 1)
    assert got[kept] == 1
    assert not cluster.pull(topic, group="readers", timeout=2)


@pytest.mark.prove
def test_what_is_overdue_goes_to_a_topic_for_timers(cluster: Any, tmp_path: Path) -> None:
    path, topic = tmp_path / "timers", OTHERS["DELAY"]
    with timerstore.open(path, config=SMALL) as store:
        store.pause("firing")
        now = now_ms()
        ids = {store.put(b"x", topic=topic, at_ms=now - ms) for ms in (0, 1_000, 86_400_000)}
    told = finish(process("move", path, cluster.address, "--json"))
    assert told[0] == 0 and json.loads(told[1])["moved"] == 3, told
    assert {each.id for each in take(cluster, topic, 3)} == ids


@pytest.mark.prove
@pytest.mark.timeout(300)
def test_killed_again_and_again(cluster: Any, topic: str, tmp_path: Path) -> None:
    """All come; twice come only those that were under way, of which the note says which."""
    path, rnd = tmp_path / "timers", random.Random(SEED)
    with timerstore.open(path, config=SMALL) as store:
        due_ms = now_ms() + 60_000
        bodies = [b"%d" % i for i in range(3_000)]
        wanted = set(store.put_many(bodies, topic=topic, at_ms=due_ms))
    doubted: set[str] = set()
    for _ in range(4):
        child = process("move", path, cluster.address)
        until_s = time.monotonic() + 60
        while not note_of(path).exists() and time.monotonic() < until_s:
            time.sleep(0.01)
        time.sleep(rnd.random() * 1.5)
        child.kill()
        finish(child)
        doubted.update(read_note(path))
    status, _, err = finish(process("move", path, cluster.address, "--json"))
    assert (status, err) == (0, "")
    assert 0 < len(doubted) <= 4 * 64
    with timerstore.open(path, config=SMALL) as store:
        assert store.count() == 0
    got: Counter[str] = Counter()
    for delivery in cluster.consume(topic, group="killed", timeout=60):
        got[delivery.id] += 1
        delivery.ack()
    assert got.keys() == wanted
    assert {id for id, count in got.items() if count > 1} <= doubted
