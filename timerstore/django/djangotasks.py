"""The names of `django.tasks`, which Django has from version 6 on, or of the package django-tasks.

Both have the same classes. Only one error has another name in the package.
"""

from __future__ import annotations

try:
    from django.tasks import base, exceptions, signals, task, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.exceptions import InvalidTask
    from django.utils.json import normalize_json
except ModuleNotFoundError:
    try:
        from django_tasks import base, exceptions, signals, task, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.utils import normalize_json
    except ModuleNotFoundError as e:
        raise ImportError(
            "timerstore.django needs Django 6, or Django 5.2 with the package django-tasks. "
            "Run: pip install 'timerstore[django]'; with Django 5.2: pip install django-tasks"
        ) from e

Task, TaskContext, TaskError = base.Task, base.TaskContext, base.TaskError
TaskResult, Status = base.TaskResult, base.TaskResultStatus
TaskResultDoesNotExist = exceptions.TaskResultDoesNotExist
__all__ = ["BaseTaskBackend", "InvalidTask", "Status", "Task", "TaskContext", "TaskError"]
__all__ += ["TaskResult", "TaskResultDoesNotExist", "normalize_json", "signals", "task"]
__all__ += ["task_backends"]
