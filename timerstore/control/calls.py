"""What can be asked of an open store from outside, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import wraps
from typing import Any

from timerstore.errors import InvalidArgumentError

Call = Callable[..., Any]

NAMES = (
    *("put", "cancel", "cancel_many", "reschedule", "get", "find", "count", "horizon", "upcoming"),
    *("get_key", "cancel_key", "dead_letters", "redrive", "drop_dead_letters", "health"),
    *("pause", "resume", "flush", "clean"),
)
"""Calls of the store that are asked as they are."""


def calls_of(store: Any) -> dict[str, Call]:
    """Return the calls of a store by name."""
    calls: dict[str, Call] = {name: getattr(store, name) for name in NAMES}
    calls["stats"] = lambda: store.stats().to_dict()
    calls["put_many"] = wraps(store.put_many)(lambda **options: list(store.put_many(**options)))
    return calls


def duration(name: str, seconds: Any) -> timedelta:
    """Return a number of seconds as a duration, or refuse it."""
    try:
        return timedelta(seconds=float(seconds))
    except (TypeError, ValueError, OverflowError) as e:
        raise InvalidArgumentError(f"{name} is {seconds!r}. Pass seconds.") from e


def ask(calls: Mapping[str, Call], name: str, arguments: dict[str, Any]) -> Any:
    """Make a call by its name; durations are in seconds (`delay_s`, `duration_s`)."""
    call = calls.get(name)
    if call is None:
        raise InvalidArgumentError(f"There is no call {name!r}. Use {', '.join(sorted(calls))}.")
    for seconds, plain in (("delay_s", "delay"), ("duration_s", "duration")):
        if seconds in arguments:
            value = arguments.pop(seconds)
            if value is not None:
                arguments[plain] = duration(seconds, value)
    try:
        inspect.signature(call).bind(**arguments)
    except TypeError as e:
        raise InvalidArgumentError(f"{name}: {e}. See the call of the same name.") from e
    return call(**arguments)
