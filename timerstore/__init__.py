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
timerstore.dedup. Put in a database's transaction: timerstore.outbox. Metrics and traces:
timerstore.metrics, timerstore.otel. In the browser: timerstore.page. Django's tasks:
timerstore.django. With Spark: timerstore.spark. With a RocketMQ cluster: timerstore.rocketmq. Do a
store's parts agree: timerstore.validation. Does a program survive crashes: timerstore.testing. At
the shell: timerstore --help. All else below is the house: `_HOMES` says where each name lives.

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
    outbox     timers that are put in the transaction of a program's database
    share      other processes
    aio        asyncio

Beside it, imported by none of these:

    metrics, otel                Prometheus, OpenTelemetry
    page                         a page for the browser
    validation, audit, pipeline  is it sound, how is it spread
    offline                      read, export, verify, salvage
    spark                        its tables there
    rocketmq                     a cluster's client
    django                       a backend for its tasks
    testing                      crashes of programs that use a store
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
    from timerstore import django as django
    from timerstore import metrics as metrics
    from timerstore import otel as otel
    from timerstore import outbox as outbox
    from timerstore import page as page
    from timerstore import recurring as recurring
    from timerstore import rocketmq as rocketmq
    from timerstore import spark as spark
    from timerstore import testing as testing
    from timerstore import validation as validation
    from timerstore.calls.consuming.dead_letters import DeadLetter as DeadLetter
    from timerstore.calls.consuming.delivery import Batch as Batch
    from timerstore.calls.consuming.delivery import Delivery as Delivery
    from timerstore.calls.pending.listing import Horizon as Horizon
    from timerstore.calls.pending.timers import Timer as Timer
    from timerstore.consumer.consumer import Consumer as Consumer
    from timerstore.consumer.consumersettings import Hook as Hook
    from timerstore.consumer.consumersettings import Outcome as Outcome
    from timerstore.consumer.consumersettings import Retry as Retry
    from timerstore.copies.backup import backup as backup
    from timerstore.copies.follow_status import CopyStatus as CopyStatus
    from timerstore.copies.follower import Following as Following
    from timerstore.copies.report import BackupPoint as BackupPoint
    from timerstore.copies.report import BackupReport as BackupReport
    from timerstore.copies.report import Problem as Problem
    from timerstore.copies.report import VerifyReport as VerifyReport
    from timerstore.copies.restore import RestoreReport as RestoreReport
    from timerstore.copies.restore import backup_points as backup_points
    from timerstore.copies.restore import restore as restore
    from timerstore.errors import ClusterError as ClusterError
    from timerstore.errors import CongestedError as CongestedError
    from timerstore.errors import CorruptStoreError as CorruptStoreError
    from timerstore.errors import FlushFailedError as FlushFailedError
    from timerstore.errors import ForkedProcessError as ForkedProcessError
    from timerstore.errors import InvalidArgumentError as InvalidArgumentError
    from timerstore.errors import MissingFileError as MissingFileError
    from timerstore.errors import NotAStoreError as NotAStoreError
    from timerstore.errors import PausedError as PausedError
    from timerstore.errors import ReadOnlyError as ReadOnlyError
    from timerstore.errors import StoreAccessError as StoreAccessError
    from timerstore.errors import StoreClosedError as StoreClosedError
    from timerstore.errors import StoreFullError as StoreFullError
    from timerstore.errors import StoreLockedError as StoreLockedError
    from timerstore.errors import TimerStoreError as TimerStoreError
    from timerstore.errors import TooLateError as TooLateError
    from timerstore.errors import UnknownTimerError as UnknownTimerError
    from timerstore.offline.read import read as read
    from timerstore.offline.salvage import SalvageReport as SalvageReport
    from timerstore.offline.salvage import salvage as salvage
    from timerstore.offline.verify import verify as verify
    from timerstore.services.world.clock import ManualClock as ManualClock
    from timerstore.share.client import Client as Client
    from timerstore.share.client import connect as connect
    from timerstore.share.opening import open as open
    from timerstore.share.server import Server as Server
    from timerstore.share.server import serve as serve
    from timerstore.share.shared import SharedStore as SharedStore
    from timerstore.store.store import TimerStore as TimerStore
    from timerstore.values.config import Config as Config
    from timerstore.values.config import Tuning as Tuning
    from timerstore.values.ids import TimerIds as TimerIds
    from timerstore.version import __version__ as __version__
    from timerstore.watching.any_store import AnyStore as AnyStore
    from timerstore.watching.find import Found as Found
    from timerstore.watching.find import GroupFound as GroupFound
    from timerstore.watching.health import Condition as Condition
    from timerstore.watching.health import Health as Health
    from timerstore.watching.health import HealthWarning as HealthWarning
    from timerstore.watching.stats import Stats as Stats
    from timerstore.watching.topics import TopicStats as TopicStats
    from timerstore.watching.topics import Upcoming as Upcoming

_HOMES = {
    "copies.backup": "backup",
    "copies.follow_status": "CopyStatus",
    "copies.follower": "Following",
    "copies.report": "BackupPoint BackupReport Problem VerifyReport",
    "consumer.consumer": "Consumer",
    "consumer.consumersettings": "Hook Outcome Retry",
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
_MODULES = (
    *("aio", "dedup", "django", "metrics", "otel", "outbox", "page", "recurring", "rocketmq"),
    *("spark", "testing", "validation"),
)
"""Loaded like that too, so that nobody has to import them by name."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

if not TYPE_CHECKING:  # who checks types sees the names above, and no others
    __getattr__ = _loader(__name__, _HOME_OF, _MODULES)


def __dir__() -> list[str]:
    """Name what is there, loaded or not."""
    return sorted({*globals(), *_HOME_OF})


__all__ = sorted(_HOME_OF.keys() - {"__version__"})
