"""A standalone cluster on loopback, whose workers have not the package: it comes with the job."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.planted_stores import START_MS, Case
from tests.rigs.program import python
from timerstore import pipeline
from timerstore.warmup import pack

pytestmark = [pytest.mark.slow, pytest.mark.prove]
ANSWER_S = 120

DRIVER = """
import json, sys
import timerstore.spark
from timerstore import pipeline
master, package, worker_python, home, stores, out, now_ms = sys.argv[1:]
spark = timerstore.spark.session(master=master, config={
    "spark.pyspark.python": worker_python, "spark.submit.pyFiles": package,
    "spark.cores.max": "2", "spark.executor.cores": "1", "spark.executor.memory": "512m",
    "spark.executorEnv.HOME": home, "spark.executorEnv.TMPDIR": home,
})
found = pipeline.run(stores, out, spark=spark, run="one", now_ms=int(now_ms), split_bytes=300_000)
def look(batches):
    import pyarrow
    import timerstore
    from timerstore.jit.kernel import LOADED_AHEAD, LOADED_LATER
    from timerstore.validation import validate
    assert validate(stores + "/store").ok
    from timerstore.jit.loading import COMPILED
    misses = len(COMPILED)
    hits = sum(each.entry is not None for each in LOADED_AHEAD + LOADED_LATER) - misses
    yield pyarrow.record_batch(
        [[timerstore.__file__], [hits], [misses]], ["file", "hits", "misses"])
where = spark.range(0, 4, 1, 4).mapInArrow(look, "file string, hits long, misses long").collect()
files = sorted({row["file"] for row in where})
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
spark.stop()
print(json.dumps({"files": files, "hits": min(row["hits"] for row in where),
                  "misses": max(row["misses"] for row in where), "verdict": found.verdict,
                  "executors": executors,
                  "states": {each.name: each.state for each in found.stores}}))
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_until_open(port: int) -> None:
    for _ in range(10 * ANSWER_S):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("no master answers")


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A master with two workers, a core and 512 MB each."""
    import pyspark

    from timerstore.spark.java import find_java

    home, port = Path(pyspark.__file__).parent, free_port()
    java_home = find_java()
    java = str(java_home / "bin" / "java") if java_home is not None else "java"
    if java_home is None and os.environ.get("JAVA_HOME"):
        java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
    env = os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    if java_home is not None:
        env["JAVA_HOME"] = str(java_home)
    (core,) = home.glob("jars/spark-core_*.jar")
    env["SPARK_SCALA_VERSION"] = core.name.split("_")[1].split("-")[0]
    opened = "--add-opens=java.base/{}=ALL-UNNAMED"
    parts = ("java.nio", "sun.nio.ch", "java.lang", "java.util", "java.net")
    command = [java, "-Xmx256m", *map(opened.format, parts), "-cp", f"{home}/jars/*"]
    role = "org.apache.spark.deploy"
    at = ["--host", "127.0.0.1", "--webui-port", "0"]
    master = f"spark://127.0.0.1:{port}"
    commands = [[*command, f"{role}.master.Master", *at, "--port", str(port)]]
    for i in range(2):
        work = folder / f"work-{i}"
        size = ["--cores", "1", "--memory", "600m", "--work-dir", str(work)]
        commands.append([*command, f"{role}.worker.Worker", *at, *size, master])
    started = []
    try:
        for i, each in enumerate(commands):
            with open(folder / f"log-{i}", "wb") as log:
                started.append(subprocess.Popen(each, env=env, stdout=log, stderr=log))
            if i == 0:
                wait_until_open(port)
        yield master
    finally:
        for process in started:
            process.kill()
            process.wait()


def python_without_timerstore(folder: Path) -> Path:
    """A command that runs this Python, with all its packages but this one."""
    (packages,) = {Path(pytest.__file__).parents[1]}
    site = folder / "site"
    site.mkdir(parents=True)
    for each in packages.iterdir():
        if "timerstore" not in each.name:
            (site / each.name).symlink_to(each)
    command = folder / "python"
    command.write_text(
        "#!/bin/sh\n"
        f'PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{site}" exec {sys.executable} -S -P "$@"\n'
    )
    command.chmod(0o755)
    return command


@pytest.mark.timeout(600)
def test_a_cluster_whose_workers_have_not_the_package(tmp_path: Path) -> None:
    case = Case(tmp_path / "stores")
    case.folder.mkdir()
    case.put([600 + i for i in range(300)])
    shutil.copytree(case.path, case.folder / "other")
    package, home = tmp_path / "timerstore.zip", tmp_path / "home"
    pack(package)
    home.mkdir()
    worker_python = python_without_timerstore(tmp_path / "python")
    done = subprocess.run([worker_python, "-c", "import timerstore"], capture_output=True)
    assert done.returncode == 1 and b"No module named 'timerstore'" in done.stderr
    stores, out, plain = str(tmp_path / "stores"), tmp_path / "tables", tmp_path / "plain"
    with cluster(tmp_path) as master:
        arguments = [master, package, worker_python, home, stores, out, START_MS]
        told: dict[str, Any] = json.loads(
            python("-c", DRIVER, *map(str, arguments), cwd=tmp_path, timeout_s=500).splitlines()[-1]
        )
    assert told["verdict"] == "ok" and told["states"] == {"store": "sound", "other": "sound"}
    assert told["executors"] == 2
    assert told["files"] and all("timerstore.zip" in each for each in told["files"])
    # Kernels came with the package: nothing was compiled, so nothing was left where it would be.
    assert told["misses"] == 0 < told["hits"]
    assert [path for path in tmp_path.rglob("*.nb[ci]") if "python" not in path.parts] == []
    pipeline.run(stores, plain, run="one", now_ms=START_MS)
    for name in ("slot_load", "due", "findings", "growth"):
        rows = [pipeline.read(each, name).to_pylist() for each in (out, plain)]
        ordered = [sorted(map(str, each)) for each in rows]
        assert ordered[0] == ordered[1], name
