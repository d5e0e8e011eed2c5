"""Every public call of a store, for tests that make all of them."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa

import timerstore

TABLE = pa.table({"at": pa.array([4 * 10**12]), "what": pa.array(["x"]), "key": pa.array(["k"])})
Calls = dict[str, Callable[[], object]]

ENDING = ("handover", "close", "abandon")
"""After these calls a store is closed."""

WITHOUT_ARGUMENTS = ("stats", "health", "flush", "clean", *ENDING)


def arguments(id: str) -> dict[str, dict[str, Any]]:
    """Good arguments for each call that takes some; `id`: a pending timer's."""
    return {
        "put": {"body": b"x", "topic": "t"},
        "put_many": {"bodies": [b"x", b"y", b"z"], "topic": "t"},
        "put_json": {"value": {"a": 1}, "topic": "t"},
        "put_table": {"table": TABLE, "topic": "t", "due": "at", "body": "what", "key": "key"},
        "cancel": {"id": id},
        "cancel_many": {"ids": [id]},
        "reschedule": {"id": id, "delay": timedelta(seconds=1), "body": b"y"},
        "get": {"id": id},
        "find": {"id": id},
        "get_key": {"topic": "t", "key": "k"},
        "cancel_key": {"topic": "t", "key": "k"},
        "pending": {},
        "pending_columns": {},
        "count": {},
        "horizon": {"bucket_ms": 1_000},
        "upcoming": {},
        "pause": {"what": "firing", "duration": timedelta(milliseconds=1)},
        "resume": {"what": "firing"},
        "consume": {"topic": "t", "group": "fresh", "timeout": 0},
        "dead_letters": {"group": "fresh"},
        "retry_dead_letters": {"group": "fresh"},
        "drop_dead_letters": {"group": "fresh"},
        "forget_group": {"group": "fresh", "topic": "%DLQ%fresh"},
        "pull": {"topic": "t", "group": "fresh", "timeout": 0},
    }


LAZY = ("pending", "consume")
"""These calls begin when something is asked of what they return."""


def calls_of(store: timerstore.TimerStore, id: str) -> Calls:
    """Each call with good arguments, the ending ones last."""

    def call(name: str, given: dict[str, Any]) -> object:
        result = getattr(store, name)(**given)
        return next(result) if name in LAZY else result

    given = arguments(id) | {name: {} for name in WITHOUT_ARGUMENTS}
    return {name: lambda name=name, each=each: call(name, each) for name, each in given.items()}  # type: ignore[misc]


def methods(kind: type) -> set[str]:
    """The public methods of a class."""
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}
