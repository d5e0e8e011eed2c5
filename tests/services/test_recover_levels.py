"""Opening a store whose delay levels were left by a crash, or by a broker."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.models.ledger import read_messages
from tests.services.test_deliver_levels import SECOND, START_MS, bodies, open_store
from tests.wheel_checks import check_cancelled
from timerstore import Config, ManualClock, TimerStore, Tuning
from timerstore.errors import CorruptStoreError
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.bytes import format as fmt

LEVELS_MS = Config().delay_levels_ms()


def offsets_file(path: Path) -> Path:
    return path / "s" / "config" / "delayOffset.json"


@pytest.mark.whole
@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_cancelled_one_behind_a_longer_wait(tmp_path: Path, end: str) -> None:
    """A level was 2 h and is 1 s now: what it holds waits behind what was put before.

    The delete's slot passes long before; the entry stays, and the copies cursor at the delete, also
    over crashes.
    """
    clock = ManualClock(START_MS, force=True)
    disk = QuietDisk()
    store = open_store(tmp_path, clock, disk=disk)
    store.put(b"slow", delay_level=4)
    levels = store.core.engine.levels
    levels.level_ms[3] = store.core.engine.level_ms[3] = 1_000
    levels.head_index[3], levels.head_ms[3] = 0, START_MS + 7_200_000
    levels.level_ms[3] = 7_200_000  # so that the head is not clamped
    id = store.put(b"behind", delay_level=4)
    assert store.cancel(id)
    delete = store.core.engine.commitlog.end
    clock.advance(10 * SECOND)
    cancelled = store.core.engine.cancelled.set
    assert cancelled.held_count == cancelled.level_count == 1
    assert 0 < cancelled.held_from < delete
    assert store.stats().cancelled_count == 1 and not store.cancel(id)
    for _ in range(3):
        store.flush()
        checkpoint = store.core.flusher.last
        assert checkpoint is not None and checkpoint.scan_from < delete
        store.close() if end == "close" else store.abandon()
        store = open_store(tmp_path, clock)
        assert store.stats().cancelled_count == store.core.engine.cancelled.set.held_count == 1
        check_cancelled(store.core.engine.cancelled)
        assert store.count() == 1 and store.get(id) is None
    clock.advance(timedelta(hours=2))
    assert bodies(store) == [b"slow"]
    assert store.core.engine.cancelled.set.held_count == store.stats().cancelled_count == 0
    store.flush()
    checkpoint = store.core.flusher.last
    assert checkpoint is not None and checkpoint.scan_from > delete
    store.close()


@pytest.mark.parametrize("form", ['{"offsetTable":{1:3}}', '{"offsetTable": {"1": 3}}'])
def test_an_offset_from_a_broker(tmp_path: Path, form: str) -> None:
    clock = ManualClock(START_MS, force=True)
    store = open_store(tmp_path, clock)
    for i in range(5):
        store.put(b"%d" % i, delay_level=1)
    store.close()
    data = bytearray((tmp_path / "s" / "config" / "timercheck").read_bytes())
    data[48:56] = (99).to_bytes(8, "big")  # its counter: the echo does not hold any more
    (tmp_path / "s" / "config" / "timercheck").write_bytes(data)
    offsets_file(tmp_path).write_text(form)
    store = open_store(tmp_path, clock)
    assert store.core.findings.by_broker and store.stats().levels[0].offset == 3
    assert store.count() == 2
    clock.advance(SECOND)
    assert bodies(store) == [b"3", b"4"]
    store.close()
    assert json.loads(offsets_file(tmp_path).read_text())["offsetTable"] == {"1": 5}


@pytest.mark.parametrize(
    ("offset", "corrected"),
    [(99, 5), (-3, 0)],
)
def test_an_offset_outside_its_queue(
    tmp_path: Path, offset: int, corrected: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(START_MS, force=True)
    store = open_store(tmp_path, clock)
    for i in range(5):
        store.put(b"%d" % i, delay_level=1)
    store.close()
    (tmp_path / "s" / "config" / "timercheck").unlink()
    offsets_file(tmp_path).write_text(json.dumps({"offsetTable": {"1": offset}}))
    store = open_store(tmp_path, clock)
    assert store.stats().levels[0].offset == corrected
    assert store.stats().recovery["corrected_levels"] == [1]
    assert f"the offset of delay level 1 was {offset}, outside its queue" in caplog.text
    store.close()


@pytest.mark.parametrize("text", ['{"offsetTable":[1]}', '{"offsetTable":{"x":1}}', "{"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    clock = ManualClock(START_MS, force=True)
    open_store(tmp_path, clock).close()
    offsets_file(tmp_path).write_text(text)
    store = open_store(tmp_path, clock)  # the checkpoint's offsets hold
    assert [each["file"] for each in store.stats().damage] == ["config/delayOffset.json"]
    store.close()
    (tmp_path / "s" / "config" / "timercheck").unlink()
    offsets_file(tmp_path).write_text(text)
    with pytest.raises(CorruptStoreError, match=r"delayOffset\.json"):
        open_store(tmp_path, clock)


def test_levels_that_nobody_understands(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)
    store = open_store(tmp_path, clock)
    store.close()
    folder = tmp_path / "s" / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / str(fmt.LEVEL_COUNT_MAX)
    folder.mkdir(parents=True)
    with pytest.raises(Exception, match="33 delay levels, and timerstore can deliver at most 32"):
        open_store(tmp_path, clock)


def test_fewer_levels_than_before(tmp_path: Path) -> None:
    """What waits in a level that is not configured any more comes when it was to come."""
    clock = ManualClock(START_MS, force=True)
    store = open_store(tmp_path, clock)
    store.put(b"a minute", delay_level=3)
    store.close()
    config = Config(delay_levels="1s 2h", tuning=Tuning(precision_ms=100))
    store = open_store(tmp_path, clock, config=config)
    assert [level.end for level in store.stats().levels] == [0, 0, 1]
    clock.advance(timedelta(milliseconds=59_999))
    assert bodies(store) == []
    clock.advance(timedelta(milliseconds=1))
    assert bodies(store) == [b"a minute"]
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
def test_golden_levels_at_their_millisecond(
    name: str,
    golden: Callable[[str], Path],
    golden_list: Callable[[str], list[dict[str, Any]]],
) -> None:
    """Played in small steps from when they were put: each is delivered at its entry's due time."""
    path = golden(name)
    put = [row for row in golden_list(name) if row["kind"] == "level"]
    stored_ms = {message.offset: message.stored_ms for message in read_messages(path)}
    start_ms = max(stored_ms.values())
    precision_ms = 1000 if name == "pending" else 100
    config = Config(
        tuning=Tuning(
            precision_ms=precision_ms, roll_window_slots=20 if precision_ms == 100 else 60
        )
    )
    clock = ManualClock(start_ms, force=True)
    store = TimerStore(path, config=config, clock=clock, disk=QuietDisk())
    for seconds in (1, 3, 30, 300, 3_600, 7_200):
        clock.advance(timedelta(seconds=seconds, milliseconds=7))
    store.close()
    copies = {
        int(message.properties["TIMER_ORIGIN"]): message
        for message in read_messages(path)
        if "TIMER_ORIGIN" in message.properties
    }
    for row in put:
        due_ms = stored_ms[row["commit_log_offset"]] + LEVELS_MS[row["level"] - 1]
        copy = copies[row["commit_log_offset"]]
        assert copy.stored_ms == max(due_ms, start_ms)
        assert (copy.topic, copy.body.hex()) == (row["topic"], row["body_hex"])
        assert copy.properties["UNIQ_KEY"] == row["unique_key"]
        assert not {"DELAY", "REAL_TOPIC", "REAL_QID"} & copy.properties.keys()


def test_a_brokers_copies_are_known(tmp_path: Path) -> None:
    """What a broker delivered without saying of what is found by topic and unique key."""
    clock = ManualClock(START_MS, force=True)
    store = open_store(tmp_path, clock)
    for i in range(4):
        store.put(b"%d" % i, topic="t", delay_level=1)
    store.close()
    # As a broker would: the properties of the source but for DELAY, in the real topic, no origin.
    sources = read_messages(tmp_path / "s")
    store = open_store(tmp_path, clock)
    from timerstore.services.calls.appending import append_all
    from timerstore.timelog.writing.append import new_stage
    from timerstore.timelog.writing.compose import Staged, compose, stage_messages
    from timerstore.timelog.writing.frame import encode_property

    stage = new_stage(4, 4_096)
    for source in (sources[0], sources[2]):  # the second one is still to be sent again
        kept = {k: v for k, v in source.properties.items() if k not in ("DELAY", "__CRC32#")}
        text = b"".join(encode_property(k.encode(), v.encode()) for k, v in kept.items())
        message = compose(b"t", source.body, text, born_ms=source.born_ms)
        entry = Staged(message, store.core.engine.queues.row(b"t"), 0, -1, 0)
        append_all(
            store.core.engine,
            stage,
            stage_messages(stage, [entry], own_key=False),
            START_MS + 1_000,
        )
    store.close()
    data = bytearray((tmp_path / "s" / "config" / "timercheck").read_bytes())
    data[48:56] = (99).to_bytes(8, "big")
    (tmp_path / "s" / "config" / "timercheck").write_bytes(data)
    store = open_store(tmp_path, clock)
    assert store.core.findings.by_broker and store.core.findings.copies_count == 2
    assert store.stats().levels[0].offset == 1 and store.count() == 2
    clock.advance(SECOND)
    assert sorted(bodies(store, "t")) == [b"0", b"1", b"2", b"3"]
    assert store.count() == 0
    store.abandon()
    store = open_store(tmp_path, clock)
    assert store.count() == 0 and len(read_messages(tmp_path / "s")) == 8
    store.close()


@pytest.mark.slow
@pytest.mark.tier("prove", only=("False-crashed", "True-pending"))
@pytest.mark.parametrize("name", ["pending", "crashed"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_brokers_levels_are_not_ours(
    name: str,
    lost: bool,
    golden: Callable[[str], Path],
    golden_list: Callable[[str], list[dict[str, Any]]],
) -> None:
    """Its entries say when each message is due; ours are shorter here, and nothing comes early."""
    path = golden(name)
    levels = [row for row in golden_list(name) if row["kind"] == "level"]
    newest = max(message.stored_ms for message in read_messages(path))
    stored_ms = {message.offset: message.stored_ms for message in read_messages(path)}
    due_ms = {
        (row["topic"], row["unique_key"]): (
            stored_ms[row["commit_log_offset"]] + LEVELS_MS[row["level"] - 1]
        )
        for row in levels
    }
    if lost:  # the last entries were not written yet: their levels are known from the others
        for queue in sorted((path / "consumequeue" / "SCHEDULE_TOPIC_XXXX").iterdir()):
            last = sorted(queue.iterdir())[-1]
            data = bytearray(last.read_bytes())
            used = max(i for i in range(0, len(data), 20) if any(data[i : i + 20]))
            if used:
                data[used : used + 20] = bytes(20)
                last.write_bytes(data)
    offsets = {str(level): 0 for level in range(1, 19)}
    file = path / "config" / "delayOffset.json"
    if not file.exists():
        file.write_text(json.dumps({"offsetTable": offsets}))
    state = next(row for row in golden_list(name) if row["kind"] == "state")
    config = Config(
        delay_levels="1s",
        durability="process",
        tuning=Tuning(
            precision_ms=state["precision_ms"],
            roll_window_slots=172_800 if name == "pending" else 20,
        ),
    )
    clock = ManualClock(newest, force=True)
    store = TimerStore(path, config=config, clock=clock, disk=QuietDisk())
    before = {who: list(times) for who, times in _fired(path).items()}
    assert any(each > newest for who, each in due_ms.items() if who not in before)
    clock.advance(timedelta(hours=3))
    after = _fired(path)
    for who, each in due_ms.items():
        if who not in before:
            assert after[who] == [max(each, newest)], who
    store.close()


def _fired(path: Path) -> dict[tuple[str, str], list[int]]:
    fired: dict[tuple[str, str], list[int]] = {}
    for message in read_messages(path):
        if message.topic not in ("rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"):
            key = message.topic, message.properties.get("UNIQ_KEY", "")
            fired.setdefault(key, []).append(message.stored_ms)
    return fired


@pytest.mark.parametrize("is_damaged", [False, True])
def test_without_the_file_of_offsets_the_checkpoint_says_them(
    tmp_path: Path, is_damaged: bool
) -> None:
    """Nothing that was delivered long ago is delivered again."""
    clock = ManualClock(START_MS, force=True)
    store = open_store(tmp_path, clock)
    for _ in range(5):
        store.put(b"level", delay_level=1)
    for _ in range(3):
        clock.advance(60 * SECOND)
        store.flush()
    assert len(bodies(store)) == 5
    store.close()
    offsets_file(tmp_path).unlink()
    if is_damaged:
        offsets_file(tmp_path).write_bytes(b"{")
    store = open_store(tmp_path, clock)
    clock.advance(60 * SECOND)
    assert store.stats().levels[0].offset == 5 == len(bodies(store))
    store.close()
