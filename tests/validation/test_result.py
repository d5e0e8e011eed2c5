"""What a caller gets: rows, a table for notebooks."""

import sys
from pathlib import Path

import pytest

import timerstore
from tests.rigs.patient import Patient
from tests.rigs.planted import FAULTS, make_store
from timerstore.validation import RULES, validate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_store(tmp_path / "store")
    return tmp_path / "store"


def test_rows(path: Path) -> None:
    file, offset = FAULTS["early"].plant(Patient(path))
    found = validate(path)
    table = found.to_pandas()
    assert list(table.index) == [rule.name for rule in RULES]
    assert table.loc["early", "failed"] == 1
    assert f"{file} at {offset}" in found._repr_html_()
    assert f"{file} at {offset}" in str(found)
    assert "21 pending" in str(found) and "21 pending" in found._repr_html_()


def test_each_result_is_found_by_its_name(path: Path) -> None:
    found = validate(path)
    assert found["chain"].name == "chain" and found["chain"].ok
    with pytest.raises(KeyError):
        found["chains"]


def test_any_splits_find_the_same(path: Path) -> None:
    steps: list[tuple[int, int]] = []
    found = validate(path, split_bytes=3_000, progress=lambda done, of: steps.append((done, of)))
    assert found == validate(path)
    assert [done for done, _ in steps] == list(range(1, steps[-1][1] + 1))


def test_without_duckdb_it_says_what_to_install(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ImportError, match=r"pip install 'timerstore\[audit\]'"):
        validate(path)
    assert timerstore.verify(path).ok
