"""The process that Spark forks its Python workers from, out of the installed PySpark.

Spark puts a zip file with PySpark's sources before all other folders. What comes from there is
compiled anew in each process; nobody keeps the result, and up to a query's first row there are
eight such processes. This module imports nothing of PySpark before the zip files are out of the
way, so it cannot lie in `timerstore.spark`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

MODULE: Final = "timerstore.values.sparkdaemon"
"""What Spark is told to start."""


def without_zips(path: list[str]) -> list[str]:
    """Return a module search path without PySpark's zip files if the same PySpark is installed.

    Such a file lies in `pyspark/python/lib` of the installed package; elsewhere it stays.
    """
    folders = {os.path.realpath(each) for each in path if not each.endswith(".zip")}

    def is_installed(entry: str) -> bool:
        lib = Path(os.path.realpath(entry)).parent
        home = lib.parents[1]
        installed = lib.parts[-3:] == ("pyspark", "python", "lib")
        installed &= str(home.parent) in folders
        return installed and (home / "daemon.py").is_file() and (home.parent / "py4j").is_dir()

    return [each for each in path if not (each.endswith(".zip") and is_installed(each))]


def main() -> None:
    """Run PySpark's process."""
    sys.path[:] = without_zips(sys.path)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
