"""Runs tasks: the handlers of a consumer.

What is kept of a task says how far it came: a task that has ended does not run again, if a kill
came before its message was acknowledged. A task that raises has failed, and is not tried again, as
with Django's own backends. What cannot be run, because its name is gone, comes again later, and is
a dead letter in the end.

If the process ends that owns the store, the next owner hands out again what other workers are
running. So a task that runs in a process that lives is put off, until it has ended or its time is
up. A worker's name says which process of which machine it is, and when that began.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from django.db import close_old_connections
from django.utils import timezone

from timerstore.calls.consuming.delivery import Delivery
from timerstore.consumer.consumer import Consumer
from timerstore.consumer.consumersettings import Retry
from timerstore.django import djangotasks as tasks
from timerstore.django.backend import RESULTS, TimerStoreBackend, topic_of
from timerstore.django.record import VALUE_BYTES_MAX, change, check_size, decoded
from timerstore.errors import StoreFullError
from timerstore.values.kinds import Duration, check_duration

GROUP: Final = "django-worker"
ATTEMPTS_MAX: Final = 16
"""So often a task may begin: one that kills its worker each time would end all of them for ever."""
_COMES_MAX: Final = 32
"""Retries of what cannot be run, or is put off: a day and a half with the usual delay levels."""
_TRACEBACK_LENGTH_MAX: Final = 20_000
AGAIN_S: Final = 1.0
log = logging.getLogger("timerstore")


def consumer_of(
    backend: TimerStoreBackend, queues: Iterable[str], threads: int, timeout: Duration
) -> Consumer:
    """Return a consumer that runs the tasks of some queues, and drops results in time."""
    length = check_duration(timeout, "timeout")

    def run(d: Delivery) -> Retry | None:
        close_old_connections()  # as before and after a request
        try:
            return _run(backend, length, d)
        finally:
            close_old_connections()

    settings: Any = {"threads": threads, "timeout": length, "max_attempts": _COMES_MAX}
    consumer = Consumer(backend.store, GROUP, pull_count=1, **settings)
    for queue in queues:
        consumer.subscribe(topic_of(queue), run)
    consumer.subscribe(RESULTS, lambda d: None)
    return consumer


def _run(backend: TimerStoreBackend, timeout: timedelta, d: Delivery) -> Retry | None:
    id = d.key or ""
    kept = backend.store.get_key(RESULTS, id)
    result = decoded(backend.alias, id, d.body if kept is None else kept.body)
    if result.is_finished:
        return None
    now = timezone.now()
    if result.status == tasks.Status.RUNNING and now - result.last_attempted_at < timeout:
        last = result.worker_ids[-1] if result.worker_ids else ""
        if last == _name(last.split("-")[-2:][0]):
            return Retry(reason=f"It runs in the worker {last}.")
    change(result, status=tasks.Status.RUNNING, last_attempted_at=now)
    change(result, started_at=result.started_at or now)
    result.worker_ids.append(_name(str(os.getpid())) or socket.gethostname()[:60])
    backend.keep(result)
    tasks.signals.task_started.send_robust(type(backend), task_result=result)
    task, args = result.task, list(result.args)
    if task.takes_context:
        args.insert(0, tasks.TaskContext(task_result=result))
    try:
        if result.attempts > ATTEMPTS_MAX:
            raise RuntimeError(f"It began {ATTEMPTS_MAX} times, and its worker ended each time.")
        value = tasks.normalize_json(task.call(*args, **result.kwargs))
        check_size(value, VALUE_BYTES_MAX, "What it returned")
    except BaseException as e:
        path, text = f"{type(e).__module__}.{type(e).__qualname__}", traceback.format_exception(e)
        trace = "".join(text)[-_TRACEBACK_LENGTH_MAX:].encode(errors="backslashreplace").decode()
        result.errors.append(tasks.TaskError(exception_class_path=path, traceback=trace))
        _end(backend, result, status=tasks.Status.FAILED)  # here, so that the log has the error
    else:
        _end(backend, result, status=tasks.Status.SUCCESSFUL, _return_value=value)
    return None


def _end(backend: TimerStoreBackend, result: tasks.TaskResult, **fields: object) -> None:
    change(result, finished_at=timezone.now(), **fields)
    while True:
        try:
            backend.keep(result)
            break
        except StoreFullError as e:
            log.warning("The result of task %s waits for room: %s", result.id, e)
            time.sleep(AGAIN_S)
    tasks.signals.task_finished.send_robust(type(backend), task_result=result)


def _name(pid: str) -> str | None:
    """Return the name of a worker of this machine; None if there is no such process any more."""
    with suppress(OSError, ValueError):
        stat = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()
        return None if stat[0] == "Z" else f"{socket.gethostname()[:30]}-{pid}-{stat[19]}"
    return None
