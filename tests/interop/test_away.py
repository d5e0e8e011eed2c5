"""A proxy or a broker that is away while programs use the cluster: frozen, or killed.

Nothing hangs, each call says what is the matter, nothing that was acknowledged is lost, and all go
on once it is back.
"""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.rocketmq
from tests.cli.shell import SMALL, finish, process
from tests.interop.brokers import Brokers
from tests.interop.conftest import ROOMY
from tests.interop.parts import Parts
from tests.interop.test_common_calls import now_ms
from timerstore import ClusterError, Consumer, TimerStoreError, TooLateError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.prove,
    # RocketMQ's client calls what Python has renamed.
    pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated"),
]

CONSUMED, PULLED, MOVED = "consumed", "pulled", "moved"
AWAY_S = 12


def take_away(parts: Parts, how: str) -> None:
    """Freeze it or kill it, and have it back after a while."""
    if how == "frozen":
        parts.freeze(AWAY_S)
        return
    parts.kill()
    time.sleep(AWAY_S)
    parts.bring_back()


class Program:
    """Puts, consumes, pulls; notes what it was told."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.put: set[str] = set()
        self.came: Counter[str] = Counter()
        self.acknowledged: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.stop, self.ended = threading.Event(), threading.Event()

    def end(self) -> None:
        """Stop at once, also if something that was put will not come any more."""
        self.stop.set()
        self.ended.set()

    def puts(self) -> None:
        """Put one, then many, to two topics, until it is stopped."""
        rnd = random.Random(1)
        while not self.stop.is_set():
            topic, delay_ms = rnd.choice((CONSUMED, PULLED)), rnd.randrange(4_000)
            try:
                if rnd.random() < 0.5:
                    self.put.add(self.cluster.put(b"x", topic=topic, delay_ms=delay_ms))
                else:
                    bodies = [b"x"] * rnd.randrange(1, 100)
                    ids = self.cluster.put_many(bodies, topic=topic, delay_ms=delay_ms)
                    self.put.update(ids)
            except ClusterError as e:
                self.put.update(getattr(e, "ids", ()))
                self.note(e)
            self.stop.wait(0.05)

    def pulls(self) -> None:
        """Pull; send a few back; until all that was put has come."""
        rnd = random.Random(2)
        while not (self.ended.is_set() or (self.stop.is_set() and self.put <= self.came.keys())):
            try:
                for each in self.cluster.pull(PULLED, group="pullers", timeout=1):
                    self.came[each.id] += 1
                    if rnd.random() < 0.1:
                        each.nack()
                    else:
                        each.ack()
                        self.acknowledged[each.id] += 1
            except (ClusterError, TooLateError) as e:
                self.note(e)
                time.sleep(0.1)

    def handle(self, delivery: Any) -> None:
        self.came[delivery.id] += 1
        if delivery.attempt == 0 and delivery.due_ms % 7 == 0:
            raise ValueError("not yet")

    def note(self, error: TimerStoreError) -> None:
        """What a program is told says what to do."""
        assert (
            "try again" in str(error).lower()
            or "see that its broker" in str(error)
            or (isinstance(error, TooLateError))
        ), error
        self.told[str(error).partition(": ")[2]] += 1


@pytest.mark.timeout(420)
@pytest.mark.parametrize("how", ["frozen", "killed"])
@pytest.mark.parametrize("victim", ["proxy", "broker"])
def test_it_goes_on(
    tmp_path: Path,
    rocketmq: Callable[[Path], Brokers],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    victim: str,
    how: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # there the client's log goes
    with timerstore.open(tmp_path / "timers", config=SMALL) as store:
        bodies, due_ms = [b"%d" % i for i in range(4_000)], now_ms() + 150_000
        moving = set(store.put_many(bodies, topic=MOVED, at_ms=due_ms))
    with ExitStack() as stack:
        path = tmp_path / "broker"
        path.mkdir()
        parts = Parts(tmp_path, stack, victim, path, **ROOMY | {"listenPort": 0})
        parts.broker.ask("topics", path, CONSUMED, PULLED, MOVED)
        cluster = stack.enter_context(timerstore.rocketmq.connect(parts.address, invisible=20))
        program = Program(cluster)
        consumer = Consumer(cluster, "consumers", threads=4, backoff=[1], timeout=10)
        consumer.on(CONSUMED)(program.handle)
        pool = stack.enter_context(ThreadPoolExecutor(3))
        stack.callback(program.end)
        stack.enter_context(consumer)
        made = [pool.submit(program.puts), pool.submit(program.pulls)]
        time.sleep(5)
        move = process("move", tmp_path / "timers", parts.address)
        note = tmp_path / "timers.move"
        while not note.exists() and move.poll() is None:
            time.sleep(0.01)
        with caplog.at_level(logging.WARNING, "timerstore"):
            take_away(parts, how)
            first = finish(move)
            time.sleep(20)
        program.stop.set()
        for each in made:
            each.result()
        while not program.put <= program.came.keys():
            time.sleep(0.1)
        time.sleep(3)
        assert consumer.error is None
        print(f"{len(program.put)} put, {program.told}")
        assert program.told
        assert first[0] != 0 and "try again" in first[2].lower(), first
        status, out, err = finish(process("move", tmp_path / "timers", parts.address))
        assert status == 0 and ", 0 stay" in out, (out, err)
        said = [each.getMessage() for each in caplog.records]
        told = [each for each in said if each.startswith(f"reading {CONSUMED}")]
        # Frozen, what was received before may keep all threads busy until it is back.
        assert (how == "killed") <= len(told) <= 2, said
        got = Counter[str]()
        while got.keys() != moving:
            for delivery in cluster.pull(MOVED, group="movers"):
                got[delivery.id] += 1
                delivery.ack()
        if how == "frozen" or victim == "proxy":
            assert set(program.acknowledged.values()) == {1}
