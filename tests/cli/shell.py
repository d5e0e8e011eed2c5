"""Commands in a process of their own; a store that is small enough to be opened for each test."""

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from typer.testing import Result

import timerstore
from tests.rigs.warm import Warm

Run = Callable[..., Result]
SMALL = timerstore.Config(
    durability="process",
    tuning=timerstore.Tuning(
        commitlog_segment_bytes=1 << 20,
        consumequeue_segment_bytes=20_000,
        timerlog_segment_bytes=52_000,
    ),
)
"""Sizes that a test can afford; a store is opened with what it was made with."""


def process(*arguments: object, **options: Any) -> "subprocess.Popen[bytes]":
    """A command in a process of its own."""
    code = "from timerstore.cli import main; main()"
    command = [sys.executable, "-P", "-c", code, *map(str, arguments)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return Warm(command, **(pipes | options))


def finish(child: "subprocess.Popen[bytes]") -> tuple[int, str, str]:
    out, err = child.communicate(timeout=120)
    return child.returncode, out.decode(), err.decode()


def put(path: Path, *bodies: bytes, **options: Any) -> list[str]:
    options.setdefault("delay", timedelta(hours=1))
    with timerstore.open(path, config=SMALL) as store:
        return [store.put(body, **options) for body in bodies]
