"""Spark's Python workers take PySpark from where it is installed, not from a zip file."""

from pathlib import Path
from typing import Any

import pyspark
import pytest

from timerstore.values.sparkdaemon import MODULE, without_zips

pytestmark = pytest.mark.slow


def test_only_what_is_installed_beside_it_is_taken_away(tmp_path: Path) -> None:
    home = tmp_path / "pyspark"
    lib = home / "python" / "lib"
    lib.mkdir(parents=True)
    zips = [str(lib / "pyspark.zip"), str(lib / "py4j-src.zip")]
    other = str(tmp_path / "elsewhere" / "pyspark.zip")
    path = [*zips, other, str(tmp_path)]
    assert without_zips(path) == path  # no PySpark is installed there
    (home / "daemon.py").touch()
    assert without_zips(path) == path  # nor Py4J
    (tmp_path / "py4j").mkdir()
    assert without_zips(path) == [other, str(tmp_path)]
    assert without_zips([*zips, other]) == [*zips, other]  # the folder is not searched


@pytest.mark.timeout(240)
def test_workers_import_the_installed_one(spark: Any) -> None:
    def where(batches: Any) -> Any:
        import pyarrow as pa
        import pyspark as seen

        for _ in batches:
            yield pa.record_batch([[str(seen.__file__)]], ["file"])

    assert spark.conf.get("spark.python.daemon.module") == MODULE
    found = spark.range(1).mapInArrow(where, "file string").collect()
    assert {row["file"] for row in found} == {pyspark.__file__}
