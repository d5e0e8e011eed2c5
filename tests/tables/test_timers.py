"""The table timers: what the open store calls pending, from any number of splits."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests.sparse_copy import copy_tree
from tests.table_stores import (
    EVENTFUL,
    LIVES,
    PENDING_COLUMNS,
    SECOND,
    SMALL,
    TOPICS,
    Folder,
    exported_rows,
    live,
    pending,
    rows,
)
from timerstore.tables import Bounds, read_table

pytestmark = pytest.mark.long


def read(path: Path, **options: Any) -> list[tuple[Any, ...]]:
    return sorted(rows(read_table(path, "timers", PENDING_COLUMNS, **options), *PENDING_COLUMNS))


@given(life=LIVES, end=st.sampled_from(["close", "kill"]), partitions=st.integers(1, 9))
def test_pending_of_any_life(life: list[Any], end: str, partitions: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        store = live(path, life)
        expected = pending(store)
        if end == "close":
            store.close()
        else:
            store.abandon()
        assert read(path, upto="end") == expected
        assert read(path, upto="end", partitions=partitions) == expected


@given(life=LIVES, low=st.integers(-2_000, 16_000), span=st.integers(0, 9_000))
def test_bounds_leave_out_what_is_outside_alone(life: list[Any], low: int, span: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        store = live(path, life)
        start = store.core.clock.now_ms + low
        store.close()
        bounds = Bounds()
        bounds.narrow("due_ms", start, start + span)
        bounds.allow("topic", TOPICS[:2])
        expected = [
            row for row in read(path) if start <= row[4] <= start + span and row[1] in TOPICS[:2]
        ]
        assert read(path, bounds=bounds) == expected


IN_UNITS = ("due_ms", "unit_offset", "slot_time_ms", "message_offset", "message_size")


@given(
    life=LIVES,
    end=st.sampled_from(["close", "kill"]),
    low=st.integers(-2_000, 200_000),
    span=st.integers(0, 90_000),
    columns=st.lists(st.sampled_from(IN_UNITS), min_size=1, unique=True),
)
def test_what_units_say_is_what_messages_say(
    life: list[Any], end: str, low: int, span: int, columns: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        store = live(path, life)
        start = store.core.clock.now_ms + low
        if end == "close":
            store.close()
        else:
            store.abandon()
        bounds = Bounds()
        bounds.narrow("due_ms", start, start + span)
        for each in (Bounds(), bounds):
            everything = read_table(path, "timers", bounds=each)  # reads each message
            few = read_table(path, "timers", columns, bounds=each)
            wanted = read_table(path, "timers", [*columns, "put_ms"], bounds=each).select(columns)
            assert few.equals(wanted) and few.num_rows == everything.num_rows


def test_units_alone_do_not_tell_that_their_messages_are_damaged(tmp_path: Path) -> None:
    store = live(tmp_path / "s", [("put", [9_000, 90_000, 9_000_000], "default"), ("advance", 1)])
    store.close()
    path, columns = tmp_path / "s", ["slot_time_ms", "message_size"]
    whole = read_table(path, "timers")
    for row in whole.to_pylist():
        Folder(path / "commitlog").flip(row["message_offset"] + 95)
    assert read_table(path, "timers", columns).num_rows == whole.num_rows == 3
    assert read_table(path, "timers").num_rows == 0
    with pytest.raises(timerstore.CorruptStoreError):
        read_table(path, "timers", columns, failfast=True)


def test_places(tmp_path: Path) -> None:
    store = live(tmp_path / "s", EVENTFUL)
    store.close()
    table = read_table(tmp_path / "s", "timers")
    units = read_table(tmp_path / "s", "units").to_pylist()
    messages = read_table(tmp_path / "s", "messages").to_pylist()
    by_offset = {unit["offset"]: unit for unit in units}
    unique_keys = {message["offset"]: message["unique_key"] for message in messages}
    assert table.num_rows > 8
    for row in table.to_pylist():
        unit = by_offset[row["unit_offset"]]
        assert unit["message_offset"] == row["message_offset"]
        assert unit["due_ms"] // 1_000 * 1_000 == row["slot_time_ms"]
        assert unique_keys[row["message_offset"]] == row["id"]
        assert row["due"].timestamp() * 1_000 == pytest.approx(row["due_ms"])


def test_delay_levels(tmp_path: Path) -> None:
    life = [("level", [3, 1, 2], "second"), ("put", [9_000], "default"), ("level", [2, 2], "third")]
    store = live(tmp_path / "s", [*life, ("cancel", 5), ("advance", 2_000)])
    start = store.core.clock.now_ms - 2_000
    expected = pending(store)
    store.close()
    assert len(expected) == 4 and read(tmp_path / "s") == expected
    table = read_table(tmp_path / "s", "timers").to_pylist()
    levels = [row for row in table if row["unit_offset"] is None]
    assert [(row["topic"], row["due_ms"] - start) for row in levels] == [
        ("second", 5_000),
        ("third", 5_000),
        ("second", 10_000),
    ]
    assert all(row["slot_time"] is None for row in levels)
    # What was delivered since the last checkpoint is known by its copy.
    clock = timerstore.ManualClock(start + 2_000)
    store = timerstore.open(tmp_path / "s", config=SMALL, clock=clock)
    clock.advance(4 * SECOND)
    expected = pending(store)
    store.abandon()
    assert len(expected) == 2 and read(tmp_path / "s", upto="end") == expected


def test_live_up_to_its_checkpoint(tmp_path: Path) -> None:
    store = live(tmp_path / "s", EVENTFUL)
    store.flush()
    expected = pending(store)
    store.put(b"behind the checkpoint", delay=5 * SECOND)
    assert read(tmp_path / "s") == expected
    expected_at_end = pending(store)
    store.abandon()
    assert read(tmp_path / "s") == expected
    assert read(tmp_path / "s", upto="end") == expected_at_end


@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
@pytest.mark.parametrize("partitions", [None, pytest.param(60, marks=pytest.mark.slow)])
def test_golden(name: str, partitions: int | None, golden_unpacked: Callable[[str], Path]) -> None:
    path = golden_unpacked(name)
    expected = sorted(
        tuple(row[name] for name in PENDING_COLUMNS) for row in exported_rows(path, "pending")
    )
    assert read(path, partitions=partitions) == expected


def test_damage_costs_its_timer_alone(tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    whole = read_table(tmp_path / "s", "timers").to_pylist()
    for folder, column, at in (
        ("timerlog", "unit_offset", 20),
        ("commitlog", "message_offset", 95),
    ):
        path = copy_tree(tmp_path / "s", tmp_path / folder)
        target = whole[4]
        Folder(path / folder).flip(target[column] + at)
        left = read_table(path, "timers").to_pylist()
        assert [row["id"] for row in left] == [row["id"] for row in whole if row is not target]
        with pytest.raises(timerstore.CorruptStoreError) as caught:
            read_table(path, "timers", failfast=True)
        assert (caught.value.file, caught.value.offset) == (folder, target[column])


def test_damage_in_a_brokers_store(golden: Callable[[str], Path]) -> None:
    path = golden("fired")
    whole = {row["id"]: row for row in read_table(path, "timers").to_pylist()}
    target = next(row for row in whole.values() if row["unit_offset"] is not None)
    units = Folder(path / "timerlog")
    units.write(target["unit_offset"], bytes(4))
    left = read_table(path, "timers").to_pylist()
    assert {row["id"] for row in left} == set(whole) - {target["id"]}
