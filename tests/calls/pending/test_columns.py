"""Pending timers by columns, against those that are listed one by one."""

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests.small_store import SMALL
from tests.table_stores import EVENTFUL, LIVES, TOPICS, exported, live
from timerstore.calls.pending.listing import NAMES

FIELDS = tuple(name for name in NAMES if name != "offset")


def rows(table: Any) -> list[dict[str, Any]]:
    return [row | {"properties": dict(row["properties"])} for row in table.to_pylist()]


def timers(found: Any) -> list[dict[str, Any]]:
    return [{name: getattr(timer, name) for name in FIELDS} for timer in found]


def without_offset(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in FIELDS} for row in found]


@given(
    life=LIVES,
    topic=st.none() | st.sampled_from(TOPICS),
    low=st.none() | st.integers(-2_000, 16_000),
    span=st.none() | st.integers(0, 9_000),
    limit=st.none() | st.integers(0, 20),
)
def test_columns_are_the_timers(
    life: list[Any], topic: str | None, low: int | None, span: int | None, limit: int | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = live(Path(folder) / "s", life)
        start_ms = None if low is None else store.core.clock.now_ms + low
        end_ms = None if span is None else (start_ms or store.core.clock.now_ms) + span
        given: dict[str, Any] = {"topic": topic, "start_ms": start_ms, "end_ms": end_ms}
        expected = timers(store.pending(**given, limit=limit))
        found = rows(store.pending_columns(**given, limit=limit))
        offsets = [row["offset"] for row in found]
        if limit is None:
            assert offsets == sorted(offsets)
            found.sort(key=lambda row: (row["due_ms"], row["offset"]))
        assert without_offset(found) == expected
        everything = store.pending_columns()
        store.close()
        order = [("due_ms", "ascending"), ("offset", "ascending")]
        found = exported(Path(folder) / "s")
        assert rows(found) == rows(everything.sort_by(order))
        assert found.schema == everything.schema


def test_some_columns(tmp_path: Path) -> None:
    store = live(tmp_path / "s", EVENTFUL)
    whole = store.pending_columns()
    some = store.pending_columns(columns=["due_ms", "body", "id"])
    assert some.equals(whole.select(["due_ms", "body", "id"]))
    assert store.pending_columns(topic="nothing of that").num_rows == 0
    assert store.pending_columns(limit=0).schema == whole.schema
    with pytest.raises(timerstore.InvalidArgumentError, match="no column 'due'"):
        store.pending_columns(columns=["due"])
    store.close()
    with timerstore.open(tmp_path / "s", read_only=True) as looking:
        assert looking.pending_columns().num_rows == whole.num_rows
    with pytest.raises(timerstore.StoreClosedError):
        store.pending_columns()


@pytest.mark.parametrize("limit", [None, 9])
def test_damage_is_named_and_not_passed_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: int | None
) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL, clock=timerstore.ManualClock()) as store:
        minute = timedelta(minutes=1)
        ids = [store.put(b"body %d" % i, delay=minute * (i + 1), key="key") for i in range(9)]
        ids += [store.put(b"body 9", delay_level=18)]
        expected = {row["id"]: row for row in rows(store.pending_columns())}
        assert len(expected) == 10
        rest = dict(expected)
        for id, text in (
            (ids[0], b"body"),
            (ids[3], b"key"),
            (ids[5], b"TIMER_OUT_MS\x01"),
            (ids[9], b"body"),
        ):
            offset = rest.pop(id)["offset"]
            segment = store.core.engine.commitlog.existing(offset // SMALL.commitlog_segment_bytes)
            at = offset % SMALL.commitlog_segment_bytes
            at += segment.view[at:].tobytes().index(text) + len(text)
            segment.view[at] ^= 1
        found = rows(store.pending_columns(limit=limit))
        assert {row["id"]: row for row in found} == rest
        named = [each.getMessage() for each in caplog.records if "damaged" in each.getMessage()]
        assert len(named) == 4
        for id in set(expected) - set(rest):
            assert any(f"offset {expected[id]['offset']}:" in each for each in named)
