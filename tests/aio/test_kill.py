"""A process with an event loop is killed, or interrupted: nothing is lost, or done too soon."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import timerstore
from tests.aio.loops import LOOPS
from tests.markdown import ROOT
from tests.rigs.warm import Warm
from tests.tiers import SEED, Told, how_many

pytestmark = pytest.mark.on_disk

KILLS = how_many("AIO_KILLS", 2, 20)


@pytest.mark.slow
@pytest.mark.timeout(60 + 20 * KILLS)
def test_what_was_put_is_handled_to_its_end_or_comes_again(
    tmp_path: Path, record_property: Told
) -> None:
    folder, journal = tmp_path / "s", tmp_path / "journal"
    rng = random.Random(SEED)
    for i in range(KILLS):
        arguments = [str(i * 1_000_000), LOOPS[i % len(LOOPS)], ("group", "process")[i // 2 % 2]]
        script = ROOT / "tests" / "rigs" / "aio_worker.py"
        process = Warm(
            [sys.executable, "-P", str(script), str(folder), str(journal), *arguments],
            stderr=subprocess.DEVNULL,
        )
        seen = journal.stat().st_size if journal.exists() else 0
        while not journal.exists() or journal.stat().st_size == seen:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(rng.random())
        process.send_signal(signal.SIGKILL if i % 2 == 0 else signal.SIGINT)
        process.wait(30)
    lines = [line.split() for line in journal.read_text().splitlines()]
    put = {number for what, number in lines if what == "put"}
    done = {number for what, number in lines if what == "done"}
    with timerstore.open(folder) as store:
        left = {timer.body.decode() for timer in store.pending()}
        left |= {d.body.decode() for d in store.consume("t", group="g", timeout=0.1)}
    assert len(put) > 20 and len(done) > 20
    assert put - done - left == set()
    record_property("kills", KILLS)
