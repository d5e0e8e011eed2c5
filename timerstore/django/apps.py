"""The app: `manage.py` finds the worker's command, each process all tasks; it has no models."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class TimerStoreConfig(AppConfig):
    """Named like the package: `django` alone might be the label of another app."""

    name, label = "timerstore.django", "timerstore"

    def ready(self) -> None:
        """Import the modules named tasks of all apps, so that a message needs nothing imported."""
        autodiscover_modules("tasks")
