"""Four processes that share a store are killed at random: nothing is lost, or fires twice.

`SHARE_KILL_SECONDS=600 SEED=7 pytest tests/share/test_share_kill.py` does it for ten
minutes.
"""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import timerstore
from tests.rigs.share_worker import CONFIG, GROUP, TOPIC
from tests.rigs.warm import Warm
from tests.tiers import SEED, Told, how_many

pytestmark = pytest.mark.on_disk

SECONDS = how_many("SHARE_KILL_SECONDS", 2, 60)
WORKER = Path(__file__).parents[1] / "rigs" / "share_worker.py"
COUNT = 4
ENDS = (0, -signal.SIGTERM, -signal.SIGKILL)
"""In order, or before it had begun, or by itself."""


def start(folder: Path, name: str) -> "subprocess.Popen[bytes]":
    with (folder / f"errors.{name}").open("wb") as errors:
        return Warm(
            [sys.executable, "-P", WORKER, folder, name], stdout=subprocess.DEVNULL, stderr=errors
        )


def owner(folder: Path, workers: "dict[str, subprocess.Popen[bytes]]") -> str | None:
    """Which of them owns the store, as its file says."""
    abort = folder / "store" / "abort"
    pid = abort.read_text().strip() if abort.exists() else ""
    return next((name for name, each in workers.items() if str(each.pid) == pid), None)


def lines(folder: Path, kind: str) -> list[list[str]]:
    """Whole lines of all files of a kind; a line that a kill tore says nothing."""
    found = []
    for path in folder.glob(f"{kind}.*"):
        found += [line.split() for line in path.read_text().split("\n")[:-1]]
    return found


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 150)
def test_nothing_is_lost_and_nothing_fires_twice(tmp_path: Path, record_property: Told) -> None:
    rnd = random.Random(SEED)
    workers = {f"w{i}": start(tmp_path, f"w{i}") for i in range(COUNT)}
    made, begun_s = COUNT, time.monotonic()
    kills = Counter[str]()
    try:
        while not list(tmp_path.glob("ready.*")) and time.monotonic() < begun_s + 60:
            time.sleep(0.05)
        until_s = time.monotonic() + SECONDS
        while time.monotonic() < until_s:
            time.sleep(rnd.uniform(0.1, 0.6))
            for name in [name for name, each in workers.items() if each.poll() is not None]:
                assert workers.pop(name).returncode in ENDS
                kills["itself"] += 1
                workers[f"w{made}"] = start(tmp_path, f"w{made}")
                made += 1
            ready = [name for name in sorted(workers) if (tmp_path / f"ready.{name}").exists()]
            if len(ready) < 2:
                continue
            owning = owner(tmp_path, workers)
            name = owning if owning in ready and rnd.random() < 0.6 else rnd.choice(ready)
            how = rnd.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
            workers[name].send_signal(how)
            if how == signal.SIGTERM:
                end = workers.pop(name).wait(60)
                assert end in ENDS, (tmp_path / f"errors.{name}").read_text()
            else:
                workers.pop(name).wait(60)
            kills[how.name] += 1
            workers[f"w{made}"] = start(tmp_path, f"w{made}")
            made += 1
        for name, each in workers.items():
            each.terminate()
            assert each.wait(90) in ENDS, (tmp_path / f"errors.{name}").read_text()
    finally:
        for each in workers.values():
            each.kill()
            each.wait()
    told = "\n".join(each.read_text() for each in tmp_path.glob("errors.*"))
    assert "Traceback" not in told, told[-4000:]
    judge(tmp_path)
    record_property("kills", kills["SIGKILL"])
    print(dict(kills), len(lines(tmp_path, "put")), "acknowledged")


def judge(folder: Path) -> None:
    """Look at the log, from its beginning, as a group of its own."""
    acknowledged = lines(folder, "put")
    cancelled = {id for (id,) in lines(folder, "cancelled")}
    with timerstore.open(folder / "store", config=CONFIG) as store:
        fired_ids, fired_bodies = Counter[str](), Counter[bytes]()
        handled = {id for (id,) in lines(folder, "handled")}
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            batch = store.pull(TOPIC, group="judge", max_count=4096, timeout=0.5)
            fired_ids.update(batch.ids.to_pylist())
            fired_bodies.update(batch.bodies.to_pylist())
            if not len(batch) and not store.count(TOPIC):
                break
        while len(batch := store.pull(TOPIC, group=GROUP, max_count=4096, timeout=0.5)):
            handled.update(batch.ids.to_pylist())
            batch.ack()
    assert len(acknowledged) == len({id for id, _ in acknowledged}) > 50
    expected = {id for id, _ in acknowledged} - {id for (id,) in lines(folder, "tried")}
    assert expected - fired_ids.keys() == set(), "lost"
    assert not cancelled & fired_ids.keys(), "fired although cancelled"
    assert {id: n for id, n in fired_ids.items() if n > 1} == {}, "fired twice"
    assert {body: n for body, n in fired_bodies.items() if n > 1} == {}, "put twice"
    assert fired_ids.keys() - handled == set(), "never handled"
