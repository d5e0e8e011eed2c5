"""The levels of processors that kernels are compiled for ahead of time.

A level is a set of features that a processor must have, not one processor: those of the levels of
x86-64 with which Linux distributions are built, and the carry-less multiplication that CRC needs,
which each processor of that age has.
"""

from __future__ import annotations

import os
import platform
import sys
from typing import Final, NamedTuple

_V3: Final = (
    *("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "pclmul", "popcnt"),
    *("sahf", "sse3", "sse4.1", "sse4.2", "ssse3", "xsave"),
)
_V4: Final = (
    *_V3,
    *("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vbmi2", "avx512vl", "vpclmulqdq"),
)
_LINUX_NAMES: Final = {
    "avx512vbmi2": "avx512_vbmi2",
    "bmi": "bmi1",
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

    @property
    def text(self) -> str:
        """The features as LLVM takes them."""
        return ",".join(f"+{each}" for each in sorted(self.features))


LEVELS: Final = (Level("x86-64-v4", _V4), Level("x86-64-v3", _V3))
"""The best first."""


def fits(level: Level, cpu_info: str) -> bool:
    """Tell whether a processor has all that a level asks for; `cpu_info`: what Linux says of it."""
    flags: set[str] = set()
    for line in cpu_info.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            flags = set(value.split())
            break
    return all(_LINUX_NAMES.get(each, each) in flags for each in level.features)


def best_level() -> Level | None:
    """Return the best level of this processor; None if there is none, or it is unknown."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        with open(_CPU_INFO, "rb") as file:
            text = os.read(file.fileno(), _READ_BYTES).decode("ascii", "replace")
    except OSError:
        return None
    return next((each for each in LEVELS if fits(each, text)), None)
