"""More topics than a process may have files open: its own process may have 256."""

from pathlib import Path

import pytest

from tests.rigs.program import python
from tests.tiers import how_many

TOPICS = how_many("TOPICS", 400, 10_000)
"""A tenth as many groups pull from one of them."""
TIME_LIMIT_S = 300 + TOPICS // 10
_PROGRAM = """
import resource, sys, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import timerstore
from timerstore import Config, TimerStore, Tuning
from timerstore.store.store import ReadOnlyStore
from timerstore.validation import validate

path, durability, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
tuning = Tuning(
    commitlog_segment_bytes=1 << 20,
    consumequeue_segment_bytes=400,
    timerlog_segment_bytes=1 << 16,
)
config = Config(durability=durability, tuning=tuning)
soon_ms = time.time_ns() // 10**6 + 2_000
late_ms = soon_ms + 3_600_000
with TimerStore(path, config=config) as store:
    for i in range(count):
        topic = f"t{i}"
        store.put_many([b"%d" % i] * 2, topic=topic, at_ms=[soon_ms, late_ms])
    assert store.count() <= 2 * count
    for i in range(count):
        batch = store.pull(f"t{i}", timeout=60)
        assert [d.body for d in batch] == [b"%d" % i], i
        batch.ack()
    for i in range(count // 10):
        store.pull("t0", group=f"g{i}", timeout=60).ack()
    assert store.count() == count
with ReadOnlyStore(path) as store:
    assert store.count() == count
for end in ("kill", "close"):
    store = TimerStore(path, config=config)
    assert store.count() == count
    assert store.core.findings.clean == (end == "kill")
    store.put(b"more", topic="t7", delay_level=1)
    store.put(b"new", topic=f"new-{end}", at_ms=late_ms)
    store.flush()
    assert len(store.pull("t7", timeout=30)) == 1
    for i in range(count // 10):
        assert not store.pull("t0", group=f"g{i}", timeout=0), "acknowledged before"
    count += 1
    store.abandon() if end == "kill" else store.close()
result = validate(path)
assert result.ok, result
"""


@pytest.mark.tier("prove", but=("process",))
@pytest.mark.slow
@pytest.mark.timeout(TIME_LIMIT_S)
@pytest.mark.parametrize("durability", ["group", "process"])
def test_more_topics_than_descriptors(tmp_path: Path, durability: str) -> None:
    python("-c", _PROGRAM, tmp_path / "s", durability, TOPICS, timeout_s=TIME_LIMIT_S - 20)
