"""Builds what a release consists of: the source distribution, a wheel with kernels.

    .venv/bin/python -P .ci/wheel.py [DIST]

They come into dist/ if no folder is named. Kernels are compiled for a level of this machine's
processors (`timerstore/jit/packaged.py`), x86-64 or arm64, and linked by `cc`. No code in them
depends on a version of Python or of NumPy, and they ask nothing of the C library that is younger
than the tag says, so one wheel serves all.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TAG = f"manylinux_2_28_{platform.machine()}"
NUMBA = 'dependencies = ["numba>=0.61", '
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "kernels")
FOLDERS = ("timerstore", "timelog", "wheel", "services", "docs", "examples")
BUILD = """
import sys
from setuptools import build_meta
if sys.argv[1] == "sdist":
    build_meta.build_sdist(sys.argv[2])
else:
    build_meta.build_wheel(sys.argv[2], {"--build-option": ["--plat-name", sys.argv[1]]})
"""
OF_C = {
    *("__errno_location", "bcmp", "clock_gettime", "madvise", "memcmp", "memcpy", "memmove"),
    *("memset", "mincore", "ppoll", "pthread_self", "read", "sched_yield", "syscall", "usleep"),
    "write",
}
"""What kernels may ask of the C library: all of it is older than any glibc that matters."""


def main() -> None:
    """Build both."""
    dist = Path(sys.argv[1] if sys.argv[1:] else ROOT / "dist").absolute()
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        for file in [each for each in ROOT.iterdir() if each.is_file()]:
            shutil.copy(file, source)
        for name in FOLDERS:
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=LEFT_OUT)
        build(source, "sdist", dist)
        packed = source / "timerstore" / "kernels"
        # Of the copy, so that an edit meanwhile makes no kernels of other sources.
        subprocess.run(
            [sys.executable, "-P", "-m", "timerstore.jit.packing", str(packed)],
            env=os.environ | {"KERNEL_LEVEL": "none", "PYTHONPATH": str(source)},
            cwd=folder,
            check=True,
        )
        for library in packed.glob("*.so"):
            check(library)
        without_numba(source / "pyproject.toml")
        build(source, TAG, dist)
    for file in sorted(dist.iterdir()):
        print(f"{file.stat().st_size / 1e6:5.1f} MB  {file}")


def without_numba(project: Path) -> None:
    """Have what is built next not ask for Numba, which is only needed to compile kernels."""
    text = project.read_text()
    assert text.count(NUMBA) == 1
    project.write_text(text.replace(NUMBA, "dependencies = ["))


def build(source: Path, what: str, dist: Path) -> None:
    """Have setuptools build one of them."""
    command = [sys.executable, "-P", "-c", BUILD, what, str(dist)]
    subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)


def check(library: Path) -> None:
    """Refuse a library that needs what is not everywhere."""
    told = subprocess.run(
        ["nm", "-D", "--undefined-only", str(library)], check=True, capture_output=True, text=True
    )
    asked = {line.split()[-1].partition("@")[0] for line in told.stdout.splitlines()}
    unknown = {each for each in asked - OF_C if not each.startswith(("Py", "_Py"))}
    if unknown:
        sys.exit(f"{library.name} asks for {sorted(unknown)}, which is not everywhere.")


if __name__ == "__main__":
    main()
