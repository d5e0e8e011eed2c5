"""The levels of processors that kernels are compiled for ahead of time.

A level is a set of features that a processor must have, not one processor. Those of x86-64 are the
levels with which Linux distributions are built, and the carry-less multiplication that CRC needs,
which each processor of that age has. That of ARM is what its servers have, all but the first ones.
"""

from __future__ import annotations

import os
import platform
from typing import Final, NamedTuple

from timerstore.jit.host import PORTABLE

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


LEVELS_OF: Final = {
    "x86_64": (Level("x86-64-v4", _V4, "x86-64-v4"), Level("x86-64-v3", _V3, "x86-64-v3")),
    "aarch64": (Level("armv8.1-a+crc+lse", ("crc", "lse")),),
}
"""Of each machine, the best first."""
LEVELS: Final = LEVELS_OF.get(platform.machine(), ())
"""Those of this machine."""


def fits(level: Level, cpu_info: str) -> bool:
    """Tell whether a processor has all that a level asks for; `cpu_info`: what Linux says of it."""
    flags: set[str] = set()
    for line in cpu_info.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            flags = set(value.split())
            break
    return all(_LINUX_NAMES.get(each, each) in flags for each in level.features)


def best_level() -> Level | None:
    """Return the best level of this processor; None if there is none, or it is unknown."""
    levels = LEVELS_OF.get(platform.machine(), ())
    if PORTABLE or not levels:
        return None
    try:
        with open(_CPU_INFO, "rb") as file:
            text = os.read(file.fileno(), _READ_BYTES).decode("ascii", "replace")
    except OSError:
        return None
    return next((each for each in levels if fits(each, text)), None)
