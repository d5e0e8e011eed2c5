"""Plays a page of the documentation: writes its files, runs what it has run.

A page has a folder of its own, one shell and one order, that in which it is read. What a block
is stands behind its fence:

    python                      a program
    any language, title="x.py"  a file of that name, which a later block may run
    console                     commands behind "$ " ("> " goes on), with what each prints below it
    text title="output"         what the block before it printed
    run="no"                    only shown
    status="3"                  what each command of the block ends with; else 0

In what is printed … stands for any text of a line, and a line that is … alone for any lines.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.markdown import split_fences

TIMEOUT_S = 120
_TOLD_BYTES = 10_000

_INFO = re.compile(r'(?P<language>[\w+-]*)(?P<options>(?:\s+[\w-]+="[^"]*")*)')
_OPTION = re.compile(r'([\w-]+)="([^"]*)"')
_OPTIONS = {"title", "run", "status", "hl_lines", "linenums"}
_SHELL = r"""
set -m
while IFS= read -r -d '' -u 3 command; do
  eval "$command" </dev/null
  printf '\0%s\0' $?
done
"""
"""One shell for all of a page: what a command sets, or leaves running, the next one finds."""
_JOB_ENDED = re.compile(r"^.*: line \d+: +\d+ (Killed|Terminated|Interrupt|Done)\b.*\n?", re.M)
"""What a shell says of a job that was killed; one that a person types into says it otherwise."""


class PageError(AssertionError):
    """A page that does not do what it says."""


@dataclass(frozen=True)
class Step:
    """What a page does at one of its lines: write a file, or run a command."""

    line: int
    command: str = ""
    status: int = 0
    prints: str | None = None
    """None: it does not say."""
    file: str = ""
    text: str = ""


def steps(text: str) -> Iterator[Step]:
    """What a page does, in its order."""
    waiting: Step | None = None  # for the block that says what it printed
    for block in split_fences(text)[1]:
        language, options = _fence(block.info, block.line)
        is_output = language == "text" and options.get("title") == "output"
        if waiting is not None:
            yield (
                Step(waiting.line, waiting.command, waiting.status, block.code)
                if is_output
                else (waiting)
            )
            waiting = None
        elif is_output:
            raise PageError(f"line {block.line}: an output, but nothing before it runs")
        if is_output or options.get("run") == "no":
            continue
        status = int(options.get("status", "0"))
        if language == "console":
            yield from _commands(block.code, block.line, status)
        elif "title" in options:
            yield Step(block.line, file=options["title"], text=block.code)
        elif language == "python":
            name = f"line-{block.line}.py"
            # Empty lines in front, so that a traceback shows the page's line number.
            yield Step(block.line, file=name, text="\n" * (block.line - 1) + block.code)
            waiting = Step(block.line, f"python {name}", status)
    if waiting is not None:
        yield waiting


def _fence(info: str, line: int) -> tuple[str, dict[str, str]]:
    match = _INFO.fullmatch(info)
    if match is None:
        raise PageError(f'line {line}: a fence is a language and name="value", not {info}')
    options = dict(_OPTION.findall(match["options"]))
    if unknown := options.keys() - _OPTIONS:
        raise PageError(f"line {line}: a fence has no {', '.join(unknown)}")
    return match["language"], options


def _commands(code: str, line: int, status: int) -> Iterator[Step]:
    command, prints, began = "", "", line
    for number, text in enumerate([*code.splitlines(), "$ "], line):
        if text.startswith("$ "):
            if command:
                yield Step(began, command, status, prints or None)
            elif prints:
                raise PageError(f"line {began}: an output before the first command")
            command, prints, began = text[2:], "", number
        elif text.startswith("> ") and not prints:
            command += "\n" + text[2:]
        else:
            prints += text + "\n"


def is_said(said: str, wanted: str) -> bool:
    """Tell whether a page's words stand for what was printed; spaces at a line's end are none."""
    pattern = ""
    for line in wanted.strip().splitlines():
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += (
                ".*?".join(re.escape(part) for part in line.rstrip().split("…")) + r"[ \t]*\n"
            )
    return re.fullmatch(pattern, said.strip() + "\n") is not None


class Shell:
    """A page's folder, and the shell in it."""

    def __init__(self, folder: Path) -> None:
        read_fd, self._commands_fd = os.pipe()
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST")
        }
        environment.pop("PYTHONPATH", None)
        environment |= {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "100",
            "TZ": "UTC",
            "PYTHONUNBUFFERED": "1",
        }
        self._folder = folder
        self._jobs = 0
        self._said = b""
        self._process = subprocess.Popen(
            ["bash", "-c", _SHELL.replace("-u 3", f"-u {read_fd}")],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[read_fd],
            start_new_session=True,
        )
        os.close(read_fd)

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *exc: object) -> None:
        """End what still runs, in the background too."""
        os.close(self._commands_fd)
        assert self._process.stdout is not None
        for pid in _of_session(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

    def run(self, command: str) -> tuple[str, int]:
        """What it printed, and its status; one that ends with & goes on, printing to a file.

        What says itself where it prints to does that.
        """
        if command.rstrip().endswith("&"):
            self._jobs += 1
            command = command.rstrip()[:-1]
            prints_to = "" if ">" in command else f">background-{self._jobs}.txt 2>&1"
            command = f"{command} {prints_to} &"
        os.write(self._commands_fd, command.encode() + b"\0")
        said, status = self._until_nul(command), self._until_nul(command)
        return _JOB_ENDED.sub("", said), int(status)

    def background(self) -> str:
        """What was printed in the background."""
        files = sorted(self._folder.glob("background-*.txt"))
        return "".join(f"--- {file.name}\n{file.read_text()}" for file in files)

    def _until_nul(self, command: str) -> str:
        assert self._process.stdout is not None
        until_s = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._said:
            left_s = max(0, until_s - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], left_s)
            in_time = bool(ready and left_s)  # what prints for ever is always ready
            chunk = os.read(self._process.stdout.fileno(), 65_536) if in_time else b""
            if not chunk:
                reason = "the shell ended in" if in_time else f"after {TIMEOUT_S} s it still ran"
                said = self._said[-_TOLD_BYTES:].decode(errors="replace")
                raise PageError(f"{reason}: {command}\n{said}\n{self.background()}")
            self._said += chunk
        said, _, rest = self._said.partition(b"\0")
        self._said = rest
        return said.decode(errors="replace")


def _of_session(session_id: int) -> Iterator[int]:
    """The processes that a shell left running."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[3]) == session_id:
            yield int(folder.name)


def play(path: Path, folder: Path) -> None:
    """Do what a page says, in an empty folder; raise PageError where it says something wrong."""
    with Shell(folder) as shell:
        for step in steps(path.read_text()):
            where = f"{path.name}:{step.line}"
            if step.file:
                file = folder / step.file
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(step.text)
                continue
            said, status = shell.run(step.command)
            told = f"{where}: {step.command}\n{said}"
            if status != step.status:
                raise PageError(f"{told}\nended with status {status}\n{shell.background()}")
            if step.prints is not None and not is_said(said, step.prints):
                raise PageError(f"{told}\nis not what the page says:\n{step.prints}")
