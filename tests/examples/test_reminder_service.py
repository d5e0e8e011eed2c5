"""The reminder service of `examples/`, each way of it, with its processes."""

import ast
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tokenize
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.markdown import ROOT

HERE = ROOT / "examples" / "reminder_service"
PYTHON = [sys.executable, "-P"]
WAYS: dict[str, tuple[list[str], list[list[str]], int]] = {
    "apscheduler_before": (["apscheduler"], [["{here}/scheduler.py"]], signal.SIGTERM),
    "huey_before": (
        ["huey"],
        [["-m", "huey.bin.huey_consumer", "tasks.huey", "-w", "2"]],
        signal.SIGINT,
    ),
    "celery_before": (
        ["celery"],
        [["-m", "celery", "-A", "tasks", "worker", "-P", "threads", "-c", "2"]],
        signal.SIGTERM,
    ),
    "after": ([], [], signal.SIGTERM),
}
"""What each needs to be installed, its processes beside the web workers, what ends these gently."""
WORKERS = 2
KILLED_WORKERS = 4
PATIENCE_S = 60.0
ANN, DORA = ("ann", "flaky hello", "2"), ("dora", "slow one", "0")


def free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return int(any_port.getsockname()[1])


class Service:
    """A service that runs."""

    def __init__(self, folder: Path, way: str, workers: int) -> None:
        self.folder, self.port, self.gentle = folder, free_port(), WAYS[way][2]
        here = HERE / way
        (folder / "broker").mkdir()
        self.env = os.environ | {
            "PYTHONPATH": os.pathsep.join((str(HERE), str(here), *filter(None, sys.path))),
            "SENT": str(folder / "sent"),
            "BROKER": "filesystem://",
        }
        web = ["-m", "uvicorn", "--workers", str(workers), "--port", str(self.port), "web:app"]
        commands = [[*web, "--log-level", "warning"], *WAYS[way][1]]
        with (folder / "errors").open("ab") as errors:
            self.processes = [
                subprocess.Popen(
                    [*PYTHON, *(part.format(here=here) for part in command)],
                    cwd=folder,
                    env=self.env,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
                for command in commands
            ]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with_type = {"Content-Type": "application/json"}
        with closing(connection):
            connection.request(method, path, json.dumps(body) if body else None, with_type)
            answer = connection.getresponse()
            text = answer.read()
        assert answer.status == 200, text
        return json.loads(text)

    def plan(self, user: str, text: str, seconds: float) -> None:
        asked = {"user": user, "text": text, "seconds": seconds}
        assert self.ask("POST", "/reminders", asked) == {"user": user}

    def lines(self) -> list[tuple[str, ...]]:
        try:
            text = (self.folder / "sent").read_text()
        except FileNotFoundError:
            return []
        return [tuple(line.split("\t")) for line in text.splitlines()]

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, (self.lines(), (self.folder / "errors").read_text())
            time.sleep(0.05)

    def is_up(self) -> bool:
        with suppress(OSError, AssertionError):
            self.ask("DELETE", "/reminders/nobody")
            return True
        return False

    def stop(self) -> None:
        """Ask all processes to end; what runs may end."""
        for process, number in zip(self.processes, (signal.SIGTERM, self.gentle), strict=False):
            process.send_signal(number)

    def workers(self) -> list[int]:
        """The web workers, the one that has the store open first."""
        master = self.processes[0].pid
        pids = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        found = [int(pid) for pid in pids if b"spawn_main" in cmdline(pid)]
        holds = [pid for pid in found if "timers/lock" in open_files(pid)]
        return holds + [pid for pid in found if pid not in holds]

    def wait(self) -> None:
        for process in self.processes:
            process.wait(PATIENCE_S)


def cmdline(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def open_files(pid: int) -> str:
    found = []
    with suppress(OSError):
        found = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    return " ".join(found)


@contextmanager
def running(folder: Path, way: str, workers: int = WORKERS) -> Iterator[Service]:
    service = Service(folder, way, workers)
    try:
        yield service
    finally:
        for process in service.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def code_lines(path: Path) -> int:
    """Count lines but those of comments and docstrings."""
    text, left_out = path.read_text(), set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if ast.get_docstring(node) is not None:
                left_out |= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines = set[int]()
    for token in tokens:
        if token.type not in {*empty, tokenize.ENDMARKER}:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    return len(lines - left_out)


def test_the_readme_counts_their_lines() -> None:
    counts = [sum(map(code_lines, sorted((HERE / way).glob("*.py")))) for way in WAYS]
    compared = (ROOT / "docs/compare.md").read_text()
    assert f"| lines of code | {' | '.join(map(str, counts))} |" in compared
    assert f"one file, of {counts[-1]} lines" in compared


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_it_does_what_is_asked_of_it(tmp_path: Path) -> None:
    """All ways start at the same time, for that takes longest."""
    with ExitStack() as all_of_them:
        services = []
        for way, (needs, _, _) in WAYS.items():
            if all(find_spec(each) for each in ("uvicorn", "fastapi", *needs)):
                (tmp_path / way).mkdir()
                services.append(all_of_them.enter_context(running(tmp_path / way, way)))
        if not services:
            pytest.skip("none of what they are written with is installed")
        for service in services:
            service.until(service.is_up)
            service.plan("ann", "never", 3_600)
            service.plan("ann", "flaky hello", 0.5)  # in its place
            service.plan("bob", "never", 2)
            assert service.ask("DELETE", "/reminders/bob") == {"cancelled": True}
            assert service.ask("DELETE", "/reminders/carl") == {"cancelled": False}
        for service in services:
            service.until(lambda each=service: ("sent", *ANN) in each.lines())
            service.plan("dora", "slow one", 0)
        for service in services:
            service.until(lambda each=service: ("begun", *DORA) in each.lines())
            service.stop()
        for service in services:
            service.wait()
            assert service.lines() == [("sent", *ANN), ("begun", *DORA), ("sent", *DORA)]


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_nothing_is_lost_where_workers_are_killed(tmp_path: Path) -> None:
    if find_spec("uvicorn") is None or find_spec("fastapi") is None:
        pytest.skip("uvicorn or fastapi is not installed")
    users = [f"user{i}" for i in range(30)]
    with running(tmp_path, "after", KILLED_WORKERS) as service:
        service.until(service.is_up)
        for i, user in enumerate(users):
            service.plan(
                user, "flaky" if i % 10 == 0 else "slow" if i % 10 == 1 else "hello", i / 10
            )
        for _ in range(3):
            time.sleep(0.7)
            service.until(lambda: bool(service.workers()))  # where one died there is none at first
            workers = service.workers()
            for pid in workers[: 1 + (len(workers) > 1)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        service.until(
            lambda: {line[1] for line in service.lines() if line[0] == "sent"} == {*users}
        )
        with timerstore.connect(tmp_path / "timers") as client:  # what nine o'clock will put
            client.put(b"all", topic="daily", key="report")
        service.until(lambda: service.lines()[-1][0] == "report")
        service.stop()
        service.wait()
    with timerstore.open(tmp_path / "timers", read_only=True) as store:
        assert [timer.key for timer in store.pending()] == ["daily/report"]
