"""The Django project of `django_shop/` with data of its own: its workers, its web server."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.rigs.program import FILES, python
from tests.rigs.waiting import wait_until
from tests.rigs.warm import Warm

PROJECT = FILES / "tests" / "rigs" / "django_shop"
_SETUP = """
import django
django.setup()
import asyncio, json, os, sys, time
from datetime import UTC, datetime, timedelta
from django.db import connection, transaction
from shop.models import Ran
from shop.tasks import *
from timerstore.django import TimerStoreBackend, djangotasks, record
from timerstore.django.djangotasks import *
from timerstore.django.management.commands.timerstore_worker import consumer_of
backend = task_backends["default"]
def ended(*results):
    while not all(each.is_finished for each in results):
        time.sleep(0.01)
        [each.refresh() for each in results]
    return results
"""
_TABLES = """
from django.core.management import call_command
call_command("migrate", run_syncdb=True, verbosity=0)
"""


class Shop:
    """A project in a folder; all its processes end with the `with` block."""

    def __init__(self, folder: Path, **more: str) -> None:
        given = {"SHOP": str(folder), "DJANGO_SETTINGS_MODULE": "shop.settings", **more}
        self.environment = {**os.environ, "PYTHONPATH": str(PROJECT), **given}
        self._folder, self._processes = folder, list[subprocess.Popen[bytes]]()

    def __enter__(self) -> Self:
        """Make the tables."""
        self.run(_TABLES)
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._processes:
            end(each)

    def run(self, code: str, **more: str) -> Any:
        """Run Python in a process of the project; return what it printed last, read as JSON."""
        told = python(
            *("-W", "error", "-c", _SETUP + code),
            env=self.environment,
            timeout_s=120,
            popen=Warm,
            **more,
        )
        return json.loads(told.splitlines()[-1]) if told.strip() else None

    def manage(self, *arguments: str, **more: str) -> "subprocess.Popen[bytes]":
        """Start a command of manage.py; what it prints is in `log`."""
        with self.log.open("ab") as log:
            process = Warm(
                [sys.executable, "-P", PROJECT / "manage.py", *arguments],
                env=self.environment | more,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def worker(self, *arguments: str, **more: str) -> "subprocess.Popen[bytes]":
        """Start a worker."""
        return self.manage("timerstore_worker", *arguments, **more)

    def web(self) -> "Web":
        """Start a web server; return once it answers."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = self.manage("runserver", "--noreload", f"127.0.0.1:{port}")
        return Web(server, port)

    @property
    def log(self) -> Path:
        """What all processes printed."""
        return self._folder / "log"


class Web:
    """A web server of the project."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.process, self._port = process, port
        wait_until(lambda: self.ask("/") is not None)

    def ask(self, path: str) -> str | None:
        """Return what a page says; None if nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        with suppress(OSError, http.client.HTTPException):
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status in (200, 404), text
            return text
        connection.close()
        return None


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill it."""
    process.kill()
    process.wait(60)


def stop(process: "subprocess.Popen[bytes]") -> int:
    """Ask it to end; return its status."""
    process.send_signal(signal.SIGTERM)
    return process.wait(60)
