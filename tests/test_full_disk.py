"""A full disk never ends the process, on file systems with large folios either: it is an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loop_disk import mounted

pytestmark = pytest.mark.slow

_FOLIO = """
import sys
from pathlib import Path
import timerstore
from tests.loop_disk import fill

root = Path(sys.argv[1])
config = timerstore.Config(commitlog_segment_bytes=40 << 20, durability="process")
store = timerstore.open(root / "store", config=config)
log = store.core.engine.commitlog
with log.lock:
    file = log.ensure(0)
    log.disk.allocate(file, (34 << 20) + (512 << 10))
    log._enter(0, file)
file.path.read_bytes()  # as a copy of the store does: the page cache has folios of 2 MiB now
fill(root / "filling", left_bytes=1 << 19)
count = 0
try:
    while True:
        count += len(store.put_many([bytes(60_000)] * 8, delay_ms=3_600_000))
except timerstore.StoreFullError as e:
    count += len(e.ids)
assert store.count() == count > 500, (store.count(), count)
(root / "filling").unlink()
store.put_many([bytes(60_000)], delay_ms=3_600_000)
store.close()
with timerstore.open(root / "store") as store:
    assert store.count() == count + 1
"""


def _run(program: str, root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-X", "faulthandler", "-c", program, str(root)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    assert done.returncode == 0, done.stderr[-3_000:]


@pytest.mark.parametrize("kind", ["xfs", "ext4"])
def test_a_folio_that_reaches_beyond_what_was_granted(tmp_path: Path, kind: str) -> None:
    """Its pages cannot be written to on a full disk, though the file has their blocks."""
    with mounted(tmp_path, kind) as root:
        _run(_FOLIO, root)
