"""The FastAPI example under a real uvicorn: answers, a kill, a graceful end."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.aio.loops import LOOPS
from tests.markdown import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("uvicorn") is None,
        reason="the extra `examples` is not installed",
    ),
]


class Service:
    """A running uvicorn."""

    def __init__(self, process: subprocess.Popen[str], log: Path, told: Path) -> None:
        self.process, self.log, self.told = process, log, told
        self.url = ""
        while not self.url:
            assert process.poll() is None, log.read_text()
            found = re.search(r"running on (http://\S+)", log.read_text())
            self.url = found[1] if found else ""
            time.sleep(0.02)

    def ask(self, method: str, path: str, **content: Any) -> tuple[int, Any]:
        data = json.dumps(content).encode() if content else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as e:
            with e:
                return e.code, json.load(e)

    def post(self, text: str, seconds: float) -> str:
        at = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
        status, answer = self.ask("POST", "/reminders", user="ann", text=text, at=at)
        assert status == 201
        return str(answer["id"])

    def wait_for(self, line: str) -> None:
        while line not in self.told.read_text().splitlines():
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.01)


@contextmanager
def service(folder: Path, kind: str) -> Iterator[Service]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["REMINDERS"] = str(folder / "reminders")
    command = [sys.executable, "-P", "-m", "uvicorn", "--app-dir", str(ROOT / "examples")]
    command += ["--port", "0", "--loop", kind, "reminders_fastapi:app"]
    log, told = folder / "log", folder / "told"
    with open(log, "w") as errors, open(told, "a") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=errors, text=True
        )
    try:
        yield Service(process, log, told)
    finally:
        process.kill()
        process.wait(30)


@pytest.mark.tier("prove", but=("asyncio",))
@pytest.mark.parametrize("kind", LOOPS)
def test_reminders(tmp_path: Path, kind: str) -> None:
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    with service(tmp_path, kind) as first:
        soon, far, third = first.post("soon", 0.1), first.post("far", 3_600), first.post("x", 60)
        status, shown = first.ask("GET", f"/reminders/{far}")
        assert (status, shown["text"], shown["user"]) == (200, "far", "ann")
        assert first.ask("DELETE", f"/reminders/{third}") == (200, {"cancelled": True})
        first.wait_for("remind ann soon")
        assert first.ask("GET", f"/reminders/{soon}")[0] == 404
        assert first.ask("PUT", f"/reminders/{soon}", at=later)[0] == 409
        assert first.ask("DELETE", "/reminders/nonsense")[0] == 404
        assert first.ask("POST", "/reminders", user="ann", text="x", at="2030-01-01")[0] == 422
        assert first.ask("GET", "/health")[1] == {"ok": True, "state": "running", "pending": 1}
        first.post("after the kill", 0.3)
        first.process.kill()  # what was answered is durable
    with service(tmp_path, kind) as second:
        second.wait_for("remind ann after the kill")
        status, moved = second.ask("PUT", f"/reminders/{far}", at=later)
        assert status == 200 and second.ask("GET", f"/reminders/{moved['id']}")[0] == 200
        second.process.send_signal(signal.SIGTERM)
        second.process.wait(30)
        assert "Application shutdown complete" in second.log.read_text()
    assert not tmp_path.joinpath("reminders", "abort").exists()  # it was closed
