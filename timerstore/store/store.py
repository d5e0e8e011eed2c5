"""The store: opening one; which room makes each of its calls."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from timerstore.calls.consuming.consuming import Consuming
from timerstore.calls.consuming.dead_letters import drop, list_dead_letters, retry_dead_letters
from timerstore.calls.consuming.starting import forget_group
from timerstore.calls.pending.pending import PendingTimers
from timerstore.calls.putting.putting import Putting
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.core.interpreter import check_interpreter
from timerstore.core.readonlycore import refuse_real_timers
from timerstore.services.cleaning.upkeep import Upkeep
from timerstore.services.world.clock import ManualClock
from timerstore.store.handover import close, handover
from timerstore.store.switching import pause, resume
from timerstore.timelog.files.disk import Disk
from timerstore.values.config import Config
from timerstore.values.instants import whole_ms
from timerstore.values.kinds import Duration, check_duration, check_kind, check_place
from timerstore.values.no_pickle import Stays
from timerstore.watching.any_store import AnyStore
from timerstore.watching.topics import read_upcoming

if TYPE_CHECKING:  # what a first timer does without is imported once somebody asks for it
    from timerstore.copies.destination import Place
    from timerstore.copies.follower import Following
    from timerstore.copies.report import BackupReport, Progress
    from timerstore.watching.find import Found
    from timerstore.watching.health import Health
    from timerstore.watching.stats import Stats


# The room that watches is imported once somebody looks.


def _find(core: Core, consuming: Consuming, timers: PendingTimers, id: str) -> Found:
    from timerstore.watching.find import find

    return find(core, consuming, timers, id)


def _read_stats(core: Core, consuming: Consuming) -> Stats:
    from timerstore.watching.stats import read_stats

    return read_stats(core, consuming)


def _read_health(core: Core, consuming: Consuming) -> Health:
    from timerstore.watching.health import read_health

    return read_health(core, consuming)


class Calls:
    """Who makes each call of `AnyStore`, by its name."""

    def __init__(
        self, core: Core, putting: Putting, timers: PendingTimers, consuming: Consuming
    ) -> None:
        self.put = timers.put
        self.put_many = putting.put_many
        self.cancel = timers.cancel
        self.cancel_many = timers.cancel_many
        self.cancel_key = timers.cancel_key
        self.reschedule = timers.reschedule
        self.get = timers.get
        self.find = partial(_find, core, consuming, timers)
        self.get_key = timers.get_key
        self.pending = timers.list
        self.pending_columns = timers.columns
        self.count = timers.count
        self.horizon = timers.horizon
        self.upcoming = partial(read_upcoming, core)
        self.stats = partial(_read_stats, core, consuming)
        self.health = partial(_read_health, core, consuming)
        self.consume = consuming.consume
        self.pull = consuming.pull
        self.dead_letters = partial(list_dead_letters, consuming)
        self.retry_dead_letters = partial(retry_dead_letters, consuming)
        self.drop_dead_letters = partial(drop, consuming)
        self.forget_group = partial(forget_group, consuming)
        self.pause = partial(pause, core, consuming)
        self.resume = partial(resume, core, consuming)
        self.flush = core.flush
        self.clean = partial(clean, core)
        self.close = partial(close, core, consuming, flush=True)


class TimerStore(Stays, AnyStore):
    """An open store; made by `timerstore.open`. Any number of threads may use it.

        put       put, put_many, put_json, put_table
        take      consume one by one, pull many by columns; or a Consumer, with handlers
        change    cancel, cancel_many, cancel_key, reschedule
        look      get, find, get_key, pending, pending_columns, count, horizon, upcoming
        watch     stats, health; dead_letters, retry_dead_letters, drop_dead_letters
        operate   pause, resume, forget_group, flush, clean, backup, follow, handover, close

    >>> with timerstore.open("timers/") as store:
    ...     id = store.put(b"hello", topic="greetings", delay=timedelta(hours=1))
    ...     print(store.count("greetings"), store.cancel(id))
    1 True
    """

    _Core = Core

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        config: Config | None = None,
        clock: ManualClock | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Open a directory; see `timerstore.open`. `disk` writes and flushes: for tests."""
        check_interpreter()
        if config is not None:
            check_kind(config, Config, "config")
        if clock is not None:
            check_kind(clock, ManualClock, "clock")
        place = check_place(path)
        self.core = core = self._Core(place, disk or Disk(), clock)
        config = Config() if config is None else config
        self._check_clock(config)
        try:
            core.lock(create)
            core.open(config)
            self.putting = Putting(core)
            self.timers = PendingTimers(core, self.putting)
            self.consuming = Consuming(core, self.putting, self.timers.keyed)
            core.upkeep = Upkeep(core.engine, core.flusher, self.consuming)
            self._calls = self.calls = self._make_calls()
            core.start()
        except BaseException:
            core.give_up_opening()
            raise

    def _make_calls(self) -> Calls:
        """Return what does the work of each call."""
        return Calls(self.core, self.putting, self.timers, self.consuming)

    def _check_clock(self, config: Config) -> None:
        """Refuse a manual clock for real timers, before anything is changed."""
        refuse_real_timers(self.path, config, self.core.clock)

    @property
    def path(self) -> Path:
        """The directory."""
        return self.core.path

    def __repr__(self) -> str:
        return f"<TimerStore {str(self.core.path)!r}{', closed' if self.core.closed else ''}>"

    def backup(
        self,
        dest: Place,
        *,
        keep: int | None = None,
        progress: Progress | None = None,
    ) -> BackupReport:
        """Add a point to the backup in `dest`, while the store goes on; see `timerstore.backup`.

        A checkpoint is made first, so everything put, cancelled and acknowledged before is in it.
        """
        from timerstore.copies.backup import take_point
        from timerstore.copies.destination import find_destination

        core = self.core
        core.flush()
        core.disk.check_place()
        return take_point(
            *(core.path, find_destination(dest)),
            keep=keep,
            config=core.engine.config,
            progress=progress,
            now_ms=core.clock.now_ms,
            store=core.disk.folder,
        )

    def follow(
        self,
        dest: Place,
        *,
        every: Duration = timedelta(seconds=1),
        keep: Duration | None = timedelta(hours=48),
    ) -> Following:
        """Keep a copy of the store in `dest` up to date from a thread, until the store is closed.

        `dest`: as `timerstore.backup` takes it. After each `every`, a timedelta or seconds, 10 ms
        at least, it ships what was appended. If the disk is lost, you lose at most that time and
        one upload. `keep`: how far back the copy can be restored, to the millisecond; None: for
        ever. It returns at once. After an error it tries again; `health` shows the error. To end
        it, close what is returned. Calls of the store do not wait for it. O(bytes that are
        appended).

        Raises StoreLockedError if a process of this machine follows there already,
        InvalidArgumentError, StoreAccessError if the address leads nowhere.
        """
        from timerstore.copies.destination import find_destination
        from timerstore.copies.follower import Follower, Following

        every_s, core = check_duration(every, "every").total_seconds(), self.core
        keep_ms = None if keep is None else whole_ms(check_duration(keep, "keep"))
        core.check_open()
        core.disk.check_place()
        follower = Follower(
            core.path,
            lambda: find_destination(dest),
            every_s=max(every_s, 0.01),
            keep_ms=keep_ms,
            config=core.engine.config,
            now_ms=lambda: core.clock.now_ms,
            disk=core.disk,
        )
        following = Following(follower)
        core.at_close.append(following.end)
        if core.closed:  # meanwhile, so it may have called what was there before
            following.end()
            core.check_open()
        return following

    def handover(self) -> int | None:
        """Prepare the store for a RocketMQ broker, and close it.

        It writes the timer log and the wheel anew, checks that a broker would fire each pending
        timer once, and puts them in the place of the old ones. What is overdue fires at the broker.
        The broker's settings are in `config/broker.conf`. Returns until when a broker must open the
        store, in epoch ms, because later it skips timers; None if nothing is pending. Raises
        TimerStoreError if the clock was set back, if a broker would refuse the wheel, or if it
        would lose timers because of damage; the error names each damaged message. Raises
        StoreFullError if the disk has no room for the new files. Everything is durable on return.
        If an error is raised before the store is closed, it goes on as it was; later, the next
        opening makes the timer log anew. O(bytes): it reads the whole store twice.
        """
        return handover(self.core, self.consuming)

    def abandon(self) -> None:
        """Release everything without flushing, as a crash of the process would. For tests."""
        close(self.core, self.consuming, flush=False)


@inside
def clean(core: Core) -> int:
    """Clean a store; see `TimerStore.clean`."""
    core.check_writable()
    core.check_unlocked()
    before, upkeep = core.engine.disk_bytes, core.upkeep
    cleaner = upkeep.cleaner
    upkeep.flush()
    until = cleaner.reach.find(core.engine.world.cleaning.floor)
    cleaner.run(at_once=True, until=until)
    while core.engine.world.cleaning.floor < until and cleaner.is_waiting:
        if isinstance(core.clock, ManualClock) or core.switches.find("firing", core.clock.now_ms):
            break  # nobody moves it meanwhile, or nothing fires
        core.check_open()
        time.sleep(0.05)
        cleaner.run(at_once=True, until=until)
    upkeep.flush()
    return max(0, before - core.engine.disk_bytes)
