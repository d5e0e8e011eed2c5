"""The app, so that `manage.py` finds the worker's command; it has no models."""

from __future__ import annotations

from django.apps import AppConfig


class TimerStoreConfig(AppConfig):
    """Named like the package: `django` alone might be the label of another app."""

    name, label = "timerstore.django", "timerstore"
