"""Salvage: every message that is whole comes out at its place; nothing fires twice."""

import errno
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import timerstore
from tests.models.ledger import read_ledger
from tests.small_store import SMALL, small
from tests.sparse_copy import copy_tree
from tests.tiers import how_many
from timerstore import InvalidArgumentError, ManualClock, NotAStoreError, TimerStore
from timerstore.jit.kernel import INTERPRETED
from timerstore.offline import lostranges
from timerstore.offline.lostranges import infer_size
from timerstore.offline.salvage import salvage_to
from timerstore.testing.damage import flip_bit
from timerstore.testing.disk import QuietDisk
from timerstore.testing.ledger import LEVEL_TOPIC, TIMER_TOPIC, Ledger, Root, read_log
from timerstore.validation.rounds import validate

pytestmark = pytest.mark.long

START_MS = 1_800_000_000_000
LEVELS = "1s 7s"
LEVELS_MS = np.array([1_000, 7_000], np.int64)
CONFIG = small(
    4_096,
    400,
    520,
    precision_ms=100,
    roll_window_slots=8,
    near_count_max=1 << 16,
    retention_ms=10**9,
    delay_levels=LEVELS,
)
EXAMPLES = how_many("MACHINE_EXAMPLES", 1 if INTERPRETED else 3, 40)


class Lived(tuple[Path, Ledger, int]):
    """A store, what its log says, the time; Hypothesis shows its arguments."""

    def __repr__(self) -> str:
        return "lived"


@pytest.fixture(scope="module")
def lived() -> Iterator[Lived]:
    """A store that was killed, what its log says, and the time then."""
    folder = Path(tempfile.mkdtemp(prefix="salvage"))
    clock = ManualClock(START_MS)
    store = TimerStore(folder / "store", config=CONFIG, clock=clock, disk=QuietDisk())
    ids: list[str] = []
    for i in range(8):
        delays = [(37 * j + 11 * i) % 61 * 100 for j in range(12)]
        ids += store.put_many([b"body %d %d" % (i, j) for j in range(12)], delay_ms=delays)
        ids.append(store.put(b"far %d" % i, topic="far", delay=timedelta(seconds=25)))
        store.put(b"level", topic="level", delay_level=1 + i % 2)
        store.cancel_many(ids[3 * i :: 17])
        for id in ids[i::23]:
            timer = store.get(id)
            if timer is not None:
                store.reschedule(id, delay=timedelta(seconds=3 + i))
        clock.advance(timedelta(milliseconds=700))
        store.pull("default", max_count=5, timeout=0).ack()
        if i == 6:
            store.flush()
    store.abandon()
    ledger = read_ledger(folder / "store", Ledger(levels_ms=LEVELS_MS.tolist()))
    ledger.check()
    yield Lived((folder / "store", ledger, clock.now_ms))
    shutil.rmtree(folder)


def flip(path: Path, at: int) -> None:
    flip_bit(path, at % path.stat().st_size, at % 8)


def wipe(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    start = at % len(data)
    count = min(at % 1_500, len(data) - start)
    data[start : start + count] = bytes(count)
    path.write_bytes(data)


def cut(path: Path, at: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: at % len(data)])


def remove(path: Path, at: int) -> None:
    path.unlink()


DAMAGES = st.lists(
    st.tuples(
        st.sampled_from([flip, flip, wipe, cut, remove]),
        st.integers(0, 99),
        st.integers(0, 1 << 14),
    ),
    min_size=1,
    max_size=6,
)
GONE = st.sets(
    st.sampled_from(["config/timercheck", "timerstore.json", "config", "consumequeue", "timerlog"])
)


@settings(
    max_examples=EXAMPLES,
    derandomize="MACHINE_EXAMPLES" not in os.environ,  # CI tries the same damage each time
    deadline=None,
    print_blob=True,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@example(  # a byte behind a segment's last message
    damages=[(flip, 44, 43), (cut, 80, 14_612), (flip, 63, 4_426), (flip, 53, 16_383)],
    gone={"consumequeue", "config", "timerstore.json", "config/timercheck", "timerlog"},
)
@given(damages=DAMAGES, gone=GONE)
def test_what_is_whole_comes_out(
    lived: Lived,
    damages: list[tuple[Callable[[Path, int], None], int, int]],
    gone: set[str],
) -> None:
    path, ledger, now_ms = lived
    folder = Path(tempfile.mkdtemp(prefix="salvage"))
    try:
        source = copy_tree(path, folder / "source")
        for damage, number, at in damages:
            files = sorted((source / "commitlog").iterdir())
            if len(files) > 1 and files[number % len(files)].stat().st_size:
                damage(files[number % len(files)], at)
        for name in gone:
            each = source / name
            shutil.rmtree(each) if each.is_dir() else each.unlink(missing_ok=True)
        check(source, folder / "new", ledger, now_ms)
    finally:
        shutil.rmtree(folder)


def whole_messages(path: Path, folder: Path) -> dict[int, Any]:
    """What can be read of a damaged store, with zeros where files are cut or missing."""
    copy = copy_tree(path, folder)
    (copy / "timerstore.json").unlink(missing_ok=True)
    shutil.copy(path.parent / "identity.json", copy / "timerstore.json")
    files = {int(file.name) for file in (copy / "commitlog").iterdir()}
    for start in range(min(files), max(files) + 1, 4_096):
        with (copy / "commitlog" / f"{start:020d}").open("ab") as file:
            file.truncate(4_096)
    found = read_log(copy, LEVELS_MS)
    shutil.rmtree(copy)
    return found


def check(source: Path, dest: Path, ledger: Ledger, now_ms: int) -> None:
    before = {f: f.read_bytes() for f in source.rglob("*") if f.is_file()}
    clock = ManualClock(now_ms, force=True)
    report = salvage_to(source, dest, config=CONFIG, clock=clock, disk=QuietDisk())
    assert {f: f.read_bytes() for f in source.rglob("*") if f.is_file()} == before
    assert not report.problems, report
    result = validate(dest, delay_levels=LEVELS)
    failed = {str(each.rule.name): each.places for each in result.rules if each.failed}
    assert not failed, failed
    shutil.copy(dest / "timerstore.json", source.parent / "identity.json")
    whole = whole_messages(source, dest.with_name("zeros"))
    assert report.message_count >= len(whole)
    with TimerStore(dest, config=CONFIG, clock=clock, disk=QuietDisk()) as store:
        assert store.count() == len(list(store.pending()))
        clock.advance(timedelta(seconds=60))
        assert store.count() == 0
        after = read_log(dest, LEVELS_MS)
    assert {offset: after[offset] for offset in whole} == whole
    fired, offsets = copies_in(after, ledger)
    for root in ledger.roots.values():
        mine = offsets[root.offset]
        assert len(fired[root.offset]) <= 1, f"{root} was fired at {fired[root.offset]}"
        last = max(each for each in mine if each in ledger.root_of)
        if root.pending and last in whole:
            assert fired[root.offset], f"{root} was lost"
        deletes = ledger.deletes.get(root.offset, [])
        if root.deleted and all(each in whole for each in deletes):
            assert not fired[root.offset], f"{root} was cancelled, then fired"


def copies_in(
    messages: dict[int, Any], ledger: Ledger
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Where each root was fired, and all of its messages, by the root's offset."""
    root_of: dict[int, Root | None] = dict(ledger.root_of)
    fired: dict[int, list[int]] = defaultdict(list)
    offsets: dict[int, list[int]] = defaultdict(list)
    for offset, root in ledger.root_of.items():
        if root is not None:
            offsets[root.offset].append(offset)
    for offset, message in sorted(messages.items()):
        origin = message.properties.get("TIMER_ORIGIN")
        if origin is None or int(origin) not in root_of or message.topic == "SALVAGED":
            continue
        root = root_of[offset] = root_of[int(origin)]
        if root is not None:
            offsets[root.offset].append(offset)
            if message.topic not in (TIMER_TOPIC, LEVEL_TOPIC):
                fired[root.offset].append(offset)
    return fired, offsets


def test_nothing_is_lost_of_a_sound_store(lived: Lived, tmp_path: Path) -> None:
    path, ledger, now_ms = lived
    clock = ManualClock(now_ms, force=True)
    report = timerstore.salvage(path, tmp_path / "new", clock=clock)
    assert report.ok and report.pending_count == ledger.pending_count().total()
    assert str(report) == (
        f"{tmp_path / 'new'}: {report.message_count} messages were whole, "
        f"{report.pending_count} timers are pending; nothing was lost"
    )
    again = timerstore.salvage(tmp_path / "new", tmp_path / "again", clock=clock)
    assert again.ok and again.pending_count == report.pending_count


def test_what_was_salvaged_is_salvaged_again(lived: Lived, tmp_path: Path) -> None:
    path, _, now_ms = lived
    clock = ManualClock(now_ms, force=True)
    source = copy_tree(path, tmp_path / "source")
    remove(source / "commitlog" / f"{8_192:020d}", 0)
    first = timerstore.salvage(source, tmp_path / "first", clock=clock)
    assert (first.lost_bytes, len(first.lost), first.problems) == (4_096, 1, ())
    assert not first.ok and "4,096 bytes in 1 places were lost" in str(first)
    assert first.to_dict()["lost"][0]["offset"] == 8_192
    flip(tmp_path / "first" / "commitlog" / f"{4_096:020d}", 1_000)
    second = timerstore.salvage(tmp_path / "first", tmp_path / "second", clock=clock)
    assert second.problems == () and len(second.lost) == 1
    assert second.message_count == first.message_count - 1
    report = timerstore.backup(tmp_path / "second", tmp_path / "backup")
    assert report.ok and timerstore.restore(tmp_path / "backup", tmp_path / "restored").ok


def test_a_byte_behind_a_blank_before_a_segment_that_begins_with_damage(
    lived: Lived, tmp_path: Path
) -> None:
    """The same where that segment is lost altogether."""
    path, ledger, now_ms = lived
    for name, damage in (("flipped", flip), ("lost", remove)):
        source = copy_tree(path, tmp_path / name / "source")
        files = sorted((source / "commitlog").iterdir())
        flip(files[3], 4_095)
        damage(files[4], 8)
        check(source, tmp_path / name / "new", ledger, now_ms)


def test_a_fired_copy_and_what_was_sent_back_for_it_are_lost(tmp_path: Path) -> None:
    """The timer has one copy: what was sent back is another message of it, and no roll."""
    clock = ManualClock(START_MS)
    with TimerStore(tmp_path / "s", config=CONFIG, clock=clock, disk=QuietDisk()) as store:
        store.put(b"body", topic="t", delay=timedelta(seconds=0.1))
        clock.advance(timedelta(seconds=1))
        next(iter(store.consume("t", timeout=0))).nack(timedelta(seconds=0.3))
        clock.advance(timedelta(seconds=1))
    found = sorted(read_log(tmp_path / "s", LEVELS_MS).items())
    assert [each.topic for _, each in found] == [TIMER_TOPIC, "t", TIMER_TOPIC, "%RETRY%default"]
    log = tmp_path / "s" / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    data[data.index(b"body", found[1][0])] ^= 1
    data[found[2][0] + 4 : found[2][0] + 8] = bytes(4)
    log.write_bytes(data)
    report = timerstore.salvage(tmp_path / "s", tmp_path / "new", config=CONFIG, clock=clock)
    assert len(report.lost) == 2 and not report.problems
    result = validate(tmp_path / "new", delay_levels=LEVELS)
    assert result.ok, str(result)


def test_bare_segments_are_enough(lived: Lived, tmp_path: Path) -> None:
    path, ledger, now_ms = lived
    clock = ManualClock(now_ms, force=True)
    report = timerstore.salvage(path / "commitlog", tmp_path / "new", config=CONFIG, clock=clock)
    assert report.ok and report.pending_count == ledger.pending_count().total()
    assert len(report.unknown) == 3 and "No file says with which settings" in str(report)
    assert report.to_dict()["ok"]


def test_a_backup_is_salvaged(lived: Lived, tmp_path: Path) -> None:
    path, ledger, now_ms = lived
    timerstore.backup(path, tmp_path / "backup")
    report = timerstore.salvage(tmp_path / "backup", tmp_path / "new", clock=ManualClock(now_ms))
    assert report.ok and report.pending_count == ledger.pending_count().total()


def test_what_the_disk_does_not_give_is_named(
    lived: Lived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, now_ms = lived
    pread = os.pread

    class BadDisk:
        """The second file has a bad sector at its beginning."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def pread(self, fd: int, count: int, at: int) -> bytes:
            name = os.readlink(f"/proc/self/fd/{fd}")
            if at == 0 and name == str(path / "commitlog" / f"{4_096:020d}"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return pread(fd, count, at)

    monkeypatch.setattr(lostranges, "os", BadDisk())
    report = timerstore.salvage(path, tmp_path / "new", clock=ManualClock(now_ms))
    assert [each.offset for each in report.files] == [4_096] and report.lost_bytes == 4_096
    assert "cannot read the" in str(report) and report.problems == ()


def test_what_is_no_store_is_refused(lived: Lived, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotAStoreError, match="no file of a commit log"):
        timerstore.salvage(tmp_path / "empty", tmp_path / "new")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "letter").touch()
    for dest in (tmp_path / "there", lived[0] / "new"):
        with pytest.raises(InvalidArgumentError):
            timerstore.salvage(lived[0], dest)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ({0: 4_096, 4_096: 4_096, 8_192: 7}, 4_096),
        ({8_192: 100, 12_288: 50}, 4_096),
        ({0: 9_000}, 9_000),
        ({4_096: 12}, 4_096),
    ],
)
def test_a_size_is_inferred(files: dict[int, int], size: int) -> None:
    assert infer_size(files) == size


class CountingDisk(QuietDisk):
    """Counts what is synced of a commit log."""

    synced = 0

    def sync(self, file: Any, path: Path) -> None:
        """Count it."""
        self.synced += "commitlog" in path.parts
        super().sync(file, path)


def test_many_lost_messages_are_covered_segment_by_segment(tmp_path: Path) -> None:
    config, disk = SMALL, CountingDisk()
    with TimerStore(tmp_path / "s", config=config, clock=ManualClock(START_MS)) as store:
        ids = store.put_many([b"body"] * 240, topic="t", delay_ms=[60_000] * 240)
    file = min((tmp_path / "s" / "commitlog").iterdir())
    with file.open("r+b") as opened:
        for id in ids[::3]:
            offset = int(id[12:24], 16)
            if offset < config.commitlog_segment_bytes:
                opened.seek(offset + 88)
                opened.write(b"X")
    clock = ManualClock(START_MS)
    report = salvage_to(tmp_path / "s", tmp_path / "new", config=config, clock=clock, disk=disk)
    assert (report.message_count, len(report.lost), report.problems) == (160, 80, ())
    assert disk.synced < 20
    assert validate(tmp_path / "new").ok
