"""Delay levels through the public calls."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

import timerstore
from tests.models.ledger import read_messages
from tests.table_stores import exported_rows
from timerstore import Config, InvalidArgumentError, ManualClock, TimerStore, TooLateError, Tuning
from timerstore.cli.commands import app
from timerstore.errors import StoreFullError, TimerStoreError
from timerstore.testing.damage import flip_bit
from timerstore.testing.ledger import LEVEL_TOPIC
from timerstore.timelog.bytes import format as fmt
from timerstore.values.ids import parse_id

START_MS = 1_800_000_000_000
SECOND = timedelta(seconds=1)
LEVELS = Config(delay_levels="1s 5s 1m 1d", durability="process")


def open_store(path: Path, clock: ManualClock, config: Config = LEVELS) -> TimerStore:
    return timerstore.open(path / "s", clock=clock, config=config)


def bodies(store: TimerStore, topic: str = "default") -> list[bytes]:
    return [delivery.body for delivery in store.consume(topic, timeout=0)]


def test_an_id_says_when_and_where(tmp_path: Path) -> None:
    with open_store(tmp_path, ManualClock(START_MS)) as store:
        store.put(b"a timer first", at_ms=START_MS + 10**6)
        id = store.put(b"b", delay_level=2)
        parsed = parse_id(id)
        assert parsed is not None and parsed.due_ms == START_MS + 5_000
        assert parsed.offset & fmt.LEVEL_MARK
        (message,) = (m for m in read_messages(store.path) if m.topic == LEVEL_TOPIC)
        assert message.offset == parsed.offset & ~fmt.LEVEL_MARK
        assert message.properties["UNIQ_KEY"] == id
        assert message.stored_ms == START_MS and message.queue_id == 1


@pytest.mark.parametrize("level", [4, 5, 18, 10**9])
def test_a_level_too_high_is_the_highest(tmp_path: Path, level: int) -> None:
    with open_store(tmp_path, ManualClock(START_MS)) as store:
        timer = store.get(store.put(b"b", delay_level=level))
        assert timer is not None and timer.due_ms == START_MS + 86_400_000


@pytest.mark.parametrize("level", [0, -1, True, 1.0, "1"])
def test_what_is_no_level(tmp_path: Path, level: object) -> None:
    with open_store(tmp_path, ManualClock(START_MS)) as store:
        with pytest.raises(InvalidArgumentError, match=r"delay_level is .* Pass an int, 1 to 4\."):
            store.put(b"b", delay_level=level)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=r"Pass an int, 1 to 4\."):
            store.put_many([b"b"], delay_level=level)  # type: ignore[arg-type]
        assert store.count() == 0


def test_one_way_to_say_when(tmp_path: Path) -> None:
    with open_store(tmp_path, ManualClock(START_MS)) as store:
        for put in (
            lambda: store.put(b"b", delay_level=1, delay=SECOND),
            lambda: store.put_many([b"b"], delay_level=1, delay_ms=5),
        ):
            with pytest.raises(InvalidArgumentError, match="excludes"):
                put()


def test_limits(tmp_path: Path) -> None:
    config = Config(delay_levels="1s 1h", tuning=Tuning(max_delay_ms=60_000))
    with open_store(tmp_path, ManualClock(START_MS), config) as store:
        engine = store.core.engine
        engine.config = replace(engine.config, max_bytes=1)
        with pytest.raises(InvalidArgumentError, match="delay_level 2 is a delay of 3600000 ms"):
            store.put(b"b", delay_level=2)
        with pytest.raises(StoreFullError):
            store.put(b"b", delay_level=1)
    config = Config(tuning=Tuning(commitlog_segment_bytes=1024))
    with (
        timerstore.open(tmp_path / "t", config=config, clock=ManualClock()) as store,
        pytest.raises(InvalidArgumentError, match="Pass 360 at most"),
    ):
        store.put(bytes(900), delay_level=1)


@pytest.mark.parametrize(
    ("levels", "part"),
    [
        ("1s x 2h", "'x'"),
        ("1s 5", "'5'"),
        ("10ms", "'10ms'"),
        ("1s -5s", "'-5s'"),
        ("1.5h", "'1.5h'"),
        ("0s", "'0s'"),
        ("1s ٣s", "'٣s'"),
        ("36501d", "'36501d'"),
        ("99999999999s", "'99999999999s'"),
        ("", "0 levels"),
        ("1s " * 33, "33 levels"),
    ],
)
def test_bad_levels_are_refused_with_the_part_that_is_wrong(levels: str, part: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        Config(delay_levels=levels)
    assert part in str(refused.value)
    with pytest.raises(InvalidArgumentError, match="Pass a str"):
        Config(delay_levels=5)  # type: ignore[arg-type]


def test_many_at_once(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_store(tmp_path, clock) as store:
        ids = store.put_many(
            [b"%d" % i for i in range(3_000)],
            topic="t",
            delay_level=1,
            tag="red",
            keys=[f"k{i}" for i in range(3_000)],
        )
        assert set(ids.due_ms) == {START_MS + 1_000} and store.count("t") == 3_000
        assert str(ids.due[0]) == "2027-01-15T08:00:01.000"
        assert len(store.put_many([], delay_level=1)) == 0
        assert store.cancel_many(ids[::2]).all() and store.cancel_many(ids[::2]).all()
        assert not store.cancel_many(ids[::2][:0]).any()
        assert store.count("t") == store.count() == 1_500
        clock.advance(SECOND)
        deliveries = list(store.consume("t", timeout=0))
        assert [d.id for d in deliveries] == list(ids[1::2])
        assert [(d.tag, d.key) for d in deliveries[:2]] == [("red", "k1"), ("red", "k3")]
        assert not store.cancel_many(ids).any()
        assert store.stats().cancelled_count == store.count() == 0


def test_timers_and_levels_together(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_store(tmp_path, clock) as store:
        ids = [store.put(b"timer", at_ms=START_MS + 3_000), store.put(b"late", delay_level=2)]
        ids.append(store.put(b"soon", topic="t", delay_level=1))
        ids.append(store.put(b"never", delay_level=3))
        assert store.cancel_many([ids[3], ids[0]]).tolist() == [True, True]
        ids[0] = store.put(b"timer", at_ms=START_MS + 3_000)
        assert [timer.body for timer in store.pending()] == [b"soon", b"timer", b"late"]
        assert [timer.id for timer in store.pending(limit=2)] == [ids[2], ids[0]]
        assert [timer.body for timer in store.pending(topic="t")] == [b"soon"]
        assert store.horizon(1_000).start_ms.tolist() == [
            START_MS + each for each in (1_000, 3_000, 5_000)
        ]
        timer = store.get(ids[2])
        assert timer is not None
        assert (timer.topic, timer.due_ms, timer.put_ms) == ("t", START_MS + 1_000, START_MS)
        assert store.get(ids[3]) is None
        with pytest.raises(InvalidArgumentError, match="keep their order"):
            store.reschedule(ids[1], at_ms=START_MS)
        clock.advance(SECOND)
        assert not store.cancel(ids[2]) and store.get(ids[2]) is None
        clock.advance(4 * SECOND)
        with pytest.raises(TooLateError):
            store.reschedule(ids[0], at_ms=START_MS)
        assert bodies(store) == [b"timer", b"late"]


def test_an_id_that_is_none(tmp_path: Path) -> None:
    with open_store(tmp_path, ManualClock(START_MS)) as store:
        id = store.put(b"b", delay_level=1)
        due, offset, tag = id[:12], id[12:24], id[24:]
        unmarked = f"{int(offset, 16) & ~fmt.LEVEL_MARK:012X}"
        for wrong in (
            f"{int(due, 16) + 1:012X}{offset}{tag}",
            f"{due}{unmarked}{tag}",
            f"{due}{int(offset, 16) + 8:012X}{tag}",
            f"{due}{'F' * 12}{tag}",
        ):
            with pytest.raises(timerstore.UnknownTimerError):
                store.cancel(wrong)
        assert store.cancel(id)


def test_stats_and_info(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_store(tmp_path, clock) as store:
        store.put_many([b"b"] * 3, delay_level=2)
        clock.advance(5 * SECOND)
        store.put(b"b", delay_level=2)
        found = store.stats().levels
        assert [level.level for level in found] == [1, 2, 3, 4]
        assert [level.delay_ms for level in found] == [1_000, 5_000, 60_000, 86_400_000]
        assert (found[1].offset, found[1].end, found[1].lag_count) == (3, 4, 1)
        assert (found[0].end, found[0].lag_count, found[1].overdue_ms) == (0, 0, 0)
        assert store.stats().to_dict()["levels"][1]["lag_count"] == 1
    toml = tmp_path / "c.toml"
    toml.write_text('delay_levels = "1s 5s 1m 1d"\n')
    shown = CliRunner().invoke(app, ["info", str(tmp_path / "s"), "--config", str(toml)])
    levels = [line for line in shown.output.splitlines() if line.startswith("level ")]
    assert len(levels) == 1 and levels[0].startswith(
        "level 2\t5 s\t3\t4\t1\t"
    )  # the one that was used


def test_put_in_the_shell(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    timerstore.open(path, config=LEVELS).close()
    put = ["put", path, "--delay-level", "3"]
    assert CliRunner().invoke(app, [*put, "hello"]).exit_code == 0
    assert CliRunner().invoke(app, [*put, "--lines"], input="a\nb\n").exit_code == 0
    assert CliRunner().invoke(app, [*put, "hello", "--delay", "1s"]).exit_code == 2
    assert CliRunner().invoke(app, [*put, "--lines", "--delay", "1s"], input="a").exit_code == 2
    with timerstore.open(path) as store:
        assert store.stats().levels[2].lag_count == 3


def test_a_closed_store_is_read_without_opening(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    ids = [store.put(b"%d" % i, topic="t", delay_level=1 + i % 3) for i in range(9)]
    clock.advance(SECOND)
    assert store.cancel(ids[4]) and store.cancel(ids[5])
    expected = [timer.id for timer in store.pending()]
    for end in (TimerStore.abandon, TimerStore.close):
        end(store)
        rows = exported_rows(tmp_path / "s", "pending", config=LEVELS)
        assert [row["id"] for row in rows] == expected
        assert [row["due_ms"] for row in rows] == [int(id[:12], 16) for id in expected]
        fired = exported_rows(tmp_path / "s", "fired", config=LEVELS)
        assert [(row["id"], row["lateness_ms"]) for row in fired] == [(id, 0) for id in ids[::3]]
        report = timerstore.verify(tmp_path / "s")  # the ids say when each is due
        assert report.ok and not report.warnings and report.pending_count == len(expected)
        with timerstore.open(tmp_path / "s", read_only=True, config=LEVELS) as looked_at:
            assert [timer.id for timer in looked_at.pending()] == expected
        store = open_store(tmp_path, clock)
        assert [timer.id for timer in store.pending()] == expected
    store.close()


def test_verify_names_what_is_wrong(tmp_path: Path) -> None:
    store = open_store(tmp_path, ManualClock(START_MS))
    store.put_many([b"b"] * 3, delay_level=2)
    store.close()
    file = tmp_path / "s" / "consumequeue" / LEVEL_TOPIC / "1" / f"{0:020d}"
    data = file.read_bytes()
    flip_bit(file, 39)
    report = timerstore.verify(tmp_path / "s")
    assert not report.ok and f"consumequeue/{LEVEL_TOPIC}/1" in str(report.problems[0])
    file.write_bytes(data)
    offsets = tmp_path / "s" / "config" / "delayOffset.json"
    offsets.write_text('{"offsetTable":{"2":4}}')
    report = timerstore.verify(tmp_path / "s")
    assert any("is at 4 of a queue that ends at 3" in str(w) for w in report.warnings)
    offsets.write_text('{"offsetTable":{"x":4}}')
    assert not timerstore.verify(tmp_path / "s").ok


def test_handover(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, force=True)  # what a broker gets has real timers
    store = open_store(tmp_path, clock)
    store.put(b"soon", delay_level=1)
    store.put(b"later", delay_level=3)
    id = store.put(b"never", delay_level=2)
    store.cancel(id)
    clock.advance(SECOND)
    with pytest.raises(TimerStoreError, match="1 cancelled messages still wait in a delay level"):
        store.handover()
    store.put(b"goes on", delay_level=1)
    clock.advance(4 * SECOND)
    assert bodies(store) == [b"soon", b"goes on"]
    store.handover()
    text = (tmp_path / "s" / "config" / "delayOffset.json").read_text()
    assert '"1": 2' in text and '"2": 1' in text and '"3"' not in text
    assert timerstore.verify(tmp_path / "s", config=LEVELS).ok
    store = open_store(tmp_path, clock)
    assert store.count() == 1
    clock.advance(timedelta(minutes=1))
    assert b"later" in bodies(store)
    store.close()
