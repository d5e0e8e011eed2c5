"""Pausing: what the switches of an open store do to it.

While firing is paused dequeue-get takes nothing and no level delivers. Linking, hops, cancelling
and rescheduling go on; the read cursor stays before the first slot that holds something due. The
end of a pause is a word that the services read (`Callers.fire_from_ms`), so it is kept to the
millisecond without anybody's help. `pause("firing")` returns once what was taken before is in the
log. While putting is paused puts are refused: RocketMQ's `timerStopEnqueue` would let them pile up
before the wheel. A handover is refused while firing is paused.
"""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Final, get_args

from timerstore.calls.consuming.consuming import Consuming
from timerstore.core.core import OFFSETS_FILE, Core
from timerstore.core.directory import lock_directory
from timerstore.core.gate import inside
from timerstore.core.offsets import ConsumerOffsets
from timerstore.core.switches import SWITCHES_FILE, Pause, Paused, Switches
from timerstore.errors import InvalidArgumentError
from timerstore.services.world.clock import SystemClock
from timerstore.services.world.state import DELIVER_LEVELS, DEQUEUE_GET
from timerstore.timelog.files.disk import Disk
from timerstore.values.check_arguments import DUE_MS_MAX, check_group
from timerstore.values.instants import whole_ms
from timerstore.values.kinds import Duration, check_bool, check_choice, check_duration, unknown_name

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
