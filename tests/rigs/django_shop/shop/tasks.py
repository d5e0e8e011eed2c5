"""The tasks."""

import asyncio
import os
import time
from typing import Any

from django.utils import timezone, translation

from shop.models import Ran
from timerstore.django import task
from timerstore.django.management.commands import timerstore_worker


@task
def note(what: str, seconds: float = 0) -> str:
    """Note in the database that it ran."""
    time.sleep(seconds)
    Ran.objects.create(what=what)
    return f"noted {what}"


@task(queue_name="mail")
async def later(what: str) -> list[str]:
    await asyncio.sleep(0)
    return [what]


@task(takes_context=True)
def tell(context: Any, *, wait: str = "") -> dict[str, Any]:
    """Say which attempt it is; wait for a file if it is the first one."""
    while wait and context.attempt == 1 and not os.path.exists(wait):
        time.sleep(0.05)
    return {"attempt": context.attempt, "id": context.task_result.id, "pid": os.getpid()}


@task(takes_context=True)
def change(context: Any, rows: list[Any], how: str = "") -> int:
    """Change all that it is given."""
    for each in (rows, context.task_result.args, context.task_result.worker_ids):
        each.append(object())
    context.task_result.kwargs["how"] = object()
    if how:
        raise ValueError(how)
    return len(rows)


@task(takes_context=True)
def slow_at_first(context: Any) -> int:
    """Take 4 s the first time."""
    time.sleep(4 if context.attempt == 1 else 0)
    return int(context.attempt)


@task
def speak(language: str) -> list[str]:
    """Say which language and zone there are, and take others."""
    before = [translation.get_language(), timezone.get_current_timezone_name()]
    translation.activate(language)
    timezone.activate("Europe/Paris")
    return before


class Odd(BaseException):
    """An error that is no Exception."""


class Mute(Odd):
    """An error that ends whoever asks what it says."""

    @property
    def __notes__(self) -> Any:
        raise SystemExit(2)


@task
def fail(how: str) -> Any:
    """Do what a task should not do."""
    if how == "raise":
        raise ValueError("no such user")
    if how == "exit":
        raise SystemExit(3)
    if how == "mute":
        raise Mute
    if how == "kill":
        os.kill(os.getpid(), 9)
    if how == "unprintable":
        raise Odd("\ud800" * 30_000)
    values = {"bytes": b"\xff", "object": object(), "large": "x" * 4_200_000}
    return {**values, "nan": float("nan"), "surrogate": "\ud800"}[how]


no_task = len

if gone := os.environ.get("SHOP_WITHOUT"):
    del globals()[gone]
timerstore_worker.WAITS_S = (1,)
if attempts := os.environ.get("SHOP_ATTEMPTS"):
    timerstore_worker.BEGINS_MAX = int(attempts)
