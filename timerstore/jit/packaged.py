"""Kernels that were compiled when this package was built: what a wheel brings of them.

`timerstore/kernels` has a library of machine code, for a level of processors, and a manifest. The
library is loaded only from there, and only if it hashes to what the manifest says, as this
package's sources do. Nothing of Numba is needed for that. What is not there, as in a clone, is
compiled when it is needed; the log says so in a line if some are there.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import platform
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from timerstore.jit.cachefolder import FOLDER, IN_ARCHIVE, PACKAGE, content_of
from timerstore.jit.host import PORTABLE, open_in_memory
from timerstore.jit.numpylayout import NDARRAY_SYMBOL

# --- The levels of processors that kernels are compiled for ahead of time.
#
# A level is a set of features that a processor must have, not one processor. That of x86-64 is one
# with which Linux distributions are built, and the carry-less multiplication that CRC needs, which
# each processor of that age has. That of ARM is what its servers have, all but the first ones.

_V3: Final = (
    *("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "pclmul", "popcnt"),
    *("sahf", "sse3", "sse4.1", "sse4.2", "ssse3", "xsave"),
)
_LINUX_NAMES: Final = {
    "bmi": "bmi1",
    "crc": "crc32",
    "lse": "atomics",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "sahf": "lahf_lm",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
}
"""What Linux calls a feature for which LLVM has another name."""
_CPU_INFO: Final = "/proc/cpuinfo"
_READ_BYTES: Final = 1 << 14
"""As much as tells all of the first processor; the whole takes long if there are hundreds."""


class Level(NamedTuple):
    """What kernels are compiled for."""

    name: str
    features: tuple[str, ...]
    """As LLVM calls them."""
    processor: str = "generic"
    """As LLVM calls that one whose instructions are put in order."""

    @property
    def text(self) -> str:
        """The features as LLVM takes them."""
        return ",".join(f"+{each}" for each in sorted(self.features))


LEVEL_OF: Final = {
    "x86_64": Level("x86-64-v3", _V3, "x86-64-v3"),
    "aarch64": Level("armv8.1-a+crc+lse", ("crc", "lse")),
}
"""Of each machine."""


def fits(level: Level, cpu_info: str) -> bool:
    """Tell whether a processor has all that a level asks for; `cpu_info`: what Linux says of it."""
    flags: set[str] = set()
    for line in cpu_info.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            flags = set(value.split())
            break
    return all(_LINUX_NAMES.get(each, each) in flags for each in level.features)


def level_here() -> Level | None:
    """Return the level of this processor; None if it has none, or is unknown."""
    level = LEVEL_OF.get(platform.machine())
    if PORTABLE or level is None:
        return None
    try:
        with open(_CPU_INFO, "rb") as file:
            text = os.read(file.fileno(), _READ_BYTES).decode("ascii", "replace")
    except OSError:
        return None
    return level if fits(level, text) else None


log = logging.getLogger("timerstore")

SWITCH: Final = "KERNEL_LEVEL"
"""The environment variable of which `none` takes no packaged kernel."""
MANIFEST: Final = "manifest.json"
LIBRARY: Final = "kernels.so"
_ROOMS: Final = ("jit", "timelog", "wheel", "services", "calls", "core")
"""The folders whose sources kernels are made of."""
_OFF: Final = ("", "0")


class Packaged:
    """The library, in memory."""

    def __init__(self, library: ctypes.CDLL, kernels: frozenset[str]) -> None:
        """Hold the library and the names of its kernels."""
        self._library, self._kernels = library, kernels
        ctypes.c_void_p.in_dll(library, NDARRAY_SYMBOL).value = id(np.ndarray)

    def __contains__(self, name: str) -> bool:
        return name in self._kernels

    def address_of(self, name: str) -> int:
        """Return where a kernel's entry is."""
        found = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        assert found is not None
        return found


class _UnusableError(Exception):
    """Packaged kernels are there, and cannot be used."""


@cache
def packaged() -> Packaged | None:
    """Return the kernels that are packaged for this processor; None if there are none.

    A process asks when it calls its first kernel. If there is a manifest and none can be used
    all the same, the log says why in a line.
    """
    if os.environ.get(SWITCH) == "none" or os.environ.get("NUMBA_BOUNDSCHECK", "0") not in _OFF:
        return None
    try:
        manifest = content_of(os.path.join(PACKAGE, FOLDER, MANIFEST))
    except OSError:  # a clone: all is compiled
        return None
    try:
        return _usable(manifest)
    except (_UnusableError, OSError, AttributeError) as e:
        log.warning(
            ("the kernels of the wheel are not used: %s. They are compiled on this machine."), e
        )
        return None


def _usable(manifest: bytes) -> Packaged:
    """Return the kernels of a manifest; raises _UnusableError if they cannot be used."""
    try:
        about = json.loads(manifest)
    except ValueError as e:
        raise _UnusableError(f"{MANIFEST} cannot be read: {e}") from e
    level = level_here()
    if level is None or level.name != about["level"]:
        raise _UnusableError(f"they are for {about['level']}, which this processor is not")
    if source_digest(about["source_files"]) != about["sources"]:
        raise _UnusableError("they were made from other sources")
    path = os.path.join(PACKAGE, FOLDER, LIBRARY)
    content = content_of(path)
    if digest_of(content) != about["sha256"]:
        raise _UnusableError(f"{path} was changed after it was packaged")
    return Packaged(_loaded(path, content), frozenset(about["kernels"]))


def _loaded(path: str, content: bytes) -> ctypes.CDLL:
    """Load a library; one in an archive from memory, if nobody can have changed it."""
    if not IN_ARCHIVE:
        return ctypes.CDLL(path)
    fd = open_in_memory("timerstore-kernels")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        return ctypes.CDLL(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def digest_of(content: bytes) -> str:
    """Return what a manifest says of a library."""
    return hashlib.sha256(content).hexdigest()


def source_digest(files: list[str]) -> str:
    """Return what a manifest says of sources; `files`: their paths within the package."""
    digest = hashlib.sha256()
    for name in files:
        try:
            content = content_of(os.path.join(PACKAGE, name))
        except OSError:  # it is gone
            content = b""
        digest.update(f"{name}:{len(content)};".encode() + content)
    return digest.hexdigest()


def sources() -> list[str]:
    """Return the paths, within the package, of what kernels are made of."""
    top = Path(PACKAGE)
    found = [file for room in _ROOMS for file in (top / room).rglob("*.py")]
    return sorted(file.relative_to(top).as_posix() for file in found)
