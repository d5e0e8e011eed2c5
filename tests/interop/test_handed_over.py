"""A store handed over, whose program goes on with a client of the cluster."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import timerstore
import timerstore.rocketmq
from tests.cli.shell import SMALL, finish, process
from tests.interop.brokers import Brokers
from tests.interop.test_common_calls import now_ms
from tests.markdown import ROOT
from tests.rigs.warm import Warm

pytestmark = [
    pytest.mark.slow,
    # RocketMQ's client calls what Python has renamed.
    pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated"),
    pytest.mark.prove,
]

TOPIC, GROUP = "billing", "mailer"


class Filled(NamedTuple):
    """What a program has put: what it has not read, what is due later, what is to be recalled."""

    unread: list[str]
    timers: list[str]
    wrong: list[str]
    start_ms: int


def fill(store: timerstore.TimerStore) -> Filled:
    """Read some, put some, cancel one."""
    for i in range(20):
        store.put(b"read %d" % i, topic=TOPIC)
    taken = 0
    while taken < 20:
        batch = store.pull(TOPIC, group=GROUP, timeout=20)
        taken += len(batch)
        batch.ack()
    unread = [store.put(b"unread %d" % i, topic=TOPIC) for i in range(5)]
    start_ms = now_ms() + 12_000
    timers = [
        store.put(b"timer %d" % i, topic=TOPIC, at_ms=start_ms + 20 * i, key=f"k{i}")
        for i in range(200)
    ]
    cancelled = store.put(b"cancelled before", topic=TOPIC, at_ms=start_ms)
    assert store.cancel(cancelled)
    wrong = [store.put(b"wrong", topic=TOPIC, at_ms=start_ms + 600_000 + i) for i in range(3)]
    store.flush()
    return Filled(unread, timers, wrong, start_ms)


def fill_until_killed(path: Path) -> None:
    """Fill a store, print what it has, and keep it open."""
    with timerstore.open(path, config=SMALL) as store:
        print(json.dumps(fill(store)), flush=True)
        time.sleep(600)


def filled_and_killed(path: Path) -> Filled:
    """Have a process fill a store, and kill it."""
    code = f"from {__name__} import *; fill_until_killed(Path({str(path)!r}))"
    child = Warm(
        [sys.executable, "-P", "-c", code],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert child.stdout
    watchdog = threading.Timer(120, child.kill)
    watchdog.start()
    line = child.stdout.readline()
    watchdog.cancel()
    child.kill()
    child.communicate()
    return Filled(*json.loads(line))


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "way",
    ["closed, by the command", pytest.param("killed, by a program", marks=pytest.mark.prove)],
)
def test_a_program_takes_its_old_timers_each_once(
    tmp_path: Path, rocketmq: Callable[[Path], Brokers], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    path = tmp_path / "timers"
    if way.startswith("killed"):
        filled = filled_and_killed(path)
        timerstore.open(path, config=SMALL).handover()
    else:
        with timerstore.open(path, config=SMALL) as store:
            filled = fill(store)
        status, _, err = finish(process("handover", path))
        assert status == 0, err
    monkeypatch.setenv("HOME", str(tmp_path))  # there the client's log goes
    got: Counter[str] = Counter()
    with rocketmq(tmp_path / "home") as brokers:
        brokers.ask("names")
        brokers.start(path)
        with timerstore.rocketmq.connect(brokers.proxy(), invisible=10) as cluster:
            for id in filled.wrong:
                assert cluster.cancel(id, topic=TOPIC)
            while len(got) < len(filled.unread) + len(filled.timers):
                for delivery in cluster.pull(TOPIC, group=GROUP, timeout=0):
                    got[delivery.id] += 1
                    assert delivery.id in filled.unread or now_ms() >= filled.start_ms - 1_000
                    delivery.ack()
            assert not cluster.pull(TOPIC, group=GROUP, timeout=0)
    assert got == dict.fromkeys([*filled.unread, *filled.timers], 1)
