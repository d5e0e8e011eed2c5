"""What is kept of a task, as JSON: which one it is, its arguments, what became of it.

It is the body of two messages: of the task, and of its result. What is read is not trusted. A name
stands for a task only if the program has imported that module by itself, and what it finds there is
a task of Django's: a message has nothing imported, and nothing else called.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

from timerstore.django import djangotasks as tasks
from timerstore.django.djangotasks import InvalidTask, Status, Task, TaskError, TaskResult
from timerstore.errors import InvalidArgumentError
from timerstore.timelog.bytes.format import MESSAGE_BYTES_MAX
from timerstore.values.puts import json_body

_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 4_096
"""A message has a key as well."""
_TIMES: Final = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")


def task_named(name: str) -> Task:
    """Return the task of a module that the program has imported, or raise InvalidTask."""
    module_name, _, task_name = name.rpartition(".")
    module = sys.modules.get(module_name)
    found = None if module is None else vars(module).get(task_name)
    if isinstance(found, Task) and found.module_path == name:
        return found
    raise InvalidTask(
        f"{name} is no task that this program knows. Let a task have its function's name, and keep "
        "that for as long as tasks of it wait; have a tasks.py of an app import its module."
    )


def as_kept(value: object) -> Any:
    """Return a value as it is once it was kept: a key is a text. Raises TypeError, ValueError."""
    return json.loads(json_body(tasks.normalize_json(value)))


def encoded(result: TaskResult, bytes_max: int = _BYTES_MAX) -> bytes:
    """Return a result as JSON; raise InvalidArgumentError for a value that is none, or too long."""
    task = result.task
    body = json_body(
        {
            "task": task.module_path,
            "queue": task.queue_name,
            "run_after": task.run_after and task.run_after.isoformat(),
            "args": result.args,
            "kwargs": result.kwargs,
            "status": result.status.value,
            "value": result._return_value,
            "errors": [[each.exception_class_path, each.traceback] for each in result.errors],
            "workers": result.worker_ids,
            **{name: at and at.isoformat() for name in _TIMES for at in [getattr(result, name)]},
        }
    )
    if len(body) > bytes_max:
        raise InvalidArgumentError(
            f"With its arguments and what it returned, the task takes {len(body)} bytes as JSON. "
            f"Use {bytes_max} at most: keep what is large elsewhere, and pass where."
        )
    return body


def decoded(backend: str, id: str, body: bytes) -> TaskResult:
    """Return the result that was kept, for the backend of that name.

    Raises ValueError if the bytes are none, InvalidTask if the task is not there.
    """
    try:
        told = json.loads(body)
        known: dict[str, Any] = {name: _moment(told[name]) for name in _TIMES}
        known |= {"args": [*told["args"]], "kwargs": {**told["kwargs"]}}
        known["status"] = Status(told["status"])
        known["worker_ids"] = [str(each) for each in told["workers"]]
        known["errors"] = [
            TaskError(exception_class_path=str(kind), traceback=str(trace))
            for kind, trace in told["errors"]
        ]
        name, queue, run_after = str(told["task"]), str(told["queue"]), _moment(told["run_after"])
        value = told["value"]
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise ValueError(f"The message with the key {id!r} is no task: {e!r}") from e
    declared = task_named(name)
    own = {"queue_name": queue, "backend": backend, "run_after": run_after, "priority": 0}
    task = object.__new__(type(declared))
    for each in fields(declared):  # `using` would refuse what has been enqueued already
        object.__setattr__(task, each.name, own.get(each.name, getattr(declared, each.name)))
    return returning(TaskResult(task=task, id=id, backend=backend, **known), value)


def returning(result: TaskResult, value: object) -> TaskResult:
    """Return a result with what the task returned, which Django lets nobody pass."""
    object.__setattr__(result, "_return_value", value)
    return result


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
