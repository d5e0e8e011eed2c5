"""Runs programs one after the other in one process, each in a folder of its own.

`python readme_runner.py TIMES FOLDER...`: in each folder `example.py`, TIMES times. Writes a line
of JSON for each run: what it printed, which files it left, how many timers are pending.
"""

import contextlib
import io
import json
import os
import runpy
import sys
from pathlib import Path

import timerstore


def run(folder: Path) -> None:
    os.chdir(folder)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path("example.py", run_name="__main__")
    left = sorted(path.name for path in folder.iterdir() if path.name != "example.py")
    pending = {}
    for name in left:
        if (folder / name / "commitlog").is_dir():
            with timerstore.open(folder / name, read_only=True) as store:
                pending[name] = store.count()
    print(json.dumps([folder.name, said.getvalue(), left, pending]), flush=True)


if __name__ == "__main__":
    for each in sys.argv[2:]:
        for _ in range(int(sys.argv[1])):
            run(Path(each).absolute())
