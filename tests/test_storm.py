"""A storm: threads inside all calls at once, with signals, turnover of tiny segments, closes.

`STORM_SECONDS=600 STORM_THREADS=64 STORM_SEED=7 pytest tests/test_storm.py`; `STORM_KILLS=200`
with `KILL_SEED` kills that often.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs.storm_worker import Alarm, Alarms
from tests.test_kill import Nursery, attack

SECONDS = float(os.environ.get("STORM_SECONDS", "25"))
KILLS = int(os.environ.get("STORM_KILLS", "6"))
RIGS = Path(__file__).parent / "rigs"
WORKER = RIGS / "storm_worker.py"


def play(folder: Path, seconds: float, options: dict[str, str], **environment: str) -> None:
    """Run a storm in a process of its own."""
    options = {"--seconds": str(seconds), "--seed": os.environ.get("STORM_SEED", "1"), **options}
    done = subprocess.run(
        [sys.executable, "-P", WORKER, folder, *sum(options.items(), ())],
        capture_output=True,
        text=True,
        timeout=seconds + 280,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_nothing_freezes_and_counts_are_exact(tmp_path: Path) -> None:
    play(tmp_path / "store", SECONDS, {"--threads": os.environ.get("STORM_THREADS", "64")})


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_queues_of_four_places(tmp_path: Path) -> None:
    """Everybody waits for room all the time, and threads change at any bytecode of a kernel."""
    options = {"--threads": "8", "--ring": "4", "--switch-interval": "0.0001"}
    play(tmp_path / "store", SECONDS / 4, options, NUMBA_DISABLE_JIT="1")


@pytest.mark.slow
@pytest.mark.timeout(120 + 15 * KILLS)
@pytest.mark.parametrize("kind", ["reused", "cleaned"])
def test_killed_with_queues_of_four_places(tmp_path: Path, kind: str) -> None:
    """As above, with tiny segments and a SIGKILL in each round; the log's ledger judges."""
    nursery = Nursery(RIGS / "storm_kill_worker.py", NUMBA_DISABLE_JIT="1")
    try:
        attack(tmp_path / "store", nursery, kind, KILLS, longest_s=6)
    finally:
        nursery.close()


def test_an_alarm_is_raised_once() -> None:
    """Whatever deals with it is not interrupted by a second one."""
    before = signal.getsignal(signal.SIGALRM)
    try:
        alarms = Alarms()
        for _ in range(3):
            alarms.arm(1_000)
            with pytest.raises(Alarm):
                signal.raise_signal(signal.SIGALRM)
            signal.raise_signal(signal.SIGALRM)
            alarms.arm(1_000)
            alarms.disarm()
            signal.raise_signal(signal.SIGALRM)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
