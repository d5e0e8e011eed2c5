"""Files of a store that nobody has open are damaged, in all ways: nothing is lost unsaid.

The store was closed, or its process was killed: each damage is done to both.

`DAMAGED` says how many stores are damaged in each way, `SEED` with which seed the first.
"""

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

import timerstore
from tests.models.ledger import read_ledger
from tests.small_store import small
from tests.sparse_copy import copy_tree
from tests.tiers import SEED, how_many
from timerstore import (
    CorruptStoreError,
    InvalidArgumentError,
    ManualClock,
    MissingFileError,
    NotAStoreError,
    TimerStore,
)
from timerstore.tables import TABLES
from timerstore.testing import DAMAGE_KINDS, check_damaged, damage
from timerstore.testing.disk import QuietDisk
from timerstore.testing.ledger import LEVEL_TOPIC, Ledger
from timerstore.timelog.bytes import format as fmt
from timerstore.validation import validate

pytestmark = pytest.mark.promise

START_MS = 1_800_000_000_000
SECOND = timedelta(seconds=1)
CONFIG = small(16_384, 400, 1_040, roll_window_slots=6, retention_ms=3_600_000)
KINDS = {
    "commitlog": "commitlog/*",
    "timerlog": "timerlog/*",
    "timerwheel": "timerwheel",
    "queues": "consumequeue/*/*/*",
    "checkpoint": "config/timercheck",
    "config": "config/*.json",
    "counts": "config/timermetrics",
    "sums": "config/wheelsums",
    "counters": "config/topiccounts",
    "counts ahead": "config/aheadcounts",
    "cancelled": "config/cancelledset",
    "first pages": "config/firstpages",
    "flush times": "checkpoint",
    "sizes": "timerstore.json",
}
DAMAGED = how_many("DAMAGED", 3, 100)


@pytest.fixture(scope="module", params=["closed", "killed"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, Ledger, int]:
    """A store with fired, cancelled, moved, rolled, delayed and overdue timers."""
    path, rnd = tmp_path_factory.mktemp("flips") / "s", random.Random(5)
    clock = ManualClock(START_MS)
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    ids = [
        store.put(b"%03d" % i * 9, topic="ab"[i % 2], at_ms=START_MS + rnd.randrange(60_000))
        for i in range(90)
    ]
    for level in (1, 2, 3, 4):
        store.put(b"level", topic="a", delay_level=level)
    store.cancel_many(ids[::9])
    clock.advance(20 * SECOND)
    store.flush()
    older = copy_tree(path, path.parent / "older")
    store.pull("a", max_count=4, timeout=0).ack()
    waiting = [timer.id for timer in store.pending()]
    store.reschedule(waiting[5], at_ms=START_MS + 90_000)
    clock.advance(5 * SECOND)
    store.put_many([b"late"] * 12, topic="b", at_ms=[START_MS + 28_000, START_MS + 300_000] * 6)
    if request.param == "killed":
        store.flush()
        path = copy_tree(path, path.parent / "killed")
    store.close()
    return path, older, read_ledger(path), clock.now_ms


def seed_of(number: int, how: str) -> int:
    """Return a seed that no other store has, of those that are damaged."""
    return SEED + number * len(DAMAGE_KINDS) + DAMAGE_KINDS.index(how)


def first_change(was: Path, file: Path) -> int:
    """Return which byte of a file is the first that changed; 0 if it is gone, or cut short."""
    both = zip(was.read_bytes(), file.read_bytes() if file.exists() else b"", strict=False)
    return next((at for at, (byte, now) in enumerate(both) if byte != now), 0)


def content(path: Path) -> dict[Path, bytes]:
    files = (each for each in path.rglob("*") if each.is_file() and each.name != "lock")
    return {each: each.read_bytes() for each in files}


def level_due_ms(file: Path, at: int) -> int:
    """When the message of a delay level's entry is due in which byte `at` lies; else −1."""
    if file.parent.parent.name != LEVEL_TOPIC:
        return -1
    entry = at // fmt.ENTRY_BYTES * fmt.ENTRY_BYTES + fmt.ENTRY_TAGS_AT
    return int.from_bytes(file.read_bytes()[entry : entry + 8], "big", signed=True)


@pytest.mark.slow
@pytest.mark.timeout(60, method="signal")
@pytest.mark.parametrize("how", DAMAGE_KINDS)
@pytest.mark.parametrize("number", range(DAMAGED))
def test_nothing_is_lost_without_a_word(
    number: int, how: str, made: tuple[Path, Path, Ledger, int], tmp_path: Path
) -> None:
    kept, older, before, now_ms = made
    seed = seed_of(number, how)
    rnd, first = random.Random(seed), seed % len(KINDS)
    path = copy_tree(kept, tmp_path / "s")
    for kind in (*KINDS, *KINDS)[first:]:
        with suppress(InvalidArgumentError):  # no file of this kind can be damaged so
            file, what = damage(path, how, rnd, files=KINDS[kind], older=older)
            break
    print(f"{file.relative_to(path)}: {what}, seed {seed}")
    at, left = first_change(kept / file.relative_to(path), file), content(path)
    clock = ManualClock(now_ms)
    try:
        store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    except (CorruptStoreError, NotAStoreError) as e:
        is_said = any(each in str(e) for each in ("commitlog", file.name, *what.split()))
        if how in ("missing", "truncated") or file.suffix == ".json":
            assert is_said and content(path) == left, "it is refused, and nothing is changed"
            return
        raise
    clock.advance(400 * SECOND)
    if waiting := [timer.due_ms for timer in store.pending()]:
        # An entry of a queue has no checksum: the timer waits until then, and is listed so, if
        # that is not too far ahead for its level.
        assert waiting == [level_due_ms(file, at)] and waiting[0] > clock.now_ms
        check_damaged(store, before, everything_due=False)
        store.close()
        return
    check_damaged(store, before)
    counted = store.count()
    store.close()
    # And once more: what was made of it is a sound store, but for what is lost.
    store = TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk())
    clock.advance(400 * SECOND)
    check_damaged(store, before, everything_due=False)
    assert store.count() == counted == 0
    store.close()


# --- whoever reads without opening


def look(path: Path) -> None:
    with timerstore.open(path, config=CONFIG, read_only=True) as store:
        list(store.pending())
        store.stats()


COPIES = how_many("DAMAGED", 1, 100)
TOLD = (CorruptStoreError, NotAStoreError, MissingFileError)
READERS: dict[str, Callable[[Path], object]] = {
    **{table: partial(timerstore.read, table=table) for table in TABLES},
    "verify": timerstore.verify,
    "validate": validate,
    "pending": look,
}


@pytest.mark.slow
@pytest.mark.timeout(60, method="signal")
@pytest.mark.parametrize("how", DAMAGE_KINDS)
@pytest.mark.parametrize("number", range(COPIES))
def test_readers_read_on_or_name_it(
    number: int, how: str, made: tuple[Path, Path, Ledger, int], tmp_path: Path
) -> None:
    """Whatever a file holds, a reader tells that in an error of its own, and changes nothing."""
    kept, older, _, _ = made
    seed = seed_of(number, how)
    path = copy_tree(kept, tmp_path / "s")
    with suppress(InvalidArgumentError):  # no file can be damaged so
        file, what = damage(path, how, random.Random(seed), older=older)
        print(f"{file.relative_to(path)}: {what}, seed {seed}")
    left = content(path)
    for read in READERS.values():
        with suppress(*TOLD):
            read(path)
    assert content(path) == left


def test_a_checkpoint_that_is_too_long_is_read(
    made: tuple[Path, Path, Ledger, int], tmp_path: Path
) -> None:
    path = copy_tree(made[0], tmp_path / "s")
    shutil.copy(path / "config" / "topiccounts", path / "config" / "timercheck")
    look(path)


@pytest.mark.slow
@pytest.mark.timeout(60, method="signal")
@pytest.mark.parametrize("how", DAMAGE_KINDS)
@pytest.mark.parametrize("number", range(COPIES))
def test_a_damaged_backup_is_restored_or_named(
    number: int, how: str, made: tuple[Path, Path, Ledger, int], tmp_path: Path
) -> None:
    kept, _, before, now_ms = made
    seed = seed_of(number, how)
    timerstore.backup(kept, tmp_path / "backup")
    with suppress(InvalidArgumentError):
        file, what = damage(tmp_path / "backup", how, random.Random(seed))
        print(f"{file.relative_to(tmp_path)}: {what}, seed {seed}")
    clock = ManualClock(now_ms)
    try:
        timerstore.restore(tmp_path / "backup", tmp_path / "new", config=CONFIG, clock=clock)
    except (*TOLD, InvalidArgumentError):  # the latter if its only point is gone
        assert not (tmp_path / "new").exists(), "it is whole, or it is not there"
        return
    with TimerStore(tmp_path / "new", config=CONFIG, clock=clock, disk=QuietDisk()) as store:
        clock.advance(400 * SECOND)
        check_damaged(store, before, everything_due=False)
