"""`manage.py timerstore_worker` runs tasks: the handlers of a consumer.

The result says how far a task came: what has ended does not run again, if a kill came before its
message was acknowledged. A task that raises has failed, as with Django's own backends. What cannot
be run, because its name is gone, comes again later, and is a dead letter in the end.

If the process ends that owns the store, the next owner hands out again what other workers run. So
what runs in a process that lives is put off, until it has ended or its time is up. A worker's name
says which process of which machine it is, and when that began.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import traceback
from argparse import ArgumentParser
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from timerstore.calls.consuming.delivery import Delivery
from timerstore.consumer.consumer import Consumer
from timerstore.consumer.consumersettings import Retry
from timerstore.django import djangotasks as tasks
from timerstore.django.backend import QUEUE, RESULTS, TimerStoreBackend
from timerstore.django.djangotasks import Status, TaskError
from timerstore.django.record import decoded, returning
from timerstore.errors import StoreFullError, TimerStoreError

BEGINS_MAX: Final = 16
"""So often a task may begin: one that kills its worker each time would end all of them for ever."""
_COMES_MAX: Final = 32
"""Retries of what cannot be run, or is put off: a day and a half with the usual delay levels."""
_TRACEBACK_LENGTH_MAX: Final = 20_000
log = logging.getLogger("timerstore")


class Command(BaseCommand):
    """Its options are what `--help` shows."""

    help = "Runs tasks until SIGTERM or Ctrl-C, then waits for those that run. Start several."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Say which options there are."""
        add = parser.add_argument
        add("--backend", default="default", help="its name in TASKS")
        add("--queue", action="append", dest="queues", help="again for another one; else all")
        add("--threads", type=int, default=4, help="how many tasks at the same time (4)")
        add("--timeout", type=float, default=86_400.0, help="then a task starts once more (a day)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run, and exit with a consumer's status."""
        backend = tasks.task_backends[options["backend"]]
        if not isinstance(backend, TimerStoreBackend):
            raise CommandError("--backend names no backend of timerstore.")
        queues, known = sorted(options["queues"] or backend.queues), sorted(backend.queues)
        if unknown := set(queues).difference(known):
            raise CommandError(f"QUEUES has no {', '.join(unknown)}. It has {', '.join(known)}.")
        autodiscover_modules("tasks")
        try:
            consumer = consumer_of(backend, queues, options["threads"], options["timeout"])
            self.stdout.write(f"Runs tasks of {', '.join(queues)}")
            sys.exit(consumer.run())
        except TimerStoreError as e:
            raise CommandError(str(e)) from e


def consumer_of(
    backend: TimerStoreBackend, queues: Iterable[str], threads: int, timeout_s: float
) -> Consumer:
    """Return a consumer that runs the tasks of some queues, and drops results in time."""

    def run(d: Delivery) -> Retry | None:
        close_old_connections()  # as before and after a request
        try:
            return _run(backend, timeout_s, d)
        finally:
            close_old_connections()

    settings: Any = {"threads": threads, "timeout": timeout_s, "max_attempts": _COMES_MAX}
    consumer = Consumer(backend.store, "django-worker", pull_count=1, **settings)
    for queue in queues:
        consumer.subscribe(QUEUE + queue, run)
    consumer.subscribe(RESULTS, lambda d: None)
    return consumer


def _run(backend: TimerStoreBackend, timeout_s: float, d: Delivery) -> Retry | None:
    id, now = d.key or "", timezone.now()
    kept = backend.store.get_key(RESULTS, id)
    result = decoded(backend.alias, id, d.body if kept is None else kept.body)
    if result.is_finished:
        return None
    last = result.worker_ids[-1] if result.worker_ids else ""
    runs = result.status == Status.RUNNING and last == _name(last.split("-")[-2:][0])
    if runs and now - result.last_attempted_at < timedelta(seconds=timeout_s):
        return Retry(reason=f"It runs in the worker {last}.")
    workers = [*result.worker_ids, _name(str(os.getpid())) or socket.gethostname()[:60]]
    times = {"started_at": result.started_at or now, "last_attempted_at": now}
    result = replace(result, status=Status.RUNNING, worker_ids=workers, **times)
    backend.keep(result)
    tasks.signals.task_started.send_robust(type(backend), task_result=result)
    task, args = result.task, list(result.args)
    if task.takes_context:
        args.insert(0, tasks.TaskContext(task_result=result))
    try:
        if result.attempts > BEGINS_MAX:
            raise RuntimeError(f"It began {BEGINS_MAX} times, and its worker ended each time.")
        value = tasks.normalize_json(task.call(*args, **result.kwargs))
        _end(backend, result, value, status=Status.SUCCESSFUL)
    except BaseException as e:
        path, text = f"{type(e).__module__}.{type(e).__qualname__}", traceback.format_exception(e)
        trace = "".join(text)[-_TRACEBACK_LENGTH_MAX:].encode(errors="backslashreplace").decode()
        errors = [*result.errors, TaskError(exception_class_path=path, traceback=trace)]
        _end(backend, result, None, status=Status.FAILED, errors=errors)  # here: it logs the error
    return None


def _end(backend: TimerStoreBackend, run: tasks.TaskResult, value: object, **fields: Any) -> None:
    result = returning(replace(run, finished_at=timezone.now(), **fields), value)
    while True:
        try:
            backend.keep(result)
            break
        except StoreFullError as e:
            log.warning("The result of task %s waits for room: %s", result.id, e)
            time.sleep(1)
    tasks.signals.task_finished.send_robust(type(backend), task_result=result)


def _name(pid: str) -> str | None:
    """Return the name of a worker of this machine; None if there is no such process any more."""
    with suppress(OSError, ValueError):
        stat = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()
        return None if stat[0] == "Z" else f"{socket.gethostname()[:30]}-{pid}-{stat[19]}"
    return None
