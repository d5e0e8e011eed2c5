"""The verbs of `./run bench`: each starts its script, whose help names the verb."""

import re
import subprocess
import sys
from pathlib import Path

import machine
import pytest

BENCH = Path(machine.__file__).parent
RUN = BENCH.with_name("run").read_text()
SCRIPTS = dict(re.findall(r"^ +(--[\w-]+)\) script=(\w+) ;;$", RUN, re.MULTILINE))
for verbs in re.findall(r"^ +(--\w+(?: \| --\w+)+)\) script=\$\{1#--\} ;;$", RUN, re.MULTILINE):
    SCRIPTS |= {verb: verb.removeprefix("--") for verb in verbs.split(" | ")}


def test_the_head_of_run_names_every_verb() -> None:
    told = set(re.findall(r"^#   \./run bench (--[\w-]+)", RUN, re.MULTILINE))
    assert told == set(SCRIPTS)


@pytest.mark.slow
@pytest.mark.parametrize("verb", SCRIPTS)
def test_a_verb_has_help_of_its_own(verb: str) -> None:
    command = [sys.executable, str(BENCH / f"{SCRIPTS[verb]}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith(f"usage: ./run bench {verb} ")
