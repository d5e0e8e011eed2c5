"""A Python program in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILES = Path(__file__).parents[2]
"""Where `tests` can be imported from."""


def ended(
    *arguments: object,
    cwd: Path | None = None,
    timeout_s: float = 240,
    env: Mapping[str, str] | None = None,
    popen: "type[subprocess.Popen[Any]]" = subprocess.Popen,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run Python to its end; return how that was, and what was printed.

    `arguments`: `"-c"`, a program and its words, say. `env`: the environment, this process's if it
    is None; `more` of it comes beside. `popen`: `Warm`, if nothing depends on how it begins.
    """
    with popen(
        command := [sys.executable, "-P", *map(str, arguments)],
        cwd=cwd,
        env={**(os.environ if env is None else env), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def python(*arguments: object, **options: Any) -> str:
    """Run Python as `ended` does, assert that it ends well; return what it printed."""
    done = ended(*arguments, **options)
    assert done.returncode == 0, f"{done.stdout[-6_000:]}\n{done.stderr[-6_000:]}"
    return done.stdout
