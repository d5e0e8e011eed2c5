"""On Spark the rules give the same rows as in one process."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.rigs import interrupted
from tests.rigs.patient import Patient
from tests.rigs.planted import FAULTS, OF_LEVELS, make_store
from tests.rigs.random_store import MadeUp
from timerstore.audit import DuckDB, OnSpark
from timerstore.errors import NotAStoreError
from timerstore.validation import Validation, validate

pytestmark = pytest.mark.slow
PLANTED = FAULTS | {f"{rule} of a level": fault for rule, fault in OF_LEVELS.items()}
TOGETHER = (
    "files, closed, json, slot_place, slot_first, chain, chain_shared, unreached, unit_sound, "
    "unit_message, unit_size, message_sound",
    "slot_last, slot_count, unit_topic, unit_kind, enqueued, once, succession, early, cancelled, "
    "reached_once, settled, level_accounted, entry, entry_message, cursors, cursor_copies, "
    "flush_times, group_offsets, pending_count, early of a level, level_due of a level",
    "wheel_sums",
    "unit_slot, accounted, entry_tags, level_offsets, once of a level, cancelled of a level, "
    "settled of a level",
    "queue_order",
    "level_due",
)
"""Faults that can be planted in one store, in this order, and are all found there."""


def both(spark: Any, path: Path, split_bytes: int) -> Validation:
    """Validate on Spark, and plainly: all must be the same."""
    found = validate(path, spark=spark, split_bytes=split_bytes)
    assert found == validate(path, split_bytes=split_bytes)
    return found


@pytest.mark.promise
def test_rows_in_chunks_are_all_there(spark: Any) -> None:
    """Some chunks are empty: facts come from a file for each range, many of which have none."""
    schema = pa.schema([("number", pa.int64())])
    for lengths in product((0, 2), repeat=4):
        chunks = [pa.table([pa.array(range(each), pa.int64())], schema) for each in lengths]
        for engine in (OnSpark(spark, {}), DuckDB({})):
            with engine:
                engine.add("facts", pa.concat_tables(chunks))
                rows = engine.rows("SELECT count(*) AS found FROM facts")
                assert rows == [{"found": sum(lengths)}], lengths


def test_a_query_that_fails_is_told_and_no_other_begins(spark: Any) -> None:
    begun = list[str]()

    def act(name: str) -> str:
        begun.append(name)
        if name == "wrong":
            raise ValueError(name)
        return name

    with OnSpark(spark, {}) as engine:
        named = {"first": "", "wrong": "first", "behind": "wrong"}
        with pytest.raises(ValueError, match="wrong"):
            engine.each(named, act)
        assert begun == ["first", "wrong"]
        named.pop("wrong")
        assert engine.each(named, act) == {"first": "first", "behind": "behind"}


def test_queries_are_in_the_caller_s_job_group_and_pool(spark: Any) -> None:
    context, names = spark.sparkContext, ("spark.jobGroup.id", "spark.scheduler.pool", "mine")

    def act(name: str) -> list[str]:
        assert len(spark.range(2).collect()) == 2
        return [context.getLocalProperty(each) for each in names]

    for each in names:
        context.setLocalProperty(each, f"of {each}")
    try:
        with OnSpark(spark, {}) as engine:
            found = engine.each({"one": "", "two": ""}, act)
        assert list(found.values()) == 2 * [[f"of {each}" for each in names]]
        assert len(context.statusTracker().getJobIdsForGroup(f"of {names[0]}")) >= 2
    finally:
        for each in names:
            context.setLocalProperty(each, None)


def test_a_query_that_fails_interrupts_the_others_of_its_run(spark: Any, tmp_path: Path) -> None:
    interrupted.check(spark, tmp_path)


@pytest.mark.prove
@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
def test_golden_stores(name: str, spark: Any, golden_unpacked: Callable[[str], Path]) -> None:
    found = both(spark, golden_unpacked(name), 8_000_000)
    assert found.ok and not found.failures, str(found)


def test_every_fault_is_planted() -> None:
    assert sorted(", ".join(TOGETHER).split(", ")) == sorted(PLANTED)


@pytest.mark.tier("promise", only=("slot_last",))
@pytest.mark.tier("prove", but=("files", "slot_last"))  # the SQL is DuckDB's, which plays each
@pytest.mark.parametrize("names", TOGETHER, ids=lambda names: names.partition(",")[0])
def test_faults(names: str, spark: Any, tmp_path: Path, golden: Callable[[str], Path]) -> None:
    faults = {name: PLANTED[name] for name in names.split(", ")}
    path, split_bytes = tmp_path / "store", 8_000
    if any(fault.golden for fault in faults.values()):
        path, split_bytes = golden("pending"), 8_000_000
    else:
        make_store(path)
    places = [(name.split()[0], fault.plant(Patient(path))) for name, fault in faults.items()]
    found = both(spark, path, split_bytes)
    for rule, place in places:
        assert place in [example[:2] for example in found[rule].places], rule


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(5))
def test_stores_that_were_made_up(seed: int, spark: Any, tmp_path: Path) -> None:
    assert not both(spark, MadeUp(tmp_path, seed).leave().path, 2_000).failures


def test_no_store(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="Pass the folder of a store"):
        validate(tmp_path, spark=spark)
