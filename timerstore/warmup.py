"""Compiling what stores need before there is one: for an image, for workers, or before tests."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import timerstore.store.store  # noqa: F401  its calls' kernels count as well
from timerstore.core.ahead import compile_all
from timerstore.errors import InvalidArgumentError
from timerstore.ground.kinds import check_place
from timerstore.timelog.files.oserrors import told_of
from timerstore.version import __version__

_PACKAGES: Final = (
    "timerstore",
    "timerstore.timelog",
    "timerstore.wheel",
    "timerstore.services",
    "pyspark_timerstore",
)
"""A clone has some of them elsewhere."""
_PROGRAM: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from timerstore.warmup import compile_kernels
compile_kernels()
"""


def compile_kernels() -> None:
    """Have all kernels in the cache, as opening a machine's first store does. Else a second."""
    compile_all()


def pack(path: str | os.PathLike[str]) -> None:
    """Write this package, with the machine code of its kernels, as a zip file.

    A process that imports it from there, on this kind of processor and with this Numba, compiles
    nothing: Spark's workers, say, for which it is `spark.submit.pyFiles`. It takes some seconds, or
    as long as `compile_kernels` if the package's folder has no machine code. Raises
    InvalidArgumentError, StoreAccessError.

    >>> timerstore.warmup.pack("timerstore.zip")
    """
    target = check_place(path)
    with tempfile.TemporaryDirectory() as folder, told_of(str(target)):
        _copy(Path(folder))
        # As if it had been installed there, because that is where kernels are looked for.
        environment = {name: os.environ[name] for name in os.environ if name != "NUMBA_CACHE_DIR"}
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM, folder],
            env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode != 0:
            raise InvalidArgumentError(f"Kernels could not be compiled: {done.stderr.strip()}")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(each for each in Path(folder).rglob("*") if each.is_file()):
                archive.write(file, file.relative_to(folder))
        target.write_bytes(packed.getvalue())


def _copy(folder: Path) -> None:
    """Copy the package, with what machine code there is of it."""
    for name in _PACKAGES:
        spec = find_spec(name)
        place = Path(next(iter((spec and spec.submodule_search_locations) or [""])))
        if not place.is_dir():
            raise InvalidArgumentError(
                f"{name} lies in {place}, which is no folder. Install it in a folder first."
            )
        for file in place.rglob("*.*"):
            if file.is_file() and file.suffix != ".pyc":
                copy = folder / name.replace(".", os.sep) / file.relative_to(place)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
    about = folder / f"timerstore-{__version__}.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: timerstore\nVersion: {__version__}\n")
