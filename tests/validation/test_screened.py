"""What is counted and not looked at one by one is in order: looking at all of it finds the same."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rigs.patient import Patient
from tests.rigs.planted import FAULTS, OF_LEVELS, make_store
from tests.sparse_copy import copy_tree
from tests.table_stores import LIVES, live
from timerstore.audit.asking import JOINS
from timerstore.validation import RULES, Validation, validate

pytestmark = pytest.mark.slow
ASKED = [rule.name for rule in RULES if rule.text]
EACH = {
    "odd_slots": "SELECT slot FROM slot_sums",
    "screened": """
        SELECT DISTINCT who, 'odd' AS state, FALSE AS has_waiting, CAST(NULL AS BIGINT) AS due_ms,
          CAST(NULL AS BIGINT) AS topic, 1 AS alike
        FROM (SELECT who FROM messages UNION ALL SELECT who FROM units) AS parts""",
}


@contextmanager
def looking_at_each() -> Iterator[None]:
    """Let no slot and no timer count as in order."""
    with patch.dict(JOINS, EACH):
        yield


def both(path: Path) -> Validation:
    found = validate(path)
    with looking_at_each():
        assert validate(path) == found
    return found


@given(life=LIVES, upto=st.sampled_from([None, "checkpoint"]))
def test_of_any_life(life: list[tuple[Any, ...]], upto: str | None) -> None:
    with tempfile.TemporaryDirectory(prefix="screened") as folder:
        path = Path(folder) / "store"
        store = live(path, life)
        if upto is None:
            store.close()
        assert both(path).ok
        store.close()


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("screened") / "store"
    make_store(path)
    return path


@pytest.mark.parametrize("rule", ASKED)
def test_of_a_damaged_store(
    rule: str, closed: Path, tmp_path: Path, golden: Callable[[str], Path]
) -> None:
    for number, planted in enumerate((FAULTS[rule], OF_LEVELS.get(rule))):
        if planted is not None:
            source = golden("pending") if planted.golden else closed
            path = copy_tree(source, tmp_path / f"store-{number}")
            planted.plant(Patient(path))
            assert not both(path)[rule].ok
