"""`manage.py timerstore_worker` runs tasks: the handlers of a consumer.

The result says how far a task came: what has ended does not run again, if a kill came before its
message was acknowledged. A task that raises has failed, as with Django's own backends. What cannot
be run, because its name is gone, comes again later, and is a dead letter in the end.

If the process ends that owns the store, the next owner hands out again what other workers run. So
what a process that lives runs is put off, until it has ended or its time is up. A worker's name
says which process of which machine it is, and when that began; each knows what it runs itself.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import traceback
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections
from django.utils import timezone, translation

from timerstore.calls.consuming.delivery import Delivery, said_by
from timerstore.consumer.consumer import Consumer
from timerstore.django import djangotasks as tasks
from timerstore.django.backend import QUEUE, RESULTS, TimerStoreBackend, epoch_ms
from timerstore.django.djangotasks import Status, TaskError, TaskResultDoesNotExist
from timerstore.django.record import as_kept, decoded, encoded, returning
from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.timelog.files.smallfile import read_head

BEGINS_MAX: Final = 16
"""So often a task may begin: one that kills its worker each time would end all of them for ever."""
WAITS_S: Final = (30, 60, 120, 300, 600, 1_800, 3_600)
"""How long what cannot be run waits each time; what is put off waits for the first of them."""
COMES_MAX: Final = 41
"""Retries of what cannot be run: a day and a half."""
_TRACEBACK_LENGTH_MAX: Final = 20_000
_running: Final[list[str]] = []
"""Tasks that this process runs now; one is in it twice if it runs beside itself."""
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
        add("--timeout", type=float, default=86_400.0, help="a task starts again each time (a day)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run, and exit with a consumer's status."""
        name, known_backends = options["backend"], tasks.task_backends
        if name not in known_backends or not isinstance(
            backend := known_backends[name], TimerStoreBackend
        ):
            raise CommandError(f"TASKS has no backend of timerstore that is named {name}.")
        queues, known = sorted(options["queues"] or backend.queues), sorted(backend.queues)
        if unknown := set(queues).difference(known):
            raise CommandError(f"QUEUES has no {', '.join(unknown)}. It has {', '.join(known)}.")
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

    def run(d: Delivery) -> None:
        close_old_connections()  # as before and after a request
        translation.deactivate()
        timezone.deactivate()
        try:
            _run(backend, timeout_s, d, lambda: consumer.error is None)
        finally:
            close_old_connections()

    settings: Any = {"threads": threads, "timeout": timeout_s, "pull_count": 1}
    settings |= {"backoff": WAITS_S, "max_attempts": COMES_MAX}
    consumer = Consumer(backend.store, "django-worker", **settings)
    for queue in queues:
        consumer.subscribe(QUEUE + queue, run)
    consumer.subscribe(RESULTS, lambda d: None)
    return consumer


def _run(
    backend: TimerStoreBackend, timeout_s: float, d: Delivery, goes_on: Callable[[], bool]
) -> None:
    id, now = d.key or "", timezone.now()
    kept = backend.store.get_key(RESULTS, id)
    result = decoded(backend.alias, id, d.body if kept is None else kept.body)
    if result.is_finished:
        return
    if result.status == Status.RUNNING and _is_run_by(last := result.worker_ids[-1], id):
        if epoch_ms(now) - epoch_ms(result.last_attempted_at) < timeout_s * 1000:
            wait = min(timedelta(seconds=WAITS_S[0]), backend.settings[1] / 2)
            d.ack_and_put(d.body, key=id, properties=d.properties, delay=wait)
            log.info("The task %s is put off for %s: It runs in the worker %s.", id, wait, last)
            return
    workers = [*result.worker_ids, _name(str(os.getpid())) or socket.gethostname()[:60]]
    times = {"started_at": result.started_at or now, "last_attempted_at": now}
    run = replace(result, status=Status.RUNNING, worker_ids=workers, **times)
    try:
        _running.append(id)
        backend.keep(run, timedelta(seconds=timeout_s))
        _call(backend, run, goes_on)
    finally:
        with suppress(ValueError):
            _running.remove(id)


def _call(backend: TimerStoreBackend, run: tasks.TaskResult, goes_on: Callable[[], bool]) -> None:
    """Call a task, and keep how it ended; it may change all that it is given, which is a copy."""
    given = decoded(backend.alias, run.id, encoded(run))
    task, args = run.task, [tasks.TaskContext(task_result=given)] if run.task.takes_context else []
    try:
        tasks.signals.task_started.send_robust(type(backend), task_result=given)
        if run.attempts > BEGINS_MAX:
            raise RuntimeError(f"It began {BEGINS_MAX} times, and its worker ended each time.")
        value = as_kept(task.call(*args, *given.args, **given.kwargs))
        good = replace(run, status=Status.SUCCESSFUL, finished_at=timezone.now())
        encoded(returning(good, value))  # what is too large is an error of the task
    except BaseException as e:
        errors = [*run.errors, _error_of(e)]
        bad = replace(run, status=Status.FAILED, finished_at=timezone.now(), errors=errors)
        _end(backend, bad, goes_on)  # here: Django logs the error
    else:
        _end(backend, good, goes_on)


def _end(backend: TimerStoreBackend, ended: tasks.TaskResult, goes_on: Callable[[], bool]) -> None:
    """Keep how a task ended, unless another run of it ended before; wait for the store."""
    while True:
        try:
            with suppress(TaskResultDoesNotExist):
                found = backend.get_result(ended.id)
                if found.is_finished and encoded(found) != encoded(ended):
                    return
            backend.keep(ended)
            break
        except TimerStoreError as e:
            if isinstance(e, InvalidArgumentError) or not goes_on():
                raise
            log.warning("The result of task %s waits for the store: %s", ended.id, e)
            time.sleep(1)
    tasks.signals.task_finished.send_robust(type(backend), task_result=ended)


def _error_of(error: BaseException) -> TaskError:
    """Return what an error says, which it may fail to say."""
    path = f"{type(error).__module__}.{type(error).__qualname__}"
    text = said_by(error, lambda e: "".join(traceback.format_exception(e))) or path
    trace = text[-_TRACEBACK_LENGTH_MAX:].encode(errors="backslashreplace").decode()
    return TaskError(exception_class_path=path, traceback=trace)


def _is_run_by(worker: str, id: str) -> bool:
    """Tell whether a worker of this machine runs a task now."""
    alive = _name(worker.split("-")[-2:][0])
    return worker == alive and (alive != _name(str(os.getpid())) or id in _running)


def _name(pid: str) -> str | None:
    """Return the name of a worker of this machine; None if there is no such process any more."""
    with suppress(TimerStoreError, ValueError):
        stat = read_head(Path(f"/proc/{int(pid)}/stat"), 4_096).rpartition(b")")[2].split()
        began = stat[19].decode()
        return None if stat[0] == b"Z" else f"{socket.gethostname()[:30]}-{pid}-{began}"
    return None
