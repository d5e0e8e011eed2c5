"""Compiling what stores need before there is one: for an image, for workers, or before tests."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import timerstore.store.store  # noqa: F401  its calls' kernels count as well
from timerstore.core.load_kernels import compile_all
from timerstore.errors import InvalidArgumentError
from timerstore.jit.cachefolder import FOLDER
from timerstore.jit.kernel import LOADED_AHEAD, LOADED_LATER
from timerstore.jit.loading import file_in_cache
from timerstore.timelog.files.oserrors import told_of
from timerstore.values.kinds import check_place
from timerstore.version import __version__

_PACKAGES: Final = (
    "timerstore",
    "timerstore.timelog",
    "timerstore.wheel",
    "timerstore.services",
    "pyspark_timerstore",
)
"""A clone has some of them elsewhere."""


def compile_kernels() -> None:
    """Have all kernels in the cache, as opening a machine's first store does; quick if they are."""
    compile_all()


def pack(path: str | os.PathLike[str]) -> None:
    """Write this package, with the machine code of its kernels, as a zip file.

    A process that imports it from there, on this kind of processor and with this Python, compiles
    nothing: Spark's workers, say, for which it is `spark.submit.pyFiles`. It takes some seconds, or
    as long as `compile_kernels` if kernels have to be compiled. Raises InvalidArgumentError,
    StoreAccessError.

    >>> timerstore.warmup.pack("timerstore.zip")
    """
    target = check_place(path)
    about = f"Metadata-Version: 2.1\nName: timerstore\nVersion: {__version__}\n"
    with told_of(str(target)):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for place, file in sorted(_files().items()):
                archive.write(file, place)
            archive.writestr(f"timerstore-{__version__}.dist-info/METADATA", about)
            for name, content in _compiled():
                archive.writestr(f"timerstore/{FOLDER}/{name}", content)
        target.write_bytes(packed.getvalue())


def _files() -> dict[Path, Path]:
    """Return the package's files by their places in an archive."""
    files = {}
    for name in _PACKAGES:
        spec = find_spec(name)
        place = Path(next(iter((spec and spec.submodule_search_locations) or [""])))
        if not place.is_dir():
            raise InvalidArgumentError(
                f"{name} lies in {place}, which is no folder. Install it in a folder first."
            )
        for file in place.rglob("*.*"):
            if file.is_file() and file.suffix not in (".pyc", ".o"):
                files[Path(name.replace(".", os.sep), file.relative_to(place))] = file
    return files


def _compiled() -> Iterator[tuple[str, bytes]]:
    """Yield what the cache has of kernels, by the names of its files."""
    compile_all()
    for each in [*LOADED_AHEAD, *LOADED_LATER]:
        found = file_in_cache(each)
        if found is not None:
            yield found
