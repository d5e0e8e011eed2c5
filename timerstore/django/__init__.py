"""A backend for Django's tasks: they are timers, and so are their results; the extra `django`.

    apps.py         the app, which gives `manage.py` the command `timerstore_worker`
    backend.py      the backend: its settings, enqueuing, results
    djangotasks.py  the names of Django's tasks, wherever they live
    record.py       what is kept of a task, as JSON
    management/     the command, which runs tasks

It is above the store and uses only public calls. The store is shared: each process that enqueues,
or works, opens it with `share=True` when it first needs it.
"""

# It says what to install, so it comes first.
from timerstore.django.djangotasks import task as task  # isort: split

from timerstore.django.backend import TimerStoreBackend

__all__ = ["TimerStoreBackend"]
