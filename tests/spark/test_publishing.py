"""What a session without the jars of Iceberg or Delta says when runs are published.

`tests/rigs/lake.py` publishes into real catalogs: it needs jars that PySpark does not bring.
"""

from pathlib import Path
from typing import Any

import pytest

import timerstore
from timerstore import pipeline

pytestmark = pytest.mark.slow


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The tables of one run that has ended."""
    timerstore.open(tmp_path / "store").close()
    pipeline.run({"one": tmp_path / "store"}, tmp_path / "tables", run="first")
    return tmp_path / "tables"


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
