"""JSON files in a broker's form, then in ours."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.watched import StoppedHereError, Watched
from timerstore.errors import CorruptStoreError
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import parse_json, read_json, write_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NUMBERED = st.dictionaries(st.integers(-5, 2**62), VALUES, max_size=4)


def as_a_broker(value: dict[int, Any], space: str) -> str:
    """The form with integer keys that are not quoted."""
    pairs = (f"{key}{space}:{json.dumps(inner)}" for key, inner in value.items())
    return '{"offsetTable":{' + ",".join(pairs) + "}}"


@given(value=NUMBERED, space=st.sampled_from(["", " ", "\n\t"]))
def test_both_forms_are_read(value: dict[int, Any], space: str) -> None:
    text = as_a_broker(value, space)
    expected = {"offsetTable": {str(key): inner for key, inner in value.items()}}
    assert parse_json(text) == naive.parse_json(text) == expected
    assert parse_json(naive.write_json(expected)) == expected


@given(value=st.dictionaries(st.text(), VALUES, max_size=4))
def test_strings_that_look_like_keys_are_left_alone(value: dict[str, Any]) -> None:
    value["a"] = '{3:1, "4":2, \\"5:'
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False, indent=1)) == value


@given(text=st.text('{}[]":,0123456789 \\ae-', max_size=30))
def test_any_text_parses_or_says_why(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_json(text)


def test_files_come_back(tmp_path: Path) -> None:
    path = tmp_path / "config" / "a.json"
    assert read_json(path) is None
    write_json(Disk(), path, {"ü": {3: 1}, "b": [1, None]})
    assert read_json(path) == {"ü": {"3": 1}, "b": [1, None]}
    for stop_at in range(4):
        with pytest.raises(StoppedHereError):
            write_json(Watched(stop_at), path, {"new": 1})
        assert read_json(path) in ({"ü": {"3": 1}, "b": [1, None]}, {"new": 1})


def test_a_name_that_is_no_text_comes_back(tmp_path: Path) -> None:
    value = {"a\udcff@g": 1, "b": "ü"}  # a broker's topic, as Python names it
    write_json(Disk(), tmp_path / "file.json", value)
    assert read_json(tmp_path / "file.json") == value


@pytest.mark.parametrize("damage", [b"{", b"[1]", b"\xff\xfe{}", b'{"a":', b"nonsense"])
def test_the_copy_beside_a_damaged_file_is_read(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(damage)
    with pytest.raises(CorruptStoreError) as caught:
        read_json(path)
    assert caught.value.file == "a.json"
    path.with_name("a.json.bak").write_text("{3:4}")
    assert read_json(path) == {"3": 4}
    path.unlink()
    assert read_json(path) == {"3": 4}


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(" \n")
    assert read_json(path) is None
    path.with_name("a.json.bak").write_text('{"a":1}')
    assert read_json(path) == {"a": 1}
