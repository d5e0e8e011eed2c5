"""A store that is dropped without `close` is not closed: whoever opens it again is told so."""

import subprocess
import sys
from pathlib import Path

import pytest

import timerstore
from tests.small_store import SMALL

pytestmark = pytest.mark.long

PROGRAM = """
import gc, sys, time
import timerstore
from tests.small_store import SMALL


def drop(path):
    store = timerstore.open(path, config=SMALL)
    store.put_many([b"1", b"2"], delay_ms=[700, 700])
    ring = [store]
    ring.append(ring)


drop(sys.argv[1])
gc.collect()
try:
    timerstore.open(sys.argv[1], config=SMALL)
except timerstore.StoreLockedError as e:
    print(e)
until_s = time.monotonic() + 30
while time.monotonic() < until_s:
    with timerstore.open(sys.argv[1], read_only=True, config=SMALL) as reader:
        if not reader.count():
            print("fired")
            break
    time.sleep(0.05)
"""


@pytest.mark.timeout(100)
def test_a_store_dropped_in_a_cycle_goes_on_and_says_how_long(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "s")]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "stays open until this process ends." in done.stdout
    assert done.stdout.endswith("fired\n"), done.stdout
    with timerstore.open(tmp_path / "s", create=False, config=SMALL) as store:
        assert store.pull("default", max_count=9, timeout=30).bodies
