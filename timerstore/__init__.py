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
    salvage what is left of one

With asyncio: timerstore.aio. Jobs that recur: timerstore.recurring. Work that is done once:
timerstore.dedup. Metrics and traces: timerstore.metrics, timerstore.otel. With Spark:
timerstore.spark. With a RocketMQ cluster: timerstore.rocketmq. Do a store's parts agree:
timerstore.validation. At the shell: timerstore --help. All else below is the house: `_HOMES` says
where each name lives.

The product, from the bottom up:

    jit        compiled kernels
    timelog    append-only logs
    wheel      slots, the near wheel
    values     what goes into calls and comes out: settings, ids, checks
    services   the five services, flush, recovery
    core       what an open store consists of
    copies     backup, follow, restore, standby
    tables     a store as Arrow tables
    calls      what each call does: putting, pending, consuming
    watching   the calls of a store, as one table; stats, health, what became of a timer
    store      the store: who makes each call, how it is closed or handed over
    consumer   handlers in threads
    recurring  jobs that recur
    share      other processes
    aio        asyncio

Beside it, imported by none of these:

    metrics, otel                Prometheus, OpenTelemetry
    validation, audit, pipeline  is it sound, how is it spread
    offline                      read, export, verify, salvage
    spark                        its tables there
    rocketmq                     a cluster's client
    cli                          the shell

One timer's way: put → commit log → enqueue-get → enqueue-put → timer log + wheel → dequeue-get →
near wheel → dequeue-put → commit log → consume. Through a delay level: put → its queue →
deliver-levels → commit log.
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING

from timerstore.values.lazy_names import loader as _loader

if _os.name == "nt":
    raise ImportError("timerstore does not run on Windows. Run your program in WSL.")

if TYPE_CHECKING:
    from timerstore import aio as aio
    from timerstore import dedup as dedup
    from timerstore import metrics as metrics
    from timerstore import otel as otel
    from timerstore import recurring as recurring
    from timerstore import rocketmq as rocketmq
    from timerstore import spark as spark
    from timerstore import validation as validation
    from timerstore.calls.consuming.dead_letters import DeadLetter
    from timerstore.calls.consuming.delivery import Batch, Delivery
    from timerstore.calls.pending.listing import Horizon
    from timerstore.calls.pending.timers import Timer
    from timerstore.consumer.consumer import Consumer
    from timerstore.consumer.hooks import Hook
    from timerstore.consumer.retry_rules import Outcome, Retry
    from timerstore.copies.backup import backup
    from timerstore.copies.follow_status import CopyStatus
    from timerstore.copies.follower import Following
    from timerstore.copies.points import BackupPoint
    from timerstore.copies.report import Problem, VerifyReport
    from timerstore.copies.restore import RestoreReport, backup_points, restore
    from timerstore.copies.taken import BackupReport
    from timerstore.errors import (
        ClusterError,
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
    from timerstore.offline.read import read
    from timerstore.offline.salvage import SalvageReport, salvage
    from timerstore.offline.verify import verify
    from timerstore.services.world.clock import ManualClock
    from timerstore.share.client import Client, connect
    from timerstore.share.opening import open
    from timerstore.share.server import Server, serve
    from timerstore.share.shared import SharedStore
    from timerstore.store.store import TimerStore
    from timerstore.values.config import Config, Tuning
    from timerstore.values.ids import TimerIds
    from timerstore.version import __version__ as __version__
    from timerstore.watching.any_store import AnyStore
    from timerstore.watching.find import Found, GroupFound
    from timerstore.watching.health import Condition, Health, HealthWarning
    from timerstore.watching.stats import Stats
    from timerstore.watching.topics import TopicStats, Upcoming

_HOMES = {
    "copies.backup": "backup",
    "copies.follow_status": "CopyStatus",
    "copies.follower": "Following",
    "copies.points": "BackupPoint",
    "copies.report": "Problem VerifyReport",
    "copies.taken": "BackupReport",
    "consumer.consumer": "Consumer",
    "consumer.hooks": "Hook",
    "consumer.retry_rules": "Outcome Retry",
    "calls.consuming.dead_letters": "DeadLetter",
    "calls.consuming.delivery": "Batch Delivery",
    "errors": (
        "ClusterError CongestedError CorruptStoreError FlushFailedError ForkedProcessError "
        "InvalidArgumentError MissingFileError NotAStoreError PausedError "
        "ReadOnlyError StoreAccessError StoreClosedError StoreFullError "
        "StoreLockedError TimerStoreError TooLateError UnknownTimerError"
    ),
    "values.config": "Config Tuning",
    "values.ids": "TimerIds",
    "copies.restore": "RestoreReport backup_points restore",
    "offline.salvage": "SalvageReport salvage",
    "offline.verify": "verify",
    "calls.pending.listing": "Horizon",
    "calls.pending.timers": "Timer",
    "services.world.clock": "ManualClock",
    "share.client": "Client connect",
    "share.opening": "open",
    "share.server": "Server serve",
    "share.shared": "SharedStore",
    "store.store": "TimerStore",
    "offline.read": "read",
    "version": "__version__",
    "watching.any_store": "AnyStore",
    "watching.find": "Found GroupFound",
    "watching.health": "Condition Health HealthWarning",
    "watching.stats": "Stats",
    "watching.topics": "TopicStats Upcoming",
}
"""Where each public name lives, loaded when it is first asked for: `timerstore --help`, completion
of the shell, code that only looks at errors: none of these waits for Numba."""
_MODULES = ("aio", "dedup", "metrics", "otel", "recurring", "rocketmq", "spark", "validation")
"""Loaded like that too, so that nobody has to import them by name."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

if not TYPE_CHECKING:  # who checks types sees the names above, and no others
    __getattr__ = _loader(__name__, _HOME_OF, _MODULES)


def __dir__() -> list[str]:
    """Name what is there, loaded or not."""
    return sorted({*globals(), *_HOME_OF})


__all__ = [
    "AnyStore",
    "BackupPoint",
    "BackupReport",
    "Batch",
    "Client",
    "ClusterError",
    "Condition",
    "Config",
    "CongestedError",
    "Consumer",
    "CopyStatus",
    "CorruptStoreError",
    "DeadLetter",
    "Delivery",
    "FlushFailedError",
    "Following",
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
    "Tuning",
    "UnknownTimerError",
    "Upcoming",
    "VerifyReport",
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
