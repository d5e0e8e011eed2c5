"""`manage.py timerstore_worker` runs tasks until SIGTERM or SIGINT comes."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from timerstore.django.backend import TimerStoreBackend
from timerstore.django.djangotasks import task_backends
from timerstore.django.worker import consumer_of
from timerstore.errors import TimerStoreError


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
        alias = options["backend"]
        try:
            backend = task_backends[alias]
            if not isinstance(backend, TimerStoreBackend):
                raise CommandError(f"TASKS[{alias!r}] is no backend of timerstore. Pass --backend.")
            queues = sorted(options["queues"] or backend.queues)
            if unknown := set(queues) - backend.queues:
                known = ", ".join(sorted(backend.queues))
                raise CommandError(f"QUEUES has no {', '.join(sorted(unknown))}. It has {known}.")
            consumer = consumer_of(backend, queues, options["threads"], options["timeout"])
            self.stdout.write(f"Runs tasks of {', '.join(queues)}")
            sys.exit(consumer.run())
        except TimerStoreError as e:
            raise CommandError(str(e)) from e
