"""Prefetch: has what falls due soon read into memory before it is due.

The units of a slot's chain, and the messages that they name, lie anywhere in their logs. In a store
that is larger than its memory each of them may be a wait for the disk, and dequeue-get and
dequeue-put would wait for one after the other. So a thread of its own walks the chains of the next
slots beside each other, before dequeue-get claims them: it asks the system for each unit's page and
goes on with another chain until that page has come. Then it asks for the pages of all messages that
were named, in the order of their offsets.

It only asks: nothing depends on what it has done. It holds no lock, and reads a unit only if its
page is in memory. While nothing has to be read from the disk it sleeps: it is woken by major page
faults, which the system counts for the process, and works on as long as it finds pages missing.
"""

from __future__ import annotations

import resource
import time
from typing import Final

import numpy as np

from timerstore.services.engine.engine import Engine
from timerstore.services.world.background import Flag
from timerstore.services.world.state import AHEAD_BATCH, AHEAD_SLOTS, PREFETCH, Prefetch
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.jit.acting import act_as, acting_as
from timerstore.timelog.jit.intrinsics import get_i32, get_i64
from timerstore.timelog.jit.kernel import inlined, kernel_ahead
from timerstore.timelog.jit.record import Bytes, Words, observe
from timerstore.timelog.jit.system import (
    is_resident,
    nap_us,
    read_ahead,
    set_thread_name,
    set_timer_slack_us,
    steady_ns,
)
from timerstore.wheel.slots import NO_UNIT, slot_last

AHEAD_COUNT_MAX: Final = 16_384
"""Timers that are asked for ahead, about: of usual size, 64 MiB of pages."""
_CALL_NS: Final = 10_000_000
_NAP_US: Final = 100
_ACTIVE_S: Final = 5.0
"""It looks ahead for so long after the last page that was missing."""
_WARM_COUNT: Final = 2_048
"""After so many units of which no page was missing it stops looking."""
_IDLE_S: Final = 0.1
_LOOK_S: Final = 0.02


@kernel_ahead
def walk_ahead(world: World, limit_ns: int) -> bool:
    """Walk the chains of the next slots as far as their units are in memory; True: there is more.

    It asks for the pages that are missing, and waits for them `limit_ns` at most. The messages that
    the units name are in `Prefetch.message`. O(units).
    """
    before, ahead = act_as(PREFETCH), world.prefetch
    ahead.batch_count = 0
    until_ns = steady_ns(ahead.clock) + limit_ns
    while True:
        first = observe(world.dequeue_get, "claimed_slot")
        asked, is_waiting = 0, False
        for slot in range(first, first + AHEAD_SLOTS):
            place = slot % AHEAD_SLOTS
            if ahead.slot[place] != slot:
                ahead.slot[place] = slot
                ahead.unit[place] = slot_last(world.wheel, slot)
                ahead.count[place] = 0
            if asked < AHEAD_COUNT_MAX:
                _walk(world, place, AHEAD_COUNT_MAX - asked)
                is_waiting = is_waiting or ahead.unit[place] != NO_UNIT
            asked += ahead.count[place]
        is_over = ahead.batch_count == AHEAD_BATCH or steady_ns(ahead.clock) >= until_ns
        if is_over or not is_waiting:
            act_as(before)
            return is_waiting
        nap_us(_NAP_US)


@inlined
def _walk(world: World, place: int, count_max: int) -> None:
    """Walk one chain until a page is missing, or `count_max` of its units were walked."""
    ahead, log = world.prefetch, world.timerlog
    offset = ahead.unit[place]
    while offset != NO_UNIT and ahead.count[place] < count_max:
        if ahead.batch_count == AHEAD_BATCH:
            break
        buf = segment_at(log, offset)
        if offset >= observe(log, "end") or len(buf) == 0:
            offset = NO_UNIT  # dequeue-get has it mapped, or names it
            break
        at = offset % log.segment_bytes
        if not _have(ahead, buf, at, fmt.UNIT_BYTES):
            break
        ahead.walked_count += 1
        ahead.count[place] += 1
        if get_i32(buf, at + fmt.UNIT_MAGIC_AT) & fmt.UNIT_ROLL == 0:
            ahead.message[ahead.batch_count] = get_i64(buf, at + fmt.UNIT_MESSAGE_AT)
            ahead.size[ahead.batch_count] = get_i32(buf, at + fmt.UNIT_MESSAGE_SIZE_AT)
            ahead.batch_count += 1
        previous = get_i64(buf, at + fmt.UNIT_PREV_AT)
        if previous >= offset:
            previous = NO_UNIT
        offset = previous
    ahead.unit[place] = offset


@inlined
def _have(ahead: Prefetch, buf: Bytes, at: int, count: int) -> bool:
    """Tell whether bytes of a segment are in memory; ask for them if not."""
    count = min(count, len(buf) - at)
    if is_resident(buf, at, count, ahead.pages):
        return True
    ahead.missing_count += 1
    read_ahead(buf, at, count)
    return False


@kernel_ahead
def ask_for_messages(world: World, messages: Words, sizes: Words) -> None:
    """Have messages read into memory, without waiting for them. O(pages)."""
    before, ahead, log = act_as(PREFETCH), world.prefetch, world.commitlog
    end = observe(log, "end")
    for i in range(len(messages)):
        buf = segment_at(log, messages[i])
        if len(buf) > 0 and messages[i] < end and 0 < sizes[i] <= fmt.MESSAGE_BYTES_MAX:
            _have(ahead, buf, messages[i] % log.segment_bytes, sizes[i])
    act_as(before)


class Prefetcher:
    """Runs prefetching for one engine."""

    def __init__(self, engine: Engine) -> None:
        """Begin with looking: after opening nobody knows what is in memory."""
        self.engine, self.state = engine, engine.world.prefetch
        self._faults = -1  # unlike any count
        self._until_s = 0.0

    def run(self, stop: Flag) -> None:
        """Look ahead until `stop` is set; the body of a thread."""
        set_thread_name("prefetch")
        set_timer_slack_us(1)
        self._until_s = time.monotonic() + _ACTIVE_S
        while not stop.is_set():
            if not self.looks():
                stop.wait(_IDLE_S)
            elif not self.step():
                stop.wait(_LOOK_S)

    def looks(self) -> bool:
        """Tell whether pages were missing lately, also to the services."""
        faults, state, now_s = _major_faults(), self.state, time.monotonic()
        with acting_as(PREFETCH):
            if faults != self._faults or state.missing_count > 0:
                self._until_s = now_s + _ACTIVE_S
                state.walked_count = state.missing_count = 0
            elif state.walked_count >= _WARM_COUNT:
                self._until_s, state.walked_count = now_s, 0
            self._faults = faults
            state.is_active = int(now_s < self._until_s)
        return state.is_active != 0

    def step(self) -> bool:
        """Look ahead for up to 10 ms; tell whether there is more to look at now."""
        engine, state = self.engine, self.state
        with engine.timerlog.reading():
            more = bool(walk_ahead(engine.world, _CALL_NS))
        count = state.batch_count
        order = np.argsort(state.message[:count])
        with engine.commitlog.reading():
            ask_for_messages(engine.world, state.message[order], state.size[order])
        return more


def _major_faults() -> int:
    """Return how often this process waited for a page from a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
