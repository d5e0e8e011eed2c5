"""Fixtures for tests of the shell."""

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import timerstore
from tests.cli.shell import SMALL, Run
from timerstore.cli.commands import app


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small store that holds nothing."""
    folder = tmp_path / "timers"
    timerstore.open(folder, config=SMALL).close()
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("info", path)`: a command in this process; a status other than `exits` fails."""
    for name in os.environ:
        if name.startswith("TIMERSTORE_") or name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
            monkeypatch.delenv(name)

    def invoke(*arguments: object, exits: int = 0, **options: Any) -> Result:
        result = CliRunner().invoke(app, [str(each) for each in arguments], **options)
        assert result.exit_code == exits, (result.output, result.exception)
        return result

    return invoke
