"""Relays and servers are killed at random: each row becomes one timer, none gets lost.

`OUTBOX_KILLS=500 SEED=7 pytest tests/outbox/test_outbox_kill.py` does it more often.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.outbox.apps import App
from tests.rigs import outbox_life
from tests.rigs.program import FILES
from tests.rigs.waiting import wait_until
from tests.rigs.warm import Warm
from tests.small_store import small
from tests.tiers import SEED, how_many
from timerstore import TimerStore
from timerstore.outbox import Relay
from timerstore.testing import Program

pytestmark = [pytest.mark.on_disk, pytest.mark.slow]

KILLS = how_many("OUTBOX_KILLS", 6, 60)
STEPS = how_many("OUTBOX_STEPS", 5, 60)
WORKER = FILES / "tests" / "rigs" / "outbox_worker.py"


def start(folder: Path, app: App, number: int) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"PYTHONPATH": str(FILES)}
    with (folder / f"errors.{number}").open("wb") as errors:
        worker = Warm(
            [sys.executable, "-P", WORKER, folder / "s", app.url, folder / f"seen.{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        )
    assert worker.stdout and worker.stdout.readline(), (folder / f"errors.{number}").read_text()
    return worker


def killed(worker: "subprocess.Popen[bytes]") -> None:
    worker.kill()
    worker.communicate(timeout=60)


def put_some(app: App, rnd: random.Random, first: int) -> int:
    """Put rows in transactions of any length; return the next number."""
    for _ in range(rnd.randrange(1, 8)):
        count = rnd.choice((1, 1, 2, 30))
        app.put([b"%d" % i for i in range(first, first + count)], key=f"k{first % 5}")
        first += count
    return first


@pytest.mark.promise
@pytest.mark.timeout(KILLS * 20 + 200)
def test_each_row_becomes_one_timer(app: App, tmp_path: Path, record_property: Any) -> None:
    rnd, first = random.Random(SEED), 0
    workers = [start(tmp_path, app, 0)]
    try:
        for kill in range(1, KILLS + 1):
            workers.append(start(tmp_path, app, kill))
            until_s = time.monotonic() + rnd.uniform(0.1, 0.8)
            while time.monotonic() < until_s:
                first = put_some(app, rnd, first)
                if app.server is not None and rnd.random() < 0.1:
                    with app.db() as db:
                        app.server.end_connections(db)
            if app.server is not None and kill % 5 == 0:
                app.server.crash()
                app.server.start()
            killed(workers.pop(rnd.randrange(2)))
        wait_until(lambda: app.count == 0)
        time.sleep(0.5)
    finally:
        for each in workers:
            killed(each)
    judge(tmp_path, first)
    record_property("kills", KILLS + 1)


def judge(folder: Path, count: int) -> None:
    """Each body has one id, which is told by the consumers of all lives."""
    lines = [line for path in folder.glob("seen.*") for line in path.read_bytes().split(b"\n")]
    ids = {tuple(line.split()) for line in lines if line.count(b" ") == 1}
    with timerstore.open(folder / "s", config=small(durability="group")) as store:
        while len(batch := store.pull("t", timeout=1)):
            for d in batch:
                ids.add((d.id.encode(), d.body))
            batch.ack()
    found = Counter(int(body) for _, body in ids)
    assert {number: times for number, times in found.items() if times > 1} == {}, "twice"
    assert set(range(count)) - set(found) == set(), "lost"


# --- at each step of the store's disk


@pytest.mark.prove
@pytest.mark.timeout(200 + 20 * STEPS)
@pytest.mark.parametrize("durability", ["group", "process"])
def test_at_each_step_of_the_disk(tmp_path: Path, durability: str, record_property: Any) -> None:
    """A kill, or a power cut, which the database survives: what it deleted, the store has."""
    crashed, config = 0, outbox_life.config_of(durability)
    with Program(outbox_life.work) as program:

        def life(crash: Any, name: str, **given: int) -> Any:
            (tmp_path / name).mkdir()
            app, path = App(tmp_path / name, None), tmp_path / name / "s"
            bodies = [b"%d" % i for i in range(outbox_life.COUNT)]
            app.put(bodies)
            done = crash(path, durability, app.url, **given)
            with TimerStore(path, config=config) as store:
                relay = Relay(store, app.url)
                while app.count:
                    relay.step()
                relay.close()
                found = Counter[bytes]()
                while len(batch := store.pull("t", timeout=0.3)):
                    found.update(batch.bodies.to_pylist())
            assert found == Counter(bodies)
            return done

        whole = life(program.run, "whole")
        for number in range(STEPS):
            step = (number * whole.step_count + SEED) // STEPS % whole.step_count
            crashed += life(program.kill, f"kill{number}", step=step).crashed
            crashed += life(program.cut_power, f"power{number}", step=step, seed=SEED).crashed
    assert crashed > STEPS
    record_property("cuts", crashed)
