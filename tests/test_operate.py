"""The commands of docs/operate.md, run as they stand there beside a program under load."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.markdown import ROOT

PAGE = ROOT / "docs" / "operate.md"
_SECTION = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```sh\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)

PROGRAM = """
import random, sys, time
from datetime import timedelta
import timerstore
from timerstore import Config, Consumer, Tuning

levels = "1s 1s 1s 1s"  # so that the bad one is dead soon
tuning = Tuning(commitlog_segment_bytes=1 << 20)
config = Config(durability="process", delay_levels=levels, tuning=tuning)
with timerstore.open("timers/", config=config) as store:
    consumer = Consumer(store, "mailer", threads=2, max_attempts=1)

    @consumer.on("reminders")
    def send(d):
        if d.body == b"bad":
            raise ValueError("no such address")

    store.put(b"invoice for ann", topic="billing", key="ann", delay=timedelta(days=3))
    store.put(b"bad", topic="reminders")
    with consumer:
        print("open", flush=True)
        while True:
            for _ in range(100):
                delay_ms = random.choice((0, 5, 50, 500, 60_000, 3_600_000))
                store.put(b"x" * 100, topic=random.choice(("reminders", "audit")), key="k",
                          delay=timedelta(milliseconds=delay_ms))
            time.sleep(0.05)
"""


def sections() -> dict[str, list[str]]:
    """The lines of commands below each heading; "" stands before the first."""
    parts = ["", *_SECTION.split(PAGE.read_text())[1:]]
    before = PAGE.read_text().split("\n## ")[0]
    texts = dict(zip(parts[1::2], parts[2::2], strict=True)) | {"": before}
    found = {}
    for title, text in texts.items():
        lines = [line for block in _BLOCK.finditer(text) for line in block["code"].splitlines()]
        if lines:
            found[title] = [line.split("  #")[0].strip() for line in lines]
    return found


def says(*patterns: str) -> Callable[[str], None]:
    def check(output: str) -> None:
        for pattern in patterns:
            assert re.search(pattern, output), f"{pattern!r} is not in:\n{output}"

    return check


EXPECTED = {
    "": says('"state": "running"'),
    "Is it healthy?": says(r"timers/?: running", '"ok": true'),
    "What is late?": says("reminders", "audit", "late"),
    "Who is behind?": says(r"audit.*", "mailer", "nobody", "bad"),
    "What is it doing right now?": says("enqueue-get", "put", r"within 10 s"),
    "What fills the disk?": says(r"kept by.*audit", r"timers"),
    "Which timer is that, and cancel it": says("invoice for ann", "ann", "cancelled"),
    "Stop firing for an hour": says("Firing is paused until", "paused", "goes on"),
    "Take a backup, restore it": says("pending"),
    "Is every byte of it sound?": says("no damage", "sound|agree|ok"),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a program puts, fires, consumes all the time."""
    folder = tmp_path_factory.mktemp("operate")
    command = [sys.executable, "-P", "-c", PROGRAM]
    log = (folder / "log").open("wb")
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"open\n"
        time.sleep(4)
        yield folder
        assert child.poll() is None, (folder / "log").read_text()
    finally:
        child.kill()
        child.communicate()
        log.close()


@pytest.mark.tier("prove", but=("Is it healthy?",))
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("title", sections())
def test_commands_of_the_page(program: Path, title: str) -> None:
    """Each answers beside the program, in less than the minute that an operator has."""
    tools = program / "bin"
    tools.mkdir(exist_ok=True)
    shim = tools / "timerstore"
    code = "from timerstore.cli import main; main()"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -P -c "{code}" "$@"\n')
    shim.chmod(0o755)
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "COLUMNS": "100"}
    shown, id = [], ""
    for line in sections()[title]:
        if line.startswith("curl") and shutil.which("curl") is None:
            line = _without_curl(line)
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=program,
            env=environment | {"ID": id},
            capture_output=True,
            text=True,
            timeout=60,
        )
        shown.append(f"$ {line}\n{done.stdout}{done.stderr}")
        assert done.returncode == 0, shown[-1]
        if found := re.search(r"\b[0-9A-F]{32}\b", done.stdout):
            id = found[0]
    EXPECTED[title]("\n".join(shown))


def _without_curl(line: str) -> str:
    socket, url = re.search(r"--unix-socket (\S+) http://\w+/(\w+)", line).groups()  # type: ignore[union-attr]
    folder = socket.rsplit("/", 1)[0]
    code = (
        "import json, sys; from timerstore.share.wire import find_owner; "
        f"print(json.dumps(find_owner('{folder}').call('{url}')))"
    )
    return f'{sys.executable} -P -c "{code}"'


@pytest.mark.long
def test_every_question_is_checked() -> None:
    assert set(EXPECTED) == set(sections())
