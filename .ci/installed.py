"""Plays the life of a store where the wheel of dist/ is installed, with nothing to compile with.

    python .ci/installed.py [PYTHON …]

For each Python (or each of 3.11, 3.12, 3.13 that is there) it makes an empty environment: no
compiler on the path, no home, no folder for caches that can be written, and site-packages whose
folders for bytecode are files. Numba and LLVM cannot be imported. What is played is
`tests/rigs/rare_life.py`: openings after crashes, mending, tables, backups, what a broker left.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
GUARD = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise SystemExit(f"{name} was imported: a kernel is not in the wheel")
sys.meta_path.insert(0, Refused())
"""
FIRST = """
import timerstore
from datetime import timedelta
with timerstore.open(sys.argv[1]) as store:
    store.put(b"it fires", delay=timedelta(milliseconds=1))
    for delivery in store.consume("default", timeout=20):
        print(delivery.body.decode())
        delivery.ack()
        break
assert "site-packages" in timerstore.__file__, timerstore.__file__
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
    (wheel,) = (ROOT / "dist").glob("*.whl")
    pythons = sys.argv[1:] or [each for each in map(found, VERSIONS) if each]
    if not pythons:
        sys.exit("No Python 3.11, 3.12 or 3.13 is there: name one.")
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{python}: {installed(python, wheel, Path(folder))}")


def found(version: str) -> str | None:
    """Return a Python of a version that runs."""
    name = f"python{version}"
    try:
        done = subprocess.run([name, "-c", "import venv, ensurepip"], capture_output=True)
    except OSError:
        return None
    return name if done.returncode == 0 else None


def installed(python: str, wheel: Path, folder: Path) -> str:
    """Install it into an empty environment; play there, and return what was measured."""
    subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)
    own = str(folder / "venv" / "bin" / "python")
    subprocess.run([own, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    for each in [site / "timerstore", *(site / "timerstore").rglob("*")]:
        if each.is_dir() and each.name != "__pycache__":
            shutil.rmtree(each / "__pycache__", ignore_errors=True)
            (each / "__pycache__").touch()  # not even root can cache a kernel there
    nowhere = "/dev/null/nowhere"
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), nowhere)
    environment = {"PATH": str(folder / "venv" / "bin"), "PYTHONDONTWRITEBYTECODE": "1"} | places
    times = []
    for program, name, said in ((FIRST, "first", "it fires\n"), (LIFE, "life", "done\n")):
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
