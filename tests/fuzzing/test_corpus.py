"""The corpus of each target is replayed; with `./run prove tests` each target is fuzzed on."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzzing.targets import TARGETS
from tests.tiers import how_many

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("corpus")
CORPUS_BYTES_MAX = 200_000
FUZZ_SECONDS = how_many("FUZZ_SECONDS", 10, 600)
OF_DIRECTORIES = slice(None, None, how_many("FUZZ_STEP", 6, 1))
"""Which are replayed: each is a store that is validated, and opened twice."""


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_is_replayed(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert files, "fuzz it with --keep"
    for file in files[OF_DIRECTORIES] if name == "directory" else files:
        print(file)
        TARGETS[name](file.read_bytes())


def test_the_corpus_is_small() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)
    assert sum(file.stat().st_size for file in CORPUS.rglob("*")) < CORPUS_BYTES_MAX


@pytest.mark.prove
@pytest.mark.timeout(FUZZ_SECONDS + 300)
@pytest.mark.parametrize("name", TARGETS)
def test_fuzzing_finds_nothing(name: str) -> None:
    if find_spec("atheris") is None:
        pytest.skip("atheris is not installed: nothing is fuzzed")
    command = [sys.executable, "-P", "-m", "tests.fuzzing", name, "--seconds", str(FUZZ_SECONDS)]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
