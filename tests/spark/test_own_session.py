"""A session of one's own, in a process of its own: nothing to register, what is wrong said last."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.markdown import ROOT
from tests.table_stores import EVENTFUL, Folder, live

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.config("spark.ui.enabled", False)
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    .getOrCreate()
)
print("timers", spark.read.format("timerstore").load(sys.argv[1]).count())
spark.read.format("timerstore").option("table", "timer").load(sys.argv[1])
"""


def test_the_plain_builder(tmp_path: Path) -> None:
    """As a wheel installs it, from the repository's root, where a folder is named wheel/."""
    live(tmp_path / "s", EVENTFUL).close()
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "pyspark_timerstore").symlink_to(ROOT / "timerstore" / "spark" / "found")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = os.environ | {"PYTHONPATH": str(packages)}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name in ("PYSPARK_PYTHON", "PYTHONSAFEPATH"):
        environ.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "s")],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    count = timerstore.read(tmp_path / "s").num_rows
    assert done.stdout == f"timers {count}\n", done.stderr[-3_000:]
    assert done.returncode == 1
    *_, why, state = done.stderr.strip().splitlines()
    assert why.startswith("timerstore.errors.InvalidArgumentError: There is no table 'timer'. Did")
    assert state == " SQLSTATE: 38000"  # Spark says so behind every error of a data source
    assert done.stderr.count("options.py") == 0


def told(call: Any) -> list[str]:
    """What is printed of an error, but for Spark's own last line."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    return [line for line in str(caught.value).strip().splitlines() if "SQLSTATE" not in line]


@pytest.mark.prove
def test_what_is_wrong_is_said_last(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "s"
    live(path, EVENTFUL).close()

    def load(path: Any, **options: str) -> Any:
        return spark.read.format("timerstore").load(str(path), **options)

    for lines, why in (
        (told(lambda: load(f"{tmp_path}/none")), f"{tmp_path}/none is not there. Pass a store's d"),
        (told(lambda: load(path, columns="tpic")), "no column 'tpic'. Did you mean topic?"),
        (told(lambda: load(path, where="key = 'a'")), "Filter the rows after reading them"),
        (told(lambda: load(path, tabel="fired")), "no option 'tabel'. Did you mean table?"),
    ):
        assert lines[-1].startswith("timerstore.errors.") and why in lines[-1]
        assert len(lines) <= 4
    offset = timerstore.read(path)["message_offset"][0].as_py()
    Folder(path / "commitlog").write(offset + 4, b"\0\0\0\0")
    lines = told(lambda: load(path, mode="failfast").count())
    assert f"CorruptStoreError: commitlog is damaged at offset {offset}" in lines[-1]


def test_register(spark: Any, tmp_path: Path) -> None:
    import timerstore.spark

    timerstore.spark.register()
    timerstore.spark.register(spark)
    live(tmp_path / "s", EVENTFUL).close()
    assert spark.read.format("timerstore").load(str(tmp_path / "s")).columns[0] == "id"
