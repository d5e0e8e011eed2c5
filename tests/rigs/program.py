"""A Python program in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FILES = Path(__file__).parents[2]
"""Where `tests` can be imported from."""


def ended(
    *arguments: object,
    cwd: Path | None = None,
    timeout_s: float = 240,
    env: Mapping[str, str] | None = None,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run Python to its end; return how that was, and what was printed.

    `arguments`: `"-c"`, a program and its words, say. `env`: the environment, this process's if it
    is None; `more` of it comes beside.
    """
    return subprocess.run(
        [sys.executable, "-P", *map(str, arguments)],
        cwd=cwd,
        env={**(os.environ if env is None else env), **more},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def python(
    *arguments: object,
    cwd: Path | None = None,
    timeout_s: float = 240,
    env: Mapping[str, str] | None = None,
    **more: str,
) -> str:
    """Run Python as `ended` does, assert that it ends well; return what it printed."""
    done = ended(*arguments, cwd=cwd, timeout_s=timeout_s, env=env, **more)
    assert done.returncode == 0, f"{done.stdout[-6_000:]}\n{done.stderr[-6_000:]}"
    return done.stdout
