"""The examples of the README, or of a page, do what it says there."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.markdown import ROOT, split_fences
from tests.page_player import is_said
from tests.rigs.program import python

TIMEOUT_SECONDS = 120
RUNNER = Path(__file__).with_name("readme_runner.py")


def programs(name: str) -> list[tuple[int, str, str | None]]:
    """Of each ```python block its line, its code, what the block behind it says that it prints."""
    blocks = split_fences((ROOT / name).read_text())[1]
    found = []
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.info == "python":
            says = after is not None and after.info == 'text title="output"'
            found.append((block.line, block.code, after.code if says and after else None))
    return found


def run(name: str, times: int, folder: Path) -> dict[str, list[list[Any]]]:
    """Run the programs of a page in one process; what each said and left, by its line.

    Each has a folder of its own. Empty lines in front, so that a traceback shows the page's line.
    """
    folders = []
    for line, code, _ in programs(name):
        folders.append(folder / f"line-{line}")
        folders[-1].mkdir()
        (folders[-1] / "example.py").write_text("\n" * (line - 1) + code)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    start = ["-X", "dev", RUNNER, times, *folders]
    printed = python(*start, cwd=folder, env=environment, timeout_s=TIMEOUT_SECONDS)
    runs: dict[str, list[list[Any]]] = {}
    for text in printed.splitlines():
        folder_name, *rest = json.loads(text)
        runs.setdefault(folder_name.removeprefix("line-"), []).append(rest)
    return runs


@pytest.mark.promise
@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "docs/short-programs.md"])
def test_the_examples_do_what_the_page_says(name: str, tmp_path: Path) -> None:
    """Twice in a row: each prints what stands below it, and leaves nothing pending, nor a file."""
    runs = run(name, 2, tmp_path)
    for line, _, wanted in programs(name):
        where = f"{name}:{line}"
        assert wanted is not None, f"{where}: say what it prints"
        assert len(runs[str(line)]) == 2, where
        for said, left, pending in runs[str(line)]:
            assert is_said(said, wanted), f"{where} printed\n{said}\nand not\n{wanted}"
            assert left in ([], ["timers"]), where
            assert not any(pending.values()), f"{where} leaves timers pending: {pending}"


@pytest.mark.tier("prove", but=("docs/consumer.md",))
@pytest.mark.slow
@pytest.mark.parametrize("name", ["docs/consumer.md", "docs/exactly-once.md"])
def test_the_examples_of_a_page_run(name: str, tmp_path: Path) -> None:
    """In an empty folder each; a block that is only shown says so: ```python run="no"."""
    runs = run(name, 1, tmp_path)
    for line, _, wanted in programs(name):
        ((said, _, _),) = runs[str(line)]
        assert wanted is None or is_said(said, wanted), f"{name}:{line} printed\n{said}"
