"""Completion, asked for as a real bash asks."""

import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.shell import put

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash"),
]

PRESS_TAB = r"""
set -u
eval "$(_TIMERSTORE_COMPLETE=source_bash timerstore)"
complete -p timerstore >/dev/null || exit 9
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_timerstore_completion timerstore
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment in which `timerstore` is a command."""
    command = tmp_path / "bin" / "timerstore"
    command.parent.mkdir()
    code = "from timerstore.cli import main; main()"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -P -c '{code}' \"$@\"\n")
    command.chmod(0o755)
    return os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}"}


def complete(shell: dict[str, str], *words: object) -> list[str]:
    """What bash proposes for the last word."""
    command = ["bash", "--norc", "-c", PRESS_TAB, "bash", "timerstore", *map(str, words)]
    done = subprocess.run(command, env=shell, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_commands_options_topics(shell: dict[str, str], path: Path) -> None:
    for topic in ("mail", "bills", "mailings"):
        put(path, b"x", topic=topic, delay=timedelta(0))
    assert complete(shell, "red") == []  # an old name, which is not offered
    assert {"--delay", "--delay-level"} <= {*complete(shell, "put", path, "--del")}
    assert {"mail", "mailings"} == {*complete(shell, "pending", path, "--topic", "mai")}
    assert complete(shell, "export", path, "-", "--format", "pa") == ["parquet"]
    assert complete(shell, "count", path / "none", "--topic", "") == []
