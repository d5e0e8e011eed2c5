"""What OpenLineage's listener is told: the job, and what it writes."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rigs.program import python
from tests.spark.test_connect import java_home
from tests.table_stores import EVENTFUL, live

pytestmark = [pytest.mark.slow, pytest.mark.prove]
JAR = "io.openlineage:openlineage-spark_2.13:1.53.0"
DRIVER = """
import sys
import timerstore.spark
jar, store, out, events = sys.argv[1:]
spark = timerstore.spark.session(master="local[2]", app_name="nightly", config={
    "spark.jars": jar,
    "spark.extraListeners": "io.openlineage.spark.agent.OpenLineageSparkListener",
    "spark.openlineage.transport.type": "file",
    "spark.openlineage.transport.location": events,
})
frame = spark.read.format("timerstore").option("table", "messages").load(store)
frame.groupBy("topic").count().write.parquet(out)
spark.stop()
"""


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    """The listener, which Maven fetches once (43 MB)."""
    command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={JAR}"]
    command.append(f"-DoutputDirectory={tmp_path / 'jars'}")
    if shutil.which("mvn") is None or subprocess.run(command, timeout=240, check=False).returncode:
        pytest.skip("Maven cannot fetch OpenLineage: its listener hears of no query")
    (made,) = (tmp_path / "jars").iterdir()
    return made


def test_events_name_the_job_and_what_it_writes(jar: Path, tmp_path: Path) -> None:
    live(tmp_path / "store", EVENTFUL).close()
    out, events = tmp_path / "out", tmp_path / "events.jsonl"
    python("-c", DRIVER, jar, tmp_path / "store", out, events, cwd=tmp_path, **java_home())
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert {each["job"]["name"].partition(".")[0] for each in told} == {"nightly"}
    done = [each for each in told if each["eventType"] == "COMPLETE" and each["outputs"]]
    written = {(output["namespace"], output["name"]) for each in done for output in each["outputs"]}
    assert written == {("file", str(out))}
