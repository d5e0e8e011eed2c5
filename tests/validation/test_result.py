"""What a caller gets: rows, a table for notebooks; notes that wait on disk."""

from pathlib import Path

import pytest

from tests.rigs.patient import Patient
from tests.rigs.planted import FAULTS, make_store
from timerstore.validation import RULES, validate
from timerstore.validation.plain import Exchange


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


def test_notes_that_wait_on_disk_are_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = validate(path, split_bytes=3_000)
    monkeypatch.setattr("timerstore.validation.plan.BUCKET_BYTES", 4_000)
    monkeypatch.setattr(Exchange.__init__, "__defaults__", (100,))
    steps: list[tuple[int, int]] = []
    found = validate(path, split_bytes=3_000, progress=lambda done, of: steps.append((done, of)))
    assert found == expected
    assert [done for done, _ in steps] == list(range(1, steps[-1][1] + 1))
