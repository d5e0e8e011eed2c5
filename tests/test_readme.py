"""The examples of the README run, word for word, twice each; those of some pages do, once."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.markdown import ROOT, split_fences

TIMEOUT_SECONDS = 120


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("README.md", "docs/processes.md", "docs/consumer.md", "docs/asyncio.md"),
        *("docs/recurring.md", "docs/exactly-once.md"),
    ],
)
def test_readme_examples_run(name: str, tmp_path: Path) -> None:
    """Each ```python block is a program of its own, in an empty folder; the README's again in it.

    Those of the README print something, for a reader who tries one wants to see that it works. A
    block that is only shown says so in its fence: ```python run="no".
    """
    _, blocks = split_fences((ROOT / name).read_text())
    times = ("first", "second") if name == "README.md" else ("only",)
    programs = [block for block in blocks if block.info == "python"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for block in programs:
        folder = tmp_path / f"line-{block.line}"
        folder.mkdir()
        # Empty lines in front, so that a traceback shows the README's line number.
        program = folder / f"{Path(name).name}.py"
        program.write_text("\n" * (block.line - 1) + block.code)
        for time in times:
            done = subprocess.run(
                [sys.executable, "-X", "dev", program.name],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
            )
            said = f"{name}:{block.line}, the {time} time:\n{done.stdout}{done.stderr}"
            assert done.returncode == 0, said
            assert done.stdout or name != "README.md", said
            for line in re.findall(r"# It printed \"(.*?)\"", block.code):
                assert line in done.stdout.splitlines(), said
