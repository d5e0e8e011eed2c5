"""The store: opening one, also one that refuses changes; which room makes each of its calls."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast, get_args

from timerstore.calls.consuming.consuming import Consuming, forget_group
from timerstore.calls.consuming.dead_letters import drop, list_dead_letters, retry_dead_letters
from timerstore.calls.pending.pending import PendingTimers
from timerstore.calls.putting.putting import Putting
from timerstore.core.core import OFFSETS_FILE, Core
from timerstore.core.directory import lock_directory
from timerstore.core.gate import inside
from timerstore.core.interpreter import check_interpreter
from timerstore.core.offsets import ConsumerOffsets
from timerstore.core.readonlycore import REASON, ReadOnlyCore, refuse_real_timers
from timerstore.core.switches import SWITCHES_FILE, Pause, Paused, Switches
from timerstore.errors import InvalidArgumentError, ReadOnlyError
from timerstore.services.cleaning.upkeep import Upkeep
from timerstore.services.world.clock import ManualClock, SystemClock
from timerstore.services.world.state import DELIVER_LEVELS, DEQUEUE_GET
from timerstore.store.handover import close, handover
from timerstore.timelog.files.disk import Disk
from timerstore.values.check_arguments import DUE_MS_MAX, check_group
from timerstore.values.config import Config
from timerstore.values.kinds import (
    Duration,
    check_bool,
    check_choice,
    check_duration,
    check_kind,
    check_place,
    unknown_name,
    whole_ms,
)
from timerstore.values.no_pickle import Stays
from timerstore.watching.any_store import AnyStore
from timerstore.watching.topics import read_upcoming

if TYPE_CHECKING:
    from timerstore.copies.destination import Place
    from timerstore.copies.follower import Following
    from timerstore.copies.report import BackupReport, Progress
    from timerstore.watching.find import Found
    from timerstore.watching.health import Health
    from timerstore.watching.stats import Stats


# --- pausing: what the switches of an open store do to it
#
# While firing is paused dequeue-get takes nothing and no level delivers. Linking, hops,
# cancelling and rescheduling go on; the read cursor stays before the first slot that holds
# something due. The end of a pause is a word that the services read (`Callers.fire_from_ms`), so
# it is kept to the millisecond without anybody's help. `pause("firing")` returns once what was
# taken before is in the log. While putting is paused puts are refused: RocketMQ's
# `timerStopEnqueue` would let them pile up before the wheel. A handover is refused while firing
# is paused.


_SETTLE_S: Final = 2.0
"""So long `pause("firing")` waits for what was taken before; a full disk may hold it back."""


@inside
def pause(
    core: Core,
    consuming: Consuming,
    what: Paused,
    group: str | None,
    duration: Duration | None,
    keep: bool,
) -> None:
    """Stop something; see `TimerStore.pause`."""
    core.check_writable()
    core.check_unlocked()
    _check(what, group)
    check_bool(keep, "keep")
    _check_known(group, consuming.group_names())
    now_ms = core.clock.now_ms
    core.switches.set(Pause(what, group, now_ms, _end_ms(now_ms, duration), keep))
    core.obey_switches()
    if what == "firing":
        _settle(core)


def switch_closed(
    path: Path, what: Paused, group: str | None, duration: Duration | None, *, paused: bool
) -> None:
    """Pause or resume something of a store that nobody has open, for the next opening.

    Durable on return. Raises StoreLockedError if somebody has it open.
    """
    _check(what, group)
    disk, now_ms = Disk(), SystemClock().now_ms
    lock = lock_directory(disk, path, create=False)
    try:
        switches = Switches(disk, path / SWITCHES_FILE)
        known = ConsumerOffsets(disk, path / OFFSETS_FILE).group_names()
        if not paused:
            known |= switches.groups()
        _check_known(group, known)
        if paused:
            switches.set(Pause(what, group, now_ms, _end_ms(now_ms, duration), True))
        else:
            switches.clear(what, group)
    finally:
        lock.release()


@inside
def resume(core: Core, consuming: Consuming, what: Paused, group: str | None) -> None:
    """Go on with something; see `TimerStore.resume`."""
    core.check_writable()
    core.check_unlocked()
    _check(what, group)
    _check_known(group, consuming.group_names() | core.switches.groups())
    general = core.switches.find(what, core.clock.now_ms)
    if group is not None and general is not None:
        raise InvalidArgumentError(
            f"Consuming is paused for all groups, so it cannot be resumed for {group!r} alone. "
            'Call resume("consuming") without group.'
        )
    core.switches.clear(what, group)
    core.obey_switches()
    if core.clock.manual:
        core.play_now()
    else:
        core.engine.wake(DEQUEUE_GET)
        core.engine.wake(DELIVER_LEVELS)


def _check(what: str, group: str | None) -> None:
    check_choice(what, "what", get_args(Paused))
    if group is not None:
        check_group(group)
        if what != "consuming":
            raise InvalidArgumentError(
                f"{what.capitalize()} cannot be paused or resumed for one group. Leave out group."
            )


def _check_known(group: str | None, known: set[str]) -> None:
    if group is not None and group not in known:
        raise InvalidArgumentError(unknown_name("group", group, known))


def _end_ms(now_ms: int, duration: Duration | None) -> int | None:
    if duration is None:
        return None
    length = check_duration(duration, "duration")
    if length <= timedelta():
        raise InvalidArgumentError(f"duration is {duration}. Pass a positive one.")
    return min(now_ms + whole_ms(length), DUE_MS_MAX)


def _settle(core: Core) -> None:
    """Wait until what was taken before is in the log: nothing fires any more on return."""
    taken, until_s = core.engine.world.dequeue_ring.ends, time.monotonic() + _SETTLE_S
    core.engine.wait_for_steps()
    while taken.head != taken.tail and time.monotonic() < until_s:
        time.sleep(0.001)


# --- the public class


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
            groups = self.consuming.committed_indexes, self.consuming.write
            core.upkeep = Upkeep(core.engine, core.flusher, *groups)
            self._calls = self.calls = self._make_calls()
            core.start()
        except BaseException:
            core.give_up_opening()
            raise

    def _make_calls(self) -> Calls:
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
            clock=core.clock,
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
            clock=core.clock,
            disk=core.disk,
        )
        following = Following(follower, core.at_close)
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


# --- stores that refuse: one that is opened to look at, one in which nothing fires


class ReadOnlyStore(TimerStore):
    """A store to look at: what reads works, from `get` to `upcoming` and `stats`.

    Nothing fires in it; what is overdue is pending. Everything else raises ReadOnlyError.
    """

    _Core = ReadOnlyCore

    def __init__(self, path: Place, **options: Any) -> None:
        """Open a store, a standby; or a backup, also by its address: its last point."""
        from timerstore.copies.destination import is_address
        from timerstore.copies.restore import as_folder

        self._copied = ExitStack()
        try:
            place = path if is_address(path) else check_place(path)
            folder, _ = self._copied.enter_context(as_folder(place, only_last=True))
            super().__init__(folder, **options)
        except BaseException:
            self._copied.close()
            raise

    def _check_clock(self, config: Config) -> None:
        """Take any clock, because nothing fires."""

    def _make_calls(self) -> Calls:
        calls, refused = super()._make_calls(), cast(Any, partial(_refuse, self.core))
        calls.flush = calls.clean = calls.consume = calls.pull = refused
        return calls

    def close(self) -> None:
        """Let the files go."""
        self.abandon()
        self._copied.close()

    def handover(self) -> NoReturn:
        """Refuse."""
        _refuse(self.core)


def _refuse(core: Core, *given: object) -> NoReturn:
    core.check_open()
    raise ReadOnlyError(REASON)


class StillStore(TimerStore):
    """A store whose pending timers stay where they are, for who takes them away.

    A pause that is kept stays as it is for the next opening.
    """

    def _make_calls(self) -> Calls:
        self.core.switches.hold_firing()  # before the services start
        return super()._make_calls()
