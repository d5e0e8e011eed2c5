"""Plays the life of a store where a wheel is installed, with nothing to compile with.

    python .ci/installed.py [--wheel FILE] [PYTHON …]

For each Python (or one of each version that pyproject.toml names, if it is there) it makes an empty
environment: no compiler on the path, no home. Numba and LLVM cannot be imported, so no kernel can
be compiled or loaded from a cache, and Python looks for writes behind its objects
(PYTHONMALLOC=debug). What is played is a life whose ids are stored and read again, then
`tests/rigs/rare_life.py`: openings after crashes, mending, tables, backups, what a broker left. A
line says so for each version that was not played.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
GUARD = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise SystemExit(f"{name} was imported: a kernel is not in the wheel")
sys.meta_path.insert(0, Refused())
"""
FIRST = """
import json, timerstore
from datetime import timedelta
HOUR = timedelta(hours=1)
with timerstore.open(sys.argv[1]) as store:
    for _ in range(3):
        store.put(b"it fires", delay=timedelta(milliseconds=1))
    seen = 0
    for delivery in store.consume("default", timeout=20):
        seen += delivery.ack() is None
        if seen == 3:
            break
    ids = [store.put(b"%d" % i, topic="t", delay=HOUR, key=f"k{i}") for i in range(9)]
    ids = json.loads(json.dumps(ids))  # other texts, of what these say
    assert [store.get(each).body for each in ids] == [b"%d" % i for i in range(9)], ids
    assert sorted(each.id for each in store.pending(topic="t")) == sorted(ids)
    assert store.get_key("t", "k3").id == ids[3] and store.cancel(ids[0])
    moved = json.loads(json.dumps(store.reschedule(ids[1], delay=2 * HOUR)))
    assert store.get(moved).body == b"1" and store.get(ids[1]) is None
    assert store.cancel_many([moved, *ids[2:5]]).all() and store.count(topic="t") == 4
with timerstore.open(sys.argv[1]) as store:
    assert [store.get(each).body for each in ids[5:]] == [b"5", b"6", b"7", b"8"]
assert "site-packages" in timerstore.__file__, timerstore.__file__
print("it lives")
"""
LIFE = """
from pathlib import Path
sys.path.append(sys.argv[2])  # behind what is installed
from tests.rigs.rare_life import main
Path(sys.argv[1]).mkdir()
main(Path(sys.argv[1]))
"""


def main() -> None:
    """Check each Python."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("pythons", nargs="*")
    given = parser.parse_args()
    (wheel,) = [given.wheel.absolute()] if given.wheel else (ROOT / "dist").glob("*.whl")
    pythons = given.pythons or [each for each in map(found, VERSIONS) if each]
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{python}: {installed(python, wheel, Path(folder))}", flush=True)
    if not pythons:
        sys.exit(f"No Python of {', '.join(VERSIONS)} is there: name one.")


def found(version: str) -> str | None:
    """Return a Python of a version that runs: on the path, or the newest one that pyenv has."""
    places = [Path(each) for each in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    places += sorted(pyenv.glob(f"{version}.*/bin"), key=newest, reverse=True)
    for name in [str(place / f"python{version}") for place in places]:
        try:
            done = subprocess.run([name, "-c", "import venv"], capture_output=True)
        except OSError:
            continue
        if done.returncode == 0:
            return name
    print(f"NOT PLAYED: Python {version} is not there, so nothing is known of the wheel on it.")
    return None


def newest(folder: Path) -> list[int]:
    """Order folders of versions."""
    return [int(each) for each in re.findall(r"\d+", folder.parent.name)]


def installed(python: str, wheel: Path, folder: Path) -> str:
    """Install it into an empty environment; play there, and return what was measured."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    own = str(folder / "venv" / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", own]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", f"{wheel}[audit]"], check=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    nowhere = "/dev/null/nowhere"
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), nowhere)
    environment = {"PATH": str(folder / "venv" / "bin"), "PYTHONDONTWRITEBYTECODE": "1"} | places
    environment |= {"PYTHONMALLOC": "debug"}
    times = []
    for program, name, said in ((FIRST, "first", "it lives\n"), (LIFE, "life", "done\n")):
        began = time.monotonic()
        done = subprocess.run(
            [own, "-P", "-c", GUARD + program, str(folder / name), str(ROOT)],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if (done.stdout, done.stderr, done.returncode) != (said, "", 0):
            sys.exit(f"{python}: {name}: status {done.returncode}\n{done.stdout}{done.stderr}")
        times.append(f"{name} {time.monotonic() - began:.2f} s")
    size = sum(file.stat().st_size for file in (site / "timerstore").rglob("*") if file.is_file())
    return ", ".join([*times, f"{size / 1e6:.1f} MB installed"])


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
