"""What a session without the jars of Iceberg or Delta says when runs are published.

`tests/rigs/lake.py` publishes into real catalogs: it needs jars that PySpark does not bring.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

import timerstore
from timerstore import pipeline
from timerstore.pipeline.tablefiles import TableFiles, frame

pytestmark = pytest.mark.slow


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The tables of one run that has ended."""
    timerstore.open(tmp_path / "store").close()
    pipeline.run({"one": tmp_path / "store"}, tmp_path / "tables", run="first")
    return tmp_path / "tables"


def test_a_run_is_read_from_its_own_day(spark: Any, out: Path) -> None:
    (run,) = pipeline.read(out, "runs").to_pylist()
    files, table = TableFiles(out, "first", run["day"]), pipeline.TABLES["findings"]
    other = TableFiles(out, "first", "2001-02-03").path(table.name, "one")
    other.parent.mkdir(parents=True)
    shutil.copyfile(files.path(table.name, "one"), other)
    assert frame(spark, files, table).count() == pipeline.read(out, table.name).num_rows


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_jars_are_asked_for(spark: Any, out: Path, form: str) -> None:
    with pytest.raises(timerstore.InvalidArgumentError, match="catalog of Iceberg or Delta"):
        pipeline.publish(spark, out, "nowhere", form=form)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"into": "lake; DROP", "form": "delta"}, "Pass a namespace"),
        ({"into": "lake", "form": "parquet"}, "Use iceberg or delta"),
        ({"into": "lake", "form": "delta", "run": "second"}, "has no finished run"),
    ],
)
def test_arguments(out: Path, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(timerstore.InvalidArgumentError, match=says):
        pipeline.publish(None, out, **arguments)  # type: ignore[arg-type]
