"""What is counted and not looked at one by one is in order: looking at all of it finds the same."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.rigs.patient import Patient
from tests.rigs.planted import FAULTS, OF_LEVELS, make_store
from tests.sparse_copy import copy_tree
from tests.table_stores import LIVES, live
from tests.tiers import some
from timerstore.audit.asking import JOINS
from timerstore.audit.engines import DuckDB
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


@pytest.mark.parametrize("rule", some(ASKED, 3))
def test_of_a_damaged_store(
    rule: str, closed: Path, tmp_path: Path, golden: Callable[[str], Path]
) -> None:
    for number, planted in enumerate((FAULTS[rule], OF_LEVELS.get(rule))):
        if planted is not None:
            source = golden("pending") if planted.golden else closed
            path = copy_tree(source, tmp_path / f"store-{number}")
            planted.plant(Patient(path))
            assert not both(path)[rule].ok


PRIME, OTHER_PRIME = (1 << 31) - 1, (1 << 31) - 19


def naive_is_broken(units: list[tuple[int, int]], units_start: int) -> bool:
    """Tell whether a unit of a slot ahead does not point to the one before it."""
    before = None
    for unit, prev in sorted(units):
        if prev >= units_start if before is None else prev != before:
            return True
        before = unit
    return False


@st.composite
def chains(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Units of one slot with what each points to, most as they should be."""
    scale = draw(st.sampled_from([1, 52, PRIME, OTHER_PRIME, 1 << 40]))
    places = sorted(draw(st.sets(st.integers(2, 40), min_size=1, max_size=12)))
    units = [scale * place for place in places]
    prevs = [draw(st.sampled_from([-1, scale, units[0]])), *units[:-1]]
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(units) - 1))
        known = st.sampled_from([*units, -1, 0, -(1 << 63), (1 << 63) - 1])
        prevs[at] = draw(st.one_of(known, st.integers(1, 40).map(scale.__mul__)))
    return list(zip(units, prevs, strict=True))


@example([[(2, -1), (10, 2), (20, 12), (30, 18)]])  # their sum is that of a whole chain
@example([[(2 * PRIME, -1), (3 * PRIME, PRIME)]])  # all are multiples of what sums are taken modulo
@example([[(2 * OTHER_PRIME, -1), (3 * OTHER_PRIME, OTHER_PRIME)]])
@given(st.lists(chains(), min_size=1, max_size=4))
def test_where_a_chain_breaks_is_told_without_its_order(slots: list[list[tuple[int, int]]]) -> None:
    numbers = [(slot, *each) for slot, units in enumerate(slots) for each in units]
    columns = dict(zip(("slot", "unit", "prev"), np.array(numbers, np.int64).T, strict=True))
    flags = dict.fromkeys(("is_delete", "is_superseded", "is_roll"), np.zeros(len(numbers), bool))
    sources = pa.table({"read_slot": [0], "units_start": [2]})
    with DuckDB({"units": pa.table(columns | flags), "sources": sources}) as engine:
        found = engine.ask(
            f"SELECT slot, is_broken FROM ({JOINS['slot_sums']}) AS sums ORDER BY slot"
        )
    assert found["is_broken"].to_pylist() == [naive_is_broken(each, 2) for each in slots]
