"""The backend: its settings, enqueuing, results.

A task is a message of its queue's topic, due at its `run_after`. Its result is a timer of the topic
`django-result`, with the task's id as its key: `get_key` finds it in O(1), `replace` changes it in
one step over crashes, backups have it. Its time is when it is to be forgotten; a worker drops what
has fired. So nothing lies beside the store, and nobody sweeps. The result is put before the task,
for a fast worker has to find it: a crash between the two leaves a result whose id nobody was told.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from django.core import checks
from django.utils import timezone
from django.utils.crypto import get_random_string

from timerstore.django import djangotasks as tasks
from timerstore.django.djangotasks import InvalidTask, Task, TaskResult, TaskResultDoesNotExist
from timerstore.django.record import as_kept, decoded, encoded, task_named
from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.jit.guards import Lock
from timerstore.share.opening import open
from timerstore.share.shared import SharedStore
from timerstore.values.check_arguments import check_topic, given_instant
from timerstore.values.config import Config
from timerstore.values.kinds import check_duration, check_kind, check_path

QUEUE: Final = "django-task-"
RESULTS: Final = "django-result"
_NOT_BEGUN: Final = dict.fromkeys(("started_at", "finished_at", "last_attempted_at"))
_OPTIONS: Final = {"path": None, "keep_results": timedelta(days=1), "config": None}
_BODY_BYTES_MAX: Final = 1 << 20
"""A message has 4 MiB: so the result has room for what is returned, or for an error."""
_KEEP_MAX: Final = timedelta(days=36_500)
_UNFINISHED: Final = timedelta(days=1)
"""The result of a task that has not ended is kept for so much longer."""
_stores: Final[dict[Path, tuple[SharedStore, int]]] = {}
_opening: Final = Lock()


class TimerStoreBackend(tasks.BaseTaskBackend):
    """Keeps tasks in the store at `OPTIONS["path"]`, until `manage.py timerstore_worker` runs them.

    `OPTIONS` may have `keep_results`, how long a result is kept after its task has ended (a
    timedelta; a day), and `config`, the store's settings, a `timerstore.Config`. Name all queues in
    `QUEUES`; docs/howto/django.md has an example.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._queues = params.get("QUEUES")

    @cached_property
    def settings(self) -> tuple[Path, timedelta, Config | None]:
        """What `OPTIONS` says, in that order. Raises InvalidArgumentError if it is wrong."""
        check_kind(self.options, dict, "OPTIONS")
        if unknown := sorted(map(str, self.options.keys() - _OPTIONS)):
            raise InvalidArgumentError(f"OPTIONS has {unknown}. It may have {list(_OPTIONS)}.")
        if isinstance(self._queues, str):
            raise InvalidArgumentError(f"QUEUES is {self._queues!r}. Use [{self._queues!r}].")
        path, keep, config = (_OPTIONS | self.options).values()
        if path is None:
            raise InvalidArgumentError("OPTIONS has no path. Add \"path\": BASE_DIR / 'timers'.")
        path, keep = check_path(path), check_duration(keep, "keep_results")
        if not path.is_absolute():
            raise InvalidArgumentError(f"path is {str(path)!r}. Name the whole path, from / on.")
        if not timedelta(0) < keep <= _KEEP_MAX:
            raise InvalidArgumentError(
                f"keep_results is {keep}. Use a day, say; at most {_KEEP_MAX}."
            )
        if config is not None:
            check_kind(config, Config, "config")
        if not self.queues:
            raise InvalidArgumentError("QUEUES is empty. Name each queue, or leave it out.")
        for queue in self.queues:
            check_kind(queue, str, "A queue")
            check_topic(QUEUE + queue, "The topic of a queue")
        path = path.resolve()
        for alias, params in tasks.task_backends.settings.items():
            other = str((params.get("OPTIONS") or {}).get("path"))
            if alias != self.alias and Path(other).resolve() == path:
                raise InvalidArgumentError(
                    f"path is {str(path)!r}, and TASKS[{alias!r}] has it too. Have one of them."
                )
        return path, keep, config

    @property
    def store(self) -> SharedStore:
        """The store; the process opens it when it first needs it, and closes it at its end."""
        path, _, config = self.settings
        with _opening.guard():
            store, inode = _stores.get(path, (None, 0))
            if store is not None:
                if inode == _inode(path):
                    return store
                with suppress(TimerStoreError, OSError):  # its folder is gone, so it has stopped
                    store.close()
            store = open(path, share=True, config=config)
            _stores[path] = store, _inode(path)
            atexit.register(store.close)
            return store

    def check(self, **kwargs: Any) -> Iterator[checks.CheckMessage]:
        """Yield what is wrong with the settings, for `manage.py check`."""
        try:
            _ = self.settings
        except InvalidArgumentError as e:
            yield checks.Error(f"TASKS[{self.alias!r}]: {e}", id="timerstore.E001")

    def validate_task(self, task: Task) -> None:
        """Raise InvalidTask if the task cannot be enqueued as it is: it has a priority, say."""
        if task.priority:
            raise InvalidTask(
                f"priority is {task.priority}, and timerstore has none. Give what is urgent a "
                "queue and a worker of its own: manage.py timerstore_worker --queue NAME."
            )
        if self.queues and task.queue_name not in self.queues:
            queue, known = task.queue_name, sorted(self.queues)
            raise InvalidTask(f"queue_name is {queue!r}. Use one of QUEUES, which has {known}.")
        super().validate_task(task)

    def enqueue(
        self, task: Task, args: Any, kwargs: Any, *, put: Callable[..., object] | None = None
    ) -> TaskResult:
        """Enqueue a task, as `task.enqueue` does.

        On return it is durable as `Config.durability` says: it will run at least once. Two puts.
        Raises InvalidTask, and what `put` raises. `put`: of an outbox, say, instead of the store's;
        it is called with a body, `topic`, `key` and `at_ms`, and says what is durable.
        """
        put = put or self.store.put
        self.validate_task(task)
        task_named(task.module_path)  # as a worker will look for it
        known = {"args": as_kept(args), "kwargs": as_kept(kwargs), "errors": [], "worker_ids": []}
        known |= {"status": tasks.Status.READY, "enqueued_at": timezone.now(), **_NOT_BEGUN}
        result = TaskResult(task=task, id=get_random_string(32), backend=self.alias, **known)
        keep_ms = (self.settings[1] + _UNFINISHED) // timedelta(milliseconds=1)
        body = encoded(result, _BODY_BYTES_MAX)
        now_ms = epoch_ms(result.enqueued_at)
        due_ms = now_ms if task.run_after is None else epoch_ms(task.run_after)
        put(body, topic=RESULTS, key=result.id, at_ms=max(now_ms, due_ms) + keep_ms)
        put(body, topic=QUEUE + task.queue_name, key=result.id, at_ms=due_ms)
        tasks.signals.task_enqueued.send_robust(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """Return what is known of a task. O(1). Raises TaskResultDoesNotExist."""
        store = self.store
        try:
            if timer := store.get_key(RESULTS, result_id):
                return decoded(self.alias, result_id, timer.body)
        except (InvalidArgumentError, ValueError, InvalidTask) as e:
            raise TaskResultDoesNotExist(f"{result_id}: {e}") from e
        raise TaskResultDoesNotExist(result_id)

    def keep(self, result: TaskResult, runs_for: timedelta = timedelta(0)) -> None:
        """Put a result in the place of what was kept of it; a worker calls this."""
        more = timedelta(0) if result.is_finished else _UNFINISHED + runs_for
        body, delay = encoded(result), self.settings[1] + more
        self.store.put(body, topic=RESULTS, key=result.id, delay=delay, replace=True)


def _inode(path: Path) -> int:
    return path.stat().st_ino if path.exists() else 0


def epoch_ms(moment: datetime) -> int:
    """Return an instant in epoch ms; without a zone it is in that of the settings."""
    return given_instant(moment if moment.tzinfo else moment.astimezone(), None, "run_after") or 0
