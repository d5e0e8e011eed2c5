"""Stores that paths name, bounds, arrays at their edges."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests import naive
from tests.table_stores import EVENTFUL, live, write_log
from timerstore.tables import Bounds, arrays, find_stores, read_table
from timerstore.tables.bounds import java_hash
from timerstore.tables.schema import BIGINT, TIMESTAMP


def folder(path: Path) -> str:
    (path / "commitlog").mkdir(parents=True)
    return str(path)


def test_find_stores(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "a-1"), folder(tmp_path / "a-2")
    deep = folder(tmp_path / "loads" / "load-1" / "part-0")
    folder(tmp_path / "_loading" / "part-0")
    assert find_stores(one) == ((one,), False)
    assert find_stores(Path(one)) == ((one,), False)
    assert find_stores(f"file:{one}") == ((one,), False)
    assert find_stores(f"file://{one}") == ((one,), False)
    assert find_stores([one]) == ((one,), True)
    assert find_stores(f"{tmp_path}/a-*") == ((one, two), True)
    assert find_stores([two, one, two]) == ((two, one), True)
    (tmp_path / "b").symlink_to(one)
    names = (one, str(tmp_path / "b"), f"{tmp_path}/loads/../a-1", os.path.relpath(one))
    for each in names:
        assert find_stores([each, two, *names]) == ((each, two), True)
    (tmp_path / "b").unlink()
    assert find_stores(str(tmp_path / "loads")) == ((deep,), True)
    assert find_stores(str(tmp_path)) == ((one, two), True)
    for bad in (tmp_path / "none", f"{tmp_path}/b-*", tmp_path / "_loading" / "part-0" / "x"):
        with pytest.raises(timerstore.NotAStoreError, match="Pass the folder of a store"):
            find_stores(str(bad))


def test_the_store_of_each_row(tmp_path: Path) -> None:
    for name in ("a", "b"):
        live(tmp_path / name, EVENTFUL).close()
    one = read_table(tmp_path / "a", "fired")
    assert "store" not in one.column_names
    both = read_table(str(tmp_path), "fired")
    assert both.num_rows == 2 * one.num_rows
    assert set(both["store"].to_pylist()) == {str(tmp_path / "a"), str(tmp_path / "b")}
    bounds = Bounds()
    bounds.allow("store", [str(tmp_path / "b")])
    assert read_table(str(tmp_path), "fired", bounds=bounds).num_rows == one.num_rows
    assert read_table(str(tmp_path), "fired", ["store"]).num_rows == both.num_rows
    assert read_table(tmp_path / "a", "problems").column_names[0] == "store"


@given(text=st.text(max_size=30))
def test_java_hash(text: str) -> None:
    assert java_hash(text) == naive.java_hash(text)


def test_bounds() -> None:
    bounds = Bounds()
    bounds.narrow("x", low=3)
    bounds.narrow("x", high=7)
    assert bounds.of("x") == (3, 7)
    bounds.allow("topic", ["a", "b"])
    bounds.allow("topic", ["b", "c"])
    assert bounds.may_be("topic", "b") and not bounds.may_be("topic", "a")
    assert bounds.may_be("other", "a")


def test_times_that_no_timestamp_shows() -> None:
    times = np.array([0, arrays.MS_MIN, arrays.MS_MIN - 1, arrays.MS_MAX, 1 << 62], np.int64)
    array = arrays.timestamps(times)
    array.validate(full=True)
    assert array.is_null().to_pylist() == [False, False, True, False, True]
    assert arrays.timestamps(times, TIMESTAMP, times > 0).null_count == 4
    assert arrays.numbers(times, BIGINT, times > 5).to_pylist() == [
        *(None, None, None, arrays.MS_MAX, 1 << 62)
    ]


def test_texts_that_are_no_utf8(tmp_path: Path) -> None:
    message = naive.Message("t", b"\xff", {"KEYS": "\udcff", "a\udcfe": "b"}, has_crc=True)
    path = write_log(tmp_path / "s", naive.lay_out([message], 4_096, 1), 4_096)
    (row,) = read_table(path, "messages", ["key", "properties", "body"]).to_pylist()
    assert row["key"] == "\ufffd" and ("a\ufffd", "b") in row["properties"]
    assert row["body"] == b"\xff"


def test_bodies_fill_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from timerstore.tables import commitlog

    monkeypatch.setattr(commitlog, "BATCH_BYTES", 2_000)
    live(tmp_path / "s", EVENTFUL).close()
    bodies = read_table(tmp_path / "s", "messages", ["body"])
    assert bodies.num_rows == read_table(tmp_path / "s", "messages").num_rows
    assert len(bodies["body"].chunks) > 5
