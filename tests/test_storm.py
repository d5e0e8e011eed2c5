"""A storm: threads inside all calls at once, with signals, turnover of tiny segments, closes.

`STORM_SECONDS=600 STORM_THREADS=64 STORM_SEED=7 pytest tests/test_storm.py`
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("STORM_SECONDS", "60"))
WORKER = Path(__file__).parent / "rigs" / "storm_worker.py"


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_nothing_freezes_and_counts_are_exact(tmp_path: Path) -> None:
    options = {
        "--seconds": str(SECONDS),
        "--threads": os.environ.get("STORM_THREADS", "64"),
        "--seed": os.environ.get("STORM_SEED", "1"),
    }
    done = subprocess.run(
        [sys.executable, "-P", WORKER, tmp_path / "store", *sum(options.items(), ())],
        capture_output=True,
        text=True,
        timeout=SECONDS + 280,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
