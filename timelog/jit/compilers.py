"""Which compiler makes a kernel: ours, or Numba's own if ours does not work.

`linking.py` stands on internals of Numba. If another version lacks what it needs, or does it
otherwise, kernels are compiled as Numba does it by itself: more slowly, with the same results. A
line in the log says so, once. A Numba that is newer than those that were tried is tried first, by
`trial.py`, in a process of its own, because what goes wrong there may end a process.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from typing import Any, Final

import numba
from numba.core.compiler import Compiler

log = logging.getLogger("timerstore")

SWITCH: Final = "KERNEL_LINKING"
"""The environment variable that says which one: `own`, or `numba`; else it is found out here."""
TRIED: Final = (0, 68)
"""The newest Numba with which all tests have passed."""
_TRIAL_S: Final = 120
_PROGRAM: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from timerstore.timelog.jit import trial
trial.main()
"""

_reason: str | None = None
"""Why it is Numba's own; empty if it is ours; None before anybody asked."""


class HelperCompiler:
    """What Numba makes when it compiles a helper."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Return a compiler."""
        return _chosen(cls.__name__)(*args, **options)


class KernelCompiler:
    """What Numba makes when it compiles a kernel with its helpers."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Return a compiler."""
        return _chosen(cls.__name__)(*args, **options)


def _chosen(name: str) -> Any:
    if links_itself():
        return Compiler
    from timerstore.timelog.jit import linking

    return getattr(linking, name)


def links_itself() -> bool:
    """Tell whether Numba links kernels as it does by itself.

    The answer is found when a process asks for the first time, if the version is a new one in
    some seconds.
    """
    global _reason
    if _reason is None:
        _reason = _why_not_ours()
        if _reason:
            log.warning(
                "Numba's own linking of kernels is used, so compiling them takes longer (%s)",
                _reason,
            )
    return bool(_reason)


def environment() -> dict[str, str]:
    """Return what tells a process that compiles for this one which compiler to take."""
    return {SWITCH: "numba" if links_itself() else "own"}


def _why_not_ours() -> str:
    asked = os.environ.get(SWITCH)
    if asked == "numba":
        return f"{SWITCH} asks for it"
    try:
        from timerstore.timelog.jit import linking  # noqa: F401
    except Exception as e:  # anything that another Numba lacks
        return f"Numba {numba.__version__} lacks what is needed: {e}"
    if asked == "own" or _version(numba.__version__) <= TRIED:
        return ""
    return _tried()


def _version(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def _tried() -> str:
    """Return what is wrong with kernels that another process links in our way, or nothing."""
    program = [sys.executable or "", "-I", "-c", _PROGRAM, json.dumps(sys.path)]
    where = f"Numba {numba.__version__} was not tried before"
    if not os.path.basename(program[0]).startswith("python") or getattr(sys, "frozen", False):
        return f"{where}, and no process can be started to try it"
    try:
        with tempfile.TemporaryDirectory() as folder:
            mode = {SWITCH: "own", "NUMBA_CACHE_DIR": folder}
            done = subprocess.run(
                program,
                env=os.environ | mode,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TRIAL_S,
            )
    except (OSError, subprocess.SubprocessError) as e:
        return f"{where}, and could not be tried: {e}"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
    return f"{where}, and its trial failed: {last}"
