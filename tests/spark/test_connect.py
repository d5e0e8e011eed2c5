"""The pipeline through Spark Connect, with a server on loopback."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.planted_stores import START_MS, Case
from tests.rigs.program import FILES, python
from timerstore import pipeline

pytestmark = [pytest.mark.slow, pytest.mark.prove]
for each in ("grpc", "grpc_status", "google.rpc", "zstandard"):
    pytest.importorskip(each, reason="PySpark's extra connect is not installed")

DRIVER = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
import timerstore.spark
from tests.rigs import interrupted
from timerstore import pipeline
stores, out, now_ms = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config(map={
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
}).getOrCreate()
timerstore.spark.register(spark)
options = {"run": "one", "now_ms": int(now_ms), "split_bytes": 60_000}
found = pipeline.run(stores, out, spark=spark, **options)
query = pipeline.follow(spark, stores + "/store", out, until_now=True)
query.awaitTermination()
timers = spark.read.format("timerstore").option("table", "timers").load(stores + "/store")
told = {"session": type(spark).__module__, "verdict": found.verdict, "timers": timers.count(),
        "states": {each.name: each.state for each in found.stores},
        "valid": timerstore.validation.validate(stores + "/store", spark=spark).ok}
interrupted.check(spark, Path(out))
spark.stop()
print(json.dumps(told))
"""


@pytest.mark.timeout(400)
def test_the_tables_are_those_of_one_process(tmp_path: Path) -> None:
    case = Case(tmp_path / "stores")
    case.folder.mkdir()
    case.put([600 + i for i in range(300)])
    stores, out, plain = tmp_path / "stores", tmp_path / "tables", tmp_path / "plain"
    run, more = ["-c", DRIVER, stores, out, START_MS], {"PYTHONPATH": str(FILES), **java_home()}
    more["PYSPARK_PYTHON"] = sys.executable
    printed = python(*run, cwd=tmp_path, timeout_s=300, **more)
    told: dict[str, Any] = json.loads(printed.splitlines()[-1])
    assert told["session"] == "pyspark.sql.connect.session"
    assert told["verdict"] == "ok" and told["states"] == {"store": "sound"}
    assert told["timers"] == 300 and told["valid"]
    pipeline.run(stores, plain, run="one", now_ms=START_MS)
    for name in ("slot_load", "due", "findings", "growth"):
        rows = [pipeline.read(each, name).to_pylist() for each in (out, plain)]
        ordered = [sorted(map(str, each)) for each in rows]
        assert ordered[0] == ordered[1], name


def java_home() -> dict[str, str]:
    """Where Java is, if it has to be said."""
    from timerstore.spark.java import find_java

    home = find_java()
    return {} if home is None else {"JAVA_HOME": str(home)}
