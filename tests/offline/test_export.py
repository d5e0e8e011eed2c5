"""Exporting: tables of a closed store are those of the open one, or of RocketMQ's lists."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import timerstore
from tests import naive
from tests.models.ledger import read_messages
from tests.table_stores import SECOND, eventful, exported, exported_rows
from timerstore import ManualClock
from timerstore.offline.export import export
from timerstore.tables.commitlog import EXPORT_SCHEMAS
from timerstore.values.write_file import appearing


def live(path: Path) -> tuple[timerstore.TimerStore, ManualClock]:
    last = {"key": "k", "properties": {"who": "me"}, "topic": "second"}
    return eventful(path, body=b"\xff\x00", delay=9 * SECOND, **last)


def seen(store: timerstore.TimerStore) -> list[dict[str, Any]]:
    return [
        {
            "id": timer.id,
            "topic": timer.topic,
            "due_ms": timer.due_ms,
            "body": timer.body,
            "key": timer.key,
            "tag": timer.tag,
            "roll_count": timer.roll_count,
            "put_ms": timer.put_ms,
            "properties": timer.properties,
        }
        for timer in store.pending()
    ]


@pytest.mark.parametrize("end", ["close", "abandon", "flush and abandon"])
def test_pending_is_what_the_store_shows(tmp_path: Path, end: str) -> None:
    store, _ = live(tmp_path / "s")
    expected = seen(store)
    assert len(expected) > 10
    if end == "flush and abandon":
        store.flush()
        store.put(b"behind the checkpoint", delay=5 * SECOND)
        expected = seen(store)
    if end == "close":
        store.close()
    else:
        store.abandon()
    rows = exported_rows(tmp_path / "s", "pending")
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected


def test_fired_are_what_is_consumed(tmp_path: Path) -> None:
    store, _ = live(tmp_path / "s")
    batch = store.pull("default", timeout=0)
    fired = [(d.id, d.due_ms, d.fired_ms, d.lateness_ms, d.body, d.tag) for d in batch]
    store.close()
    rows = exported_rows(tmp_path / "s", "fired")
    names = ("id", "due_ms", "fired_ms", "lateness_ms", "body", "tag")
    assert [tuple(row[name] for name in names) for row in rows] == fired


def test_messages_are_all(tmp_path: Path) -> None:
    store, _ = live(tmp_path / "s")
    end = store.core.engine.commitlog.end
    store.close()
    rows = exported_rows(tmp_path / "s", "messages")
    assert rows[0]["offset"] == 0
    assert rows[-1]["offset"] + rows[-1]["size"] == end
    assert {row["topic"] for row in rows} == {"default", "rmq_sys_wheel_timer"}
    assert any("TIMER_ORIGIN" in row["properties"] for row in rows)


@pytest.mark.parametrize("table", EXPORT_SCHEMAS)
def test_formats_agree(tmp_path: Path, table: Any) -> None:
    live(tmp_path / "s")[0].close()
    path = tmp_path / "s"
    rows = exported_rows(path, table)
    lines = io.BytesIO()
    assert export(path, table, lines) == len(rows)
    texts = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert len(texts) == len(rows)
    for row, written in zip(rows, texts, strict=True):
        assert written["offset"] == row["offset"]
        assert row["body"] == b"\xff\x00" or written["body"].encode() == row["body"]
    expected = exported(path, table)
    assert expected.num_rows == len(rows)
    assert export(path, table, tmp_path / "t.parquet", "parquet") == len(rows)
    assert pq.read_table(tmp_path / "t.parquet").equals(expected)
    assert export(path, table, tmp_path / "t.arrow", "arrow") == len(rows)
    assert pa.ipc.open_stream((tmp_path / "t.arrow").read_bytes()).read_all().equals(expected)


def test_a_body_that_is_no_text(tmp_path: Path) -> None:
    live(tmp_path / "s")[0].close()
    lines = io.BytesIO()
    export(tmp_path / "s", "pending", lines)
    (row,) = [
        row for row in map(json.loads, lines.getvalue().splitlines()) if row["topic"] == "second"
    ]
    assert (row["body_base64"], row["key"], row["properties"]) == ("/wA=", "k", {"who": "me"})


@pytest.mark.parametrize("name", ["pending", "fired"])
def test_golden_pending(
    name: str,
    golden_unpacked: Callable[[str], Path],
    golden_list: Callable[[str], list[dict[str, Any]]],
) -> None:
    lines = golden_list(name)
    (state,) = [line for line in lines if line["kind"] == "state"]
    put = {line["unique_key"]: line for line in lines if line["kind"] in ("timer", "level")}
    rows = exported_rows(golden_unpacked(name), "pending")
    levels = [line for line in put.values() if line["kind"] == "level"]
    assert len(rows) == state["pending_all"] + len(levels)
    levels_ms = naive.parse_levels(naive.DEFAULT_LEVELS)
    stored_ms = {m.offset: m.stored_ms for m in read_messages(golden_unpacked(name))}
    for row in rows:
        line = put[row["id"]]
        due_ms = line["due_ms"]
        if line["kind"] == "level":
            due_ms = stored_ms[line["commit_log_offset"]] + levels_ms[line["level"] - 1]
        assert (row["due_ms"], row["body"].hex()) == (due_ms, line["body_hex"])
        assert row["topic"] == line["topic"]


def test_nothing_is_changed(tmp_path: Path) -> None:
    live(tmp_path / "s")[0].close()

    def content() -> dict[str, bytes]:
        files = [each for each in (tmp_path / "s").rglob("*") if each.is_file()]
        return {str(each): each.read_bytes() for each in files}

    before = content()
    for table in EXPORT_SCHEMAS:
        exported_rows(tmp_path / "s", table)
    assert content() == before


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(timerstore.NotAStoreError, match="Pass the folder of a store"):
        exported_rows(tmp_path / "none")
    live(tmp_path / "s")[0].close()
    with pytest.raises(timerstore.InvalidArgumentError, match="Use pending, fired, messages"):
        exported_rows(tmp_path / "s", "x")
    with pytest.raises(timerstore.InvalidArgumentError, match="Use jsonl, csv, arrow, parquet"):
        export(tmp_path / "s", "pending", io.BytesIO(), "xls")  # type: ignore[arg-type]


def test_progress_counts_what_is_exported(tmp_path: Path) -> None:
    """Of pending timers it is known how many there are, be they more than a piece or very few."""
    with timerstore.open(tmp_path / "s") as store:
        store.put_many([b"x"] * 9_000, delay_ms=3_600_000)
    told: list[tuple[int, int | None]] = []
    export(tmp_path / "s", "pending", io.BytesIO(), progress=lambda *each: told.append(each))
    assert told[-1] == (9_000, 9_000) and len(told) > 1
    assert all(done <= 9_000 == total for done, total in told)


@pytest.mark.linux
def test_nothing_is_left_of_an_export_that_was_killed(tmp_path: Path) -> None:
    """Where files can be without a name, one that is not whole has none."""
    with appearing(tmp_path / "out.csv") as file:
        file.write(b"half")
        assert list(tmp_path.iterdir()) == []
        file.write(b" and half")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"half and half"]
