"""A full disk never ends the process, on file systems with large folios either: it is an error."""

from pathlib import Path

import pytest

from tests.loop_disk import mounted
from tests.rigs.program import FILES, python

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

_FOLIO = """
import os, sys, time
from pathlib import Path
import timerstore
from tests.loop_disk import fill

root = Path(sys.argv[1])
tuning = timerstore.Tuning(commitlog_segment_bytes=40 << 20)
config = timerstore.Config(durability="process", tuning=tuning)
store = timerstore.open(root / "store", config=config)
store.put_many([bytes(600)] * 600, delay_ms=3_600_000)
log = store.core.engine.commitlog
while store.core.engine.timerlog.end < 52 * 600:
    time.sleep(0.01)
with log.lock.guard():
    file = log.ensure(0)
    log.disk.allocate(file, (34 << 20) + (512 << 10))
    log._enter(0, file)
file.path.read_bytes()  # as a copy of the store does: the page cache has folios of 2 MiB now
fill(root / "filling", left_bytes=1 << 19)
count = 600
try:
    while True:
        count += len(store.put_many([bytes(60_000)] * 8, delay_ms=3_600_000))
except timerstore.StoreFullError as e:
    count, error = count + len(e.ids), e
assert store.count() == count > 1_100, (store.count(), count, error)
os.truncate(root / "filling", 0)  # XFS frees an unlinked file some time later
store.put_many([bytes(60_000)], delay_ms=3_600_000)
store.close()
with timerstore.open(root / "store") as store:
    assert store.count() == count + 1
"""


def _run(program: str, root: Path, *arguments: str) -> None:
    run = ["-X", "faulthandler", "-c", program, root, *arguments]
    python(*run, timeout_s=120, PYTHONPATH=str(FILES))


@pytest.mark.tier("prove", but=("xfs",))
@pytest.mark.parametrize("kind", ["xfs", "ext4"])
@pytest.mark.linux  # nothing else tells that a page cannot be written to
def test_a_folio_that_reaches_beyond_what_was_granted(tmp_path: Path, kind: str) -> None:
    """Its pages cannot be written to on a full disk, though the file has their blocks."""
    with mounted(tmp_path, kind) as root:
        _run(_FOLIO, root)


_FILL = """
import os, sys
from datetime import timedelta
from pathlib import Path
import timerstore
from tests.loop_disk import fill

root = Path(sys.argv[1])
tuning = timerstore.Tuning(commitlog_segment_bytes=1 << 20, cleaning_slack_bytes=0)
config = timerstore.Config(durability="process", tuning=tuning)
store = timerstore.open(root / "store", config=config)
fired = store.put_many([b"%d" % i + bytes(6_000) for i in range(1_000)], topic="t", delay_ms=0)
while store.stats().commitlog_end < 2 * 6_000 * 1_000:
    pass
fill(root / "filling", left_bytes=3 << 20)
count = 1_000
try:
    while True:
        store.put(bytes(6_000), topic="later", delay=timedelta(hours=1))
        count += 1
except timerstore.StoreFullError:
    pass
(root.parent / "count").write_text(str(count))
fill(root / "filled")
os._exit(0)
"""

_FREE = """
import sys, time
from datetime import timedelta
from pathlib import Path
import timerstore

root = Path(sys.argv[1])
count = int((root.parent / "count").read_text())
store = timerstore.open(root / "store")
assert store.count() == count - 1_000, (store.count(), count)
seen = set()
for delivery in store.consume("t", timeout=1):
    seen.add(bytes(delivery.body).rstrip(bytes(1)))
    delivery.ack()
assert len(seen) == 1_000, len(seen)
until = time.monotonic() + 60
while True:
    try:
        store.put(bytes(6_000), topic="later", delay=timedelta(hours=1))
        break
    except timerstore.StoreFullError:
        assert time.monotonic() < until, "it makes no room"
        time.sleep(0.1)
store.close()
with timerstore.open(root / "store") as store:
    assert store.count() == count - 1_000 + 1
    assert store.pull("t", timeout=0.5).bodies.to_pylist() == []
"""


@pytest.mark.tier("promise", only=("ext4",))
@pytest.mark.parametrize("kind", ["xfs", "ext4"])
def test_a_store_on_a_full_disk_makes_room(tmp_path: Path, kind: str) -> None:
    """Killed and opened again, it lets consume and acknowledge, and removes what is done."""
    with mounted(tmp_path, kind) as root:
        _run(_FILL, root)
        _run(_FREE, root)


_FILL_TMPFS = """
import os, sys, time
from pathlib import Path
import timerstore
from tests.loop_disk import fill

root, seed = Path(sys.argv[1]), int(sys.argv[2])
tuning = timerstore.Tuning(
    commitlog_segment_bytes=1 << 20,
    timerlog_segment_bytes=52 * 20_000,
    consumequeue_segment_bytes=20 * 20_000,
)
config = timerstore.Config(durability="process", flush_interval_ms=50, tuning=tuning)
store = timerstore.open(root / "store", config=config)
count = refused = 0
while refused < 4:
    size = (10, 2_000, 60_000)[count % 3]
    try:
        count += len(store.put_many([bytes(size)], topic="t%d" % (count % 3), delay_ms=100))
    except timerstore.StoreFullError:
        refused += 1
        time.sleep(0.02)
fill(root / "filling", left_bytes=seed * 4_096)
os._exit(0)
"""

_OPEN_TMPFS = """
import logging, os, sys
from pathlib import Path
import timerstore

logging.disable()
try:
    store = timerstore.open(Path(sys.argv[1]) / "store")
    for topic in ("t0", "t1", "t2"):
        store.pull(topic, timeout=0.05).ack()
    store.flush()
except timerstore.StoreFullError:
    pass
os._exit(0)
"""


@pytest.mark.tier("prove", but=("4",))
@pytest.mark.parametrize("left_pages", [0, 4, 20, 100])
def test_a_full_tmpfs_ends_nobody(tmp_path: Path, left_pages: int) -> None:
    """Reading a hole through a map takes a page there: opening asks where the holes are."""
    with mounted(tmp_path, "tmpfs") as root:
        _run(_FILL_TMPFS, root, str(left_pages))
        for _ in range(2):
            _run(_OPEN_TMPFS, root)


_READ_TMPFS = """
import logging, os, sys
from datetime import timedelta
from pathlib import Path
import timerstore
from tests.loop_disk import fill
from tests.small_store import SMALL

logging.disable()
root, (name, is_small) = Path(sys.argv[1]), sys.argv[2:]
path = root / "store"
config = SMALL if int(is_small) else timerstore.Config.small(12 << 20, durability="process")
store = timerstore.open(path, config=config)
ids = store.put_many([bytes(200)] * 300, topic="t", delay_ms=[60_000 + i for i in range(300)])
for k in range(20):
    store.put(b"k", topic="t", key=f"k{k}", delay=timedelta(hours=1))
store.put_many([b"l"] * 20, topic="t", delay_level=2)
store.put_many([b"f"] * 100, topic="f")
list(store.pull("f", group="g"))[0].nack(timedelta(seconds=60))
store.flush()
if name == "closed":
    store.close()
fill(root / "filling")


def look(store):
    calls = (
        lambda: list(store.pending()),
        lambda: list(store.pending(topic="t", key="k1")),
        lambda: store.pending_columns(),
        lambda: store.horizon(1000),
        lambda: store.upcoming(),
        lambda: store.get_key("t", "k1"),
        lambda: [store.get(each) for each in ids[::7]],
        lambda: [store.find(each) for each in ids[::7]],
        lambda: (store.count(), store.stats(), store.health(), store.dead_letters("g")),
    )
    for call in calls:
        attempt(call)


def attempt(call):
    try:
        return call()
    except timerstore.TimerStoreError:
        return None


def read_only():
    with timerstore.open(path, read_only=True) as opened:
        look(opened)


if name == "open":
    look(store)
    attempt(lambda: store.cancel(ids[0]))
    attempt(lambda: store.reschedule(ids[1], delay=timedelta(hours=2)))
    attempt(lambda: store.put(b"r", topic="t", key="k1", replace=True, delay=60))
    attempt(lambda: store.put(b"r", topic="t", key="k1", if_absent=True, delay=60))
    attempt(lambda: store.backup(Path(sys.argv[1]).parent / "backup"))
attempt(read_only)
attempt(lambda: timerstore.verify(path, config=config))
for table in ("messages", "queues", "units", "slots", "timers", "fired", "checkpoint"):
    attempt(lambda: timerstore.read(path, table))
if name == "closed":
    for _ in range(2):
        opened = attempt(lambda: timerstore.open(path, config=config))
        if opened is not None:
            look(opened)
            attempt(opened.close)
os._exit(0)
"""


@pytest.mark.tier("prove", only=("open-1", "closed-0"))
@pytest.mark.parametrize("is_small", [0, 1])
@pytest.mark.parametrize("name", ["open", "closed"])
def test_reading_on_a_full_tmpfs_ends_nobody(tmp_path: Path, name: str, is_small: int) -> None:
    """The wheel has holes, and so has each log: no call reads one through a map of the file."""
    with mounted(tmp_path, "tmpfs") as root:
        _run(_READ_TMPFS, root, name, str(is_small))
