"""An embedded, durable timer store whose directory is an Apache RocketMQ 5.x store.

    >>> with timerstore.open("timers/") as store:
    ...     id = store.put(b"hello", topic="greetings", delay=timedelta(hours=1))

    open      a directory, as a TimerStore: put, consume, cancel and the rest
    Config    its settings
    Consumer  handlers in threads, with retries
    serve     to other processes, which connect
    read      its tables, as Arrow
    backup    a live one; restore, to any point
    verify    every byte of a closed one
    salvage   whatever is left of one

With asyncio: timerstore.aio. Jobs that recur: timerstore.recurring. Work that is done once:
timerstore.dedup. Metrics and traces: timerstore.metrics, timerstore.otel. With Spark:
timerstore.spark. Do a store's parts agree: timerstore.validation. At the shell: timerstore --help.
All else below is the house: `_HOMES` says where each name lives.

One timer's way: put → commit log → enqueue-get → enqueue-put → timer log + wheel → dequeue-get →
near wheel → dequeue-put → commit log → consume. Through a delay level: put → its queue →
deliver-levels → commit log. The folders: `timelog` (append-only logs), `wheel`
(slots and the near wheel), `services` (the five services, flush, recovery).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, overload

from timerstore.lazy import loader as _loader

if TYPE_CHECKING:
    from timerstore.anystore import AnyStore
    from timerstore.config import Config
    from timerstore.consumer.consumer import Consumer
    from timerstore.consumer.hooks import Hook
    from timerstore.consumer.retry_rules import Outcome, Retry
    from timerstore.consuming.dead_letters import DeadLetter
    from timerstore.consuming.group import Batch, Delivery
    from timerstore.errors import (
        CongestedError,
        CorruptStoreError,
        FlushFailedError,
        ForkedProcessError,
        InvalidArgumentError,
        MissingFileError,
        NotAStoreError,
        PausedError,
        ReadOnlyError,
        StoreAccessError,
        StoreClosedError,
        StoreFullError,
        StoreLockedError,
        TimerStoreError,
        TooLateError,
        UnknownTimerError,
    )
    from timerstore.ids import TimerIds
    from timerstore.offline.backup import BackupReport, backup
    from timerstore.offline.points import BackupPoint
    from timerstore.offline.report import Problem, Report
    from timerstore.offline.restore import RestoreReport, backup_points, restore
    from timerstore.offline.salvage import SalvageReport, salvage
    from timerstore.offline.verify import verify
    from timerstore.pending.listing import Horizon
    from timerstore.pending.timers import Timer
    from timerstore.services.clock import ManualClock
    from timerstore.serving.client import Client, connect
    from timerstore.serving.server import Server, serve
    from timerstore.serving.shared import SharedStore
    from timerstore.stats import Stats
    from timerstore.store import TimerStore
    from timerstore.tables.whole import read
    from timerstore.version import __version__ as __version__
    from timerstore.watching.find import Found, GroupFound
    from timerstore.watching.health import Condition, Health, HealthWarning
    from timerstore.watching.topics import TopicStats, Upcoming

_HOMES = {
    "anystore": "AnyStore",
    "config": "Config",
    "consumer.consumer": "Consumer",
    "consumer.hooks": "Hook",
    "consumer.retry_rules": "Outcome Retry",
    "consuming.dead_letters": "DeadLetter",
    "consuming.group": "Batch Delivery",
    "errors": (
        "CongestedError CorruptStoreError FlushFailedError ForkedProcessError "
        "InvalidArgumentError MissingFileError NotAStoreError PausedError ReadOnlyError "
        "StoreAccessError StoreClosedError StoreFullError StoreLockedError "
        "TimerStoreError TooLateError UnknownTimerError"
    ),
    "ids": "TimerIds",
    "offline.backup": "BackupReport backup",
    "offline.points": "BackupPoint",
    "offline.report": "Problem Report",
    "offline.restore": "RestoreReport backup_points restore",
    "offline.salvage": "SalvageReport salvage",
    "offline.verify": "verify",
    "pending.listing": "Horizon",
    "pending.timers": "Timer",
    "services.clock": "ManualClock",
    "serving.client": "Client connect",
    "serving.server": "Server serve",
    "serving.shared": "SharedStore",
    "stats": "Stats",
    "store": "TimerStore",
    "tables.whole": "read",
    "version": "__version__",
    "watching.find": "Found GroupFound",
    "watching.health": "Condition Health HealthWarning",
    "watching.topics": "TopicStats Upcoming",
}
"""Where each public name lives, loaded when it is first asked for: `timerstore --help`, completion
of the shell, whatever only looks at errors: none of these waits for Numba."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


__getattr__ = _loader(__name__, _HOME_OF)


def __dir__() -> list[str]:
    """Name what is there, loaded or not."""
    return sorted({*globals(), *_HOME_OF})


@overload
def open(
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    read_only: bool = False,
    config: Config | None = None,
    clock: ManualClock | None = None,
    share: Literal[False] = False,
) -> TimerStore: ...


@overload
def open(
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    config: Config | None = None,
    share: Literal[True],
) -> SharedStore: ...


@overload
def open(
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    config: Config | None = None,
    share: bool,
) -> TimerStore | SharedStore: ...


def open(
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    read_only: bool = False,
    config: Config | None = None,
    clock: ManualClock | None = None,
    share: bool = False,
) -> TimerStore | SharedStore:
    """Open a timer store, making it if `create` and there is none.

    A context manager; `close` stops the services and flushes. One process at a time can have a
    store open. A directory that bears no mark of ours is a broker's: its sizes are read off the
    files. With `read_only` no file is changed and no lock is taken, so that one can look at a store
    that is in use, or at a copy: what would change it raises ReadOnlyError. With `share` any number
    of processes of one user have it open: one owns it, the others are its clients, and when it ends
    another one takes over; see `SharedStore`. With a `clock` time stands still until it is moved,
    for tests; a store with real timers refuses it, see `ManualClock`.

    Raises NotAStoreError, StoreLockedError, CorruptStoreError, InvalidArgumentError.

    >>> with timerstore.open("timers/") as store:
    ...     id = store.put(b"hello")
    """
    from timerstore.errors import InvalidArgumentError
    from timerstore.kinds import check_bool
    from timerstore.readonly import ReadOnlyStore
    from timerstore.realtimers import refuse_real_timers
    from timerstore.serving.server import let_others_ask
    from timerstore.store import TimerStore
    from timerstore.timelog.oserrors import told_of

    check_bool(create, "create")
    check_bool(read_only, "read_only")
    check_bool(share, "share")
    if share:
        from timerstore.serving.shared import SharedStore

        if read_only or clock is not None:
            raise InvalidArgumentError(
                "share=True goes with neither read_only nor a clock. Leave them out."
            )
        return SharedStore(path, create=create, config=config)
    with told_of(path):
        if read_only:
            return ReadOnlyStore(path, create=False, config=config, clock=clock)
        refuse_real_timers(path, config, clock)
        return let_others_ask(TimerStore(path, create=create, config=config, clock=clock))


__all__ = [
    "AnyStore",
    "BackupPoint",
    "BackupReport",
    "Batch",
    "Client",
    "Condition",
    "Config",
    "CongestedError",
    "Consumer",
    "CorruptStoreError",
    "DeadLetter",
    "Delivery",
    "FlushFailedError",
    "ForkedProcessError",
    "Found",
    "GroupFound",
    "Health",
    "HealthWarning",
    "Hook",
    "Horizon",
    "InvalidArgumentError",
    "ManualClock",
    "MissingFileError",
    "NotAStoreError",
    "Outcome",
    "PausedError",
    "Problem",
    "ReadOnlyError",
    "Report",
    "RestoreReport",
    "Retry",
    "SalvageReport",
    "Server",
    "SharedStore",
    "Stats",
    "StoreAccessError",
    "StoreClosedError",
    "StoreFullError",
    "StoreLockedError",
    "Timer",
    "TimerIds",
    "TimerStore",
    "TimerStoreError",
    "TooLateError",
    "TopicStats",
    "UnknownTimerError",
    "Upcoming",
    "backup",
    "backup_points",
    "connect",
    "open",
    "read",
    "restore",
    "salvage",
    "serve",
    "verify",
]
