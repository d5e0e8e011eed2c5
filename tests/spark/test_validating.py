"""On Spark the rules give the same rows as in one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.patient import Patient
from tests.rigs.planted import FAULTS, make_store
from tests.rigs.random_store import MadeUp
from timerstore.errors import NotAStoreError
from timerstore.validation import Validation, validate

pytestmark = pytest.mark.slow
PLANTED = ("chain", "unit_slot", "early", "cancelled", "entry_tags", "group_offsets")


def both(spark: Any, path: Path, split_bytes: int) -> Validation:
    """Validate on Spark, and plainly: all must be the same."""
    import timerstore.spark

    found = timerstore.spark.validate(spark, path, split_bytes=split_bytes)
    assert found == validate(path, split_bytes=split_bytes)
    return found


@pytest.mark.tier("promise", only=("fired",))
@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
def test_golden_stores(name: str, spark: Any, golden_unpacked: Callable[[str], Path]) -> None:
    found = both(spark, golden_unpacked(name), 8_000_000)
    assert found.ok and not found.failures, str(found)


def test_faults(spark: Any, tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    places = {rule: FAULTS[rule].plant(Patient(tmp_path / "store")) for rule in PLANTED}
    found = both(spark, tmp_path / "store", 8_000)
    for rule, place in places.items():
        assert place in [example[:2] for example in found[rule].examples], rule
    assert not found.ok


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(5))
def test_stores_that_were_made_up(seed: int, spark: Any, tmp_path: Path) -> None:
    assert not both(spark, MadeUp(tmp_path, seed).leave().path, 2_000).failures


def test_no_store(spark: Any, tmp_path: Path) -> None:
    import timerstore.spark

    with pytest.raises(NotAStoreError, match="Pass the folder of a store"):
        timerstore.spark.validate(spark, tmp_path)
