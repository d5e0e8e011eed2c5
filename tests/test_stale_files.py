"""Each file in turn is an older version of itself: no reader raises anything but our errors."""

import contextlib
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.small_store import small
from tests.sparse_copy import copy_tree
from timerstore import ManualClock, TimerStore, TimerStoreError
from timerstore.testing.disk import QuietDisk
from timerstore.validation import validate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120, method="signal")]
START_MS = 1_800_000_000_000
CONFIG = small(
    16_384,
    640,
    52 * 20,
    precision_ms=100,
    roll_window_slots=100,
    wheel_slot_count=1_024,
    cleaning_factor=1,
    cleaning_slack_bytes=0,
    flush_interval_ms=10**6,
)


def live(store: TimerStore, clock: ManualClock, rounds: int) -> None:
    """Put, fire, consume, clean: files go, and come."""
    for _ in range(rounds):
        delays = [100 + 997 * i % 60_000 for i in range(40)]
        ids = store.put_many([b"body" * 9] * 40, topic="a", delay_ms=delays)
        store.put(b"keyed", topic="b", key="k", replace=True, delay=timedelta(minutes=9))
        store.cancel_many(list(ids)[::7])
        clock.advance(timedelta(seconds=20))
        store.pull("a", timeout=0, max_count=1_000).ack()
        store.flush()
        store.clean()


@pytest.fixture(scope="module", params=["closed", "killed"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, int]:
    """A store as it is, and as it was before."""
    path, clock = tmp_path_factory.mktemp("stale") / "s", ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    live(store, clock, 6)
    older = copy_tree(path, path.parent / "older")
    live(store, clock, 8)
    if request.param == "closed":
        store.close()
        return path, older, clock.now_ms
    killed = copy_tree(path, path.parent / "killed")
    store.close()
    return killed, older, clock.now_ms


def readers(path: Path, now_ms: int) -> None:
    """Read a store in every way, at last by opening it."""
    clock = ManualClock(now_ms)
    for read in (
        lambda: str(timerstore.verify(path, config=CONFIG)),
        lambda: str(validate(path)),
        lambda: timerstore.read(path, "timers"),
        lambda: timerstore.read(path, "messages"),
        lambda: timerstore.open(path, read_only=True).close(),
        lambda: TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk()).close(),
        lambda: str(timerstore.verify(path, config=CONFIG)),
    ):
        with contextlib.suppress(TimerStoreError):
            read()


def test_no_reader_raises_anything_else(made: tuple[Path, Path, int], tmp_path: Path) -> None:
    now, older, now_ms = made
    names = sorted(str(file.relative_to(now)) for file in now.rglob("*") if file.is_file())
    names = [name for name in names if (older / name).is_file() and name != "lock"]
    names = [name for name in names if (older / name).read_bytes() != (now / name).read_bytes()]
    assert "config/timercheck" in names
    for number, name in enumerate(names):
        print(name)
        path = copy_tree(now, tmp_path / str(number))
        shutil.copyfile(older / name, path / name)
        readers(path, now_ms)
        shutil.rmtree(path)
