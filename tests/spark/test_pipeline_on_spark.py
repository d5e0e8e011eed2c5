"""A run on Spark writes the tables that one process writes."""

import pickle
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.pipeline.planted_stores import CONFIG, START_MS
from tests.rigs.patient import Patient
from tests.rigs.planted import FAULTS, make_store
from timerstore import pipeline
from timerstore.pipeline import TABLES
from timerstore.validation.plan import make_plan

pytestmark = pytest.mark.slow


def make(path: Path, count: int) -> Path:
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(path, config=CONFIG, clock=clock) as store:
        delay_ms = [200 * i for i in range(count)]
        store.put_many([bytes(50)] * count, delay_ms=delay_ms, topic="mail")
        clock.advance(timedelta(seconds=5))
    return path


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sound ones, a damaged one, one that can hardly be read; a fifth is gone."""
    folder = tmp_path_factory.mktemp("stores")
    make(folder / "large", 3_000)
    make(folder / "small", 20)
    make_store(folder / "damaged")
    FAULTS["unit_topic"].plant(Patient(folder / "damaged"))
    make(folder / "torn", 500)
    (segment, *_) = sorted((folder / "torn" / "commitlog").iterdir())
    segment.write_bytes(segment.read_bytes()[:70_000])
    return folder


def named(folder: Path) -> dict[str, str]:
    return {name: str(folder / name) for name in ("large", "small", "gone", "damaged", "torn")}


def rows(out: Path, run: str = "one") -> dict[str, list[str]]:
    """The rows of all tables but those that say how long it took."""
    found = {}
    for name in TABLES:
        if name not in ("runs", "metrics"):
            table = pipeline.read(out, name, run=run)
            found[name] = sorted(str(sorted(row.items())) for row in table.to_pylist())
    return found


@pytest.mark.tier("promise", only=("100000",))
@pytest.mark.tier("prove", but=("100000",))
@pytest.mark.parametrize("split_bytes", [100_000, 64 << 20])
def test_the_tables_are_those_of_one_process(
    split_bytes: int, spark: Any, stores: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"run": "one", "now_ms": START_MS, "split_bytes": split_bytes}
    plain = pipeline.run(named(stores), tmp_path / "plain", **options)
    found = pipeline.run(named(stores), tmp_path / "spark", spark=spark, **options)
    assert [each.to_dict() for each in found.stores] == [each.to_dict() for each in plain.stores]
    assert found["gone"].state == "unreadable" and found["damaged"].state == "damaged"
    assert found["large"].verdict == "ok"
    told, expected = rows(tmp_path / "spark"), rows(tmp_path / "plain")
    assert told == expected and all(told.values())
    files = {
        str(path.relative_to(tmp_path / "spark")) for path in (tmp_path / "spark").rglob("*.*")
    }
    assert files == {
        str(path.relative_to(tmp_path / "plain")) for path in (tmp_path / "plain").rglob("*.*")
    }


@pytest.mark.prove
def test_spark_reads_what_was_written(spark: Any, stores: Path, tmp_path: Path) -> None:
    pipeline.run(named(stores), tmp_path, run="one")
    for name in TABLES:
        frame = spark.read.parquet(str(tmp_path / name))
        kinds = {each.name: each.dataType.simpleString() for each in frame.schema.fields}
        for column in TABLES[name].columns:
            assert kinds[column.name] == column.kind
        assert frame.count() == pipeline.read(tmp_path, name).num_rows
        assert {"day"} | ({"store"} if TABLES[name].by_store else set()) <= set(kinds)


def test_spark_reads_the_names_of_stores(spark: Any, stores: Path, tmp_path: Path) -> None:
    names = {"a/b", "100 % {x} [y]*?", "zwei ü 名=#+"}
    pipeline.run(dict.fromkeys(names, stores / "small"), tmp_path, run="one")
    frame = spark.read.parquet(str(tmp_path / "stores"))
    assert {row["store"] for row in frame.select("store").collect()} == names
    for name in names:
        (row,) = pipeline.read(tmp_path, "stores", store=name).to_pylist()
        assert row["store"] == name


def test_many_small_stores_are_one_job(spark: Any, stores: Path, tmp_path: Path) -> None:
    """They are looked at with a few tasks for each core, however many there are."""
    many = {f"store-{i}": str(stores / "small") for i in range(20)}
    context = spark.sparkContext
    context.setJobGroup("many", "small stores")
    try:
        found = pipeline.run(many, tmp_path / "tables", spark=spark, run="one")
    finally:
        context.setJobGroup("others", "what comes next")
    assert found.verdict == "ok" and len(found.stores) == 20
    # The others are those of the rules.
    job = min(context.statusTracker().getJobIdsForGroup("many"))
    stages = context.statusTracker().getJobInfo(job).stageIds
    tasks = [context.statusTracker().getStageInfo(each).numTasks for each in stages]
    assert sum(tasks) <= 4 * context.defaultParallelism
    assert pipeline.read(tmp_path / "tables", "stores").num_rows == 20


@pytest.mark.prove
def test_a_store_that_goes_meanwhile_is_a_row(
    spark: Any, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when the run was planned; the other one is done."""
    for name in ("large", "small"):
        shutil.copytree(stores / name, tmp_path / "live" / name)

    def plan_and_lose(path: str, *args: Any, **options: Any) -> Any:
        found = make_plan(path, *args, **options)
        if Path(path).name == "large":
            shutil.rmtree(path)
        return found

    monkeypatch.setattr("timerstore.pipeline.runs.make_plan", plan_and_lose)
    folder, out = tmp_path / "live", tmp_path / "tables"
    found = pipeline.run(folder, out, spark=spark, run="one", split_bytes=100_000)
    assert found["large"].state in ("unreadable", "damaged")
    assert (found["large"].verdict, found["small"].verdict) == ("fail", "ok")
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.prove
def test_stores_in_a_dataframe(spark: Any, stores: Path, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("x", str(stores / "small"))], "name string, path string")
    assert pipeline.run(frame, tmp_path / "tables", spark=spark)["x"].verdict == "ok"
