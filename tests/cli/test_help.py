"""Help: what it shows is what the commands take, as is what a page shows."""

import re
import shlex
from itertools import pairwise

import pytest
import typer
from typer.testing import CliRunner

from tests.markdown import ROOT
from tests.rigs.program import python
from timerstore.cli.commands import app

GROUP = typer.main.get_command(app)
NAMES = sorted(GROUP.commands)  # type: ignore[attr-defined]
DEAD = GROUP.commands["dead"].commands  # type: ignore[attr-defined]
COMMANDS = {(name,): GROUP.commands[name] for name in NAMES}  # type: ignore[attr-defined]
PIPELINE = GROUP.commands["pipeline"].commands  # type: ignore[attr-defined]
COMMANDS |= {("dead", name): command for name, command in DEAD.items()}
COMMANDS |= {("pipeline", name): command for name, command in PIPELINE.items()}
COMMANDS = {names: command for names, command in COMMANDS.items() if not command.hidden}
_SHELL_BLOCK = re.compile(r"## At the shell\n+```\n(.*?)```", re.DOTALL)


def check(line: str) -> None:
    """Let a command line be parsed, as when it is typed, and nothing be run."""
    first, name, *arguments = shlex.split(re.split(r" (?:\|\|?|>) ", line)[0])
    assert first == "timerstore"
    command = GROUP.commands[name]  # type: ignore[attr-defined]
    with command.make_context(name, arguments):
        pass
    if name == "dead":
        name, *arguments = arguments if arguments[0] in DEAD else ["list", *arguments]
        with DEAD[name].make_context(name, arguments):
            pass
    if name == "pipeline":
        with PIPELINE[arguments[0]].make_context(name, arguments[1:]):
            pass


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_each_command_says_what_it_does_with_an_example(names: tuple[str, ...]) -> None:
    text = COMMANDS[names].help or ""
    assert text[0].isupper() and text.split("\n\n")[0].rstrip().endswith((".", ":"))
    (example,) = re.findall(r"^Example: (timerstore .+)$", text, re.MULTILINE)
    assert tuple(example.split()[1 : 1 + len(names)]) == names
    check(example)


def test_the_lines_of_the_page_are_commands() -> None:
    (block,) = _SHELL_BLOCK.findall((ROOT / "docs/short-programs.md").read_text())
    shown = set()
    for line in block.splitlines():
        command, *rest = re.split(r" {2,}", line)
        if len(command.split()) == 2:
            command += " " + rest[0]
        check(command)
        shown.add(command.split()[1])
    assert {"put", "get", "cancel", "import", "export", "verify"} <= shown <= {*NAMES}


def test_every_command_writes_json() -> None:
    for names, command in COMMANDS.items():
        options = {each for p in command.params for each in p.opts}
        silent = (("warmup",), ("dead",), ("pipeline",), ("pipeline", "follow"))
        silent += (("follow",), ("standby",))
        assert "--json" in options or names in silent


def shown_help(names: tuple[str, ...]) -> str:
    """What `--help` shows in a terminal of 80 columns."""
    shown = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert shown.exit_code == 0
    return shown.output


@pytest.mark.parametrize("names", [(), ("dead",), ("pipeline",), *COMMANDS], ids=" ".join)
def test_help_fits_the_terminal(names: tuple[str, ...]) -> None:
    """No type stands beside a flag, no bracket is doubled, and lines break only at the edge."""
    text = shown_help(names)
    assert "<bool>" not in text and "[[" not in text
    prose = [line.strip() for line in text.split("╭─")[0].splitlines()]
    for line, after in pairwise(prose):
        if line and after and not line.startswith(("Usage:", "Example:")):
            assert len(f"{line} {after.split()[0]}") > 78, line


def test_the_package_is_a_program() -> None:
    assert "Usage: timerstore" in python("-m", "timerstore", "--help", timeout_s=60)
