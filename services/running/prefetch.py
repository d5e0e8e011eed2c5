"""Prefetch: has what falls due soon read into memory before it is due.

The units of a slot's chain, and the messages that they name, lie anywhere in their logs. In a store
that is larger than its memory each of them may be a wait for the disk, and dequeue-get and
dequeue-put would wait for one after the other. So a thread of its own walks the chains of the next
slots beside each other, before dequeue-get claims them: it asks the system for each unit's page and
goes on with another chain until that page has come. Then it asks for the pages of all messages that
were named, in the order of their offsets.

How far ahead it looks follows from what came of it. A slot that is claimed before its chain was
walked adds one to the slots that are walked beside each other; if not only that one was walked, but
also the one in the middle, there is one less. So no more chains share the disk than have to, and
the first gets most of it. All their pages may take half of the memory that is free, also
in each control group; else what came first would be gone again when it is due. Of messages that are
too far ahead for that, dequeue-put asks for the pages.

Units of one slot are found one behind the other, each by a read of the disk. After a clean close
another thread asks for those of the next slots from the first moment of opening on
(`services/engine/first_pages.py`). Then, if it fits into half of the free memory, the timer log is
also read in order once, the newest first, one piece behind the other. Cleaning and the key index,
which read in order as well, wait for that.

It only asks: nothing depends on what it has done. It holds no lock, and reads a unit only if its
page is in memory. While nothing has to be read from the disk it sleeps: it is woken by major page
faults, which the system counts for the process, and works on as long as it finds pages missing.
"""

from __future__ import annotations

import resource
import time
from typing import Final

import numpy as np

from timerstore.jit.intrinsics import get_i32, get_i64
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.mapping import PAGE_BYTES
from timerstore.jit.record import Bytes, Words, act_as, acting_as, observe
from timerstore.jit.system import (
    is_resident,
    nap_us,
    set_thread_name,
    set_timer_slack_us,
    steady_ns,
)
from timerstore.services.damage.scrub import scan_slots
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.first_pages import map_segments
from timerstore.services.pipeline.dequeue_put import ASK_BYTES
from timerstore.services.world.background import Flag
from timerstore.services.world.state import (
    AHEAD_BATCH,
    AHEAD_SLOTS,
    AHEAD_SLOTS_MIN,
    PREFETCH,
    Prefetch,
)
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NO_UNIT, UNIT_GOOD, check_unit
from timerstore.timelog.files.memory import available_bytes
from timerstore.timelog.files.segmenttable import ask_for, segment_at
from timerstore.wheel.timerwheel import slot_last

_SHARE: Final = 2
"""Of the memory that is free it uses this part: one in so many."""
_UNITS_BYTES: Final = 2 << 20
"""So many bytes of units are asked for at once; more would hold up what is due next."""
_UNITS_NS: Final = 1_000_000_000
"""What has not come by then does not: it cannot be read."""
_CALL_NS: Final = 10_000_000
_NAP_US: Final = 100
_ACTIVE_S: Final = 5.0
"""It looks ahead for so long after the last page that was missing."""
_WARM_COUNT: Final = 2_048
"""After so many units and messages of which no page was missing it stops looking."""
_MEASURE_S: Final = 1.0
_IDLE_S: Final = 0.1
_LOOK_S: Final = 0.02
_RETRY_S: Final = 0.001


@kernel_ahead
def walk_ahead(world: World, limit_ns: int) -> bool:
    """Walk the chains of the next slots as far as their units are in memory; True: there is more.

    It asks for the pages that are missing, and waits for them `limit_ns` at most. The messages that
    the units name are in `Prefetch.message`. O(units).
    """
    before, ahead = act_as(PREFETCH), world.prefetch
    ahead.batch_count, ahead.unmapped = 0, NO_UNIT
    until_ns = steady_ns(ahead.clock) + limit_ns
    while True:
        _adapt(world)
        if ahead.units_stop > 0 and observe(ahead, "is_asking") == 0:
            _read_units(world)
        asked_bytes, is_waiting = 0, ahead.units_stop > 0
        for slot in range(ahead.first_slot, ahead.first_slot + ahead.slot_count):
            place = slot % AHEAD_SLOTS
            if ahead.slot[place] != slot:
                ahead.slot[place] = slot
                ahead.unit[place] = slot_last(world.wheel, slot)
                ahead.bytes[place] = 0
            if asked_bytes < ahead.bytes_max:
                _walk(world, place, asked_bytes)
            asked_bytes += ahead.bytes[place]
            is_walked = ahead.unit[place] == NO_UNIT
            is_waiting = is_waiting or (not is_walked and asked_bytes < ahead.bytes_max)
        is_over = ahead.batch_count == AHEAD_BATCH or steady_ns(ahead.clock) >= until_ns
        is_over = is_over or ahead.unmapped != NO_UNIT
        if is_over or not is_waiting:
            act_as(before)
            return is_waiting
        nap_us(_NAP_US)


@inlined
def _adapt(world: World) -> None:
    """Look further ahead if a slot was claimed before its chain was walked, less far if in time."""
    ahead, first = world.prefetch, observe(world.dequeue_get, "owed_slot")
    for slot in range(max(ahead.first_slot, first - AHEAD_SLOTS), first):
        middle = slot + ahead.slot_count // 2
        if _was_begun(ahead, slot) and ahead.unit[slot % AHEAD_SLOTS] != NO_UNIT:
            ahead.slot_count = min(ahead.slot_count + 1, AHEAD_SLOTS)
        elif _was_begun(ahead, middle) and ahead.unit[middle % AHEAD_SLOTS] == NO_UNIT:
            ahead.slot_count = max(ahead.slot_count - 1, AHEAD_SLOTS_MIN)
    ahead.first_slot = first


@inlined
def _was_begun(ahead: Prefetch, slot: int) -> bool:
    """Tell whether a unit of a slot was walked."""
    return ahead.slot[slot % AHEAD_SLOTS] == slot and ahead.bytes[slot % AHEAD_SLOTS] > 0


@inlined
def _walk(world: World, place: int, asked_bytes: int) -> None:
    """Walk one chain until a page is missing, or all that may be asked for was."""
    ahead, log = world.prefetch, world.timerlog
    offset, unit_page, message_page = ahead.unit[place], -1, -1
    while offset != NO_UNIT and asked_bytes + ahead.bytes[place] < ahead.bytes_max:
        if ahead.batch_count == AHEAD_BATCH:
            break
        buf = segment_at(log, offset)
        if offset >= observe(log, "end"):
            offset = NO_UNIT  # dequeue-get names it
            break
        if len(buf) == 0:
            ahead.unmapped = offset
            break
        at = offset % log.segment_bytes
        if not _have(ahead, buf, at, fmt.UNIT_BYTES):
            break
        if check_unit(buf, at, offset) != UNIT_GOOD:
            offset = NO_UNIT
            break
        ahead.walked_count += 1
        if offset // PAGE_BYTES != unit_page:
            unit_page = offset // PAGE_BYTES
            ahead.bytes[place] += PAGE_BYTES
        if get_i32(buf, at + fmt.UNIT_MAGIC_AT) & fmt.UNIT_ROLL == 0:
            message = get_i64(buf, at + fmt.UNIT_MESSAGE_AT)
            size = get_i32(buf, at + fmt.UNIT_MESSAGE_SIZE_AT)
            ahead.message[ahead.batch_count] = message
            ahead.size[ahead.batch_count] = size
            ahead.batch_count += 1
            if message // PAGE_BYTES != message_page:
                message_page = message // PAGE_BYTES
                ahead.bytes[place] += (max(size, 0) // PAGE_BYTES + 1) * PAGE_BYTES
        offset = get_i64(buf, at + fmt.UNIT_PREV_AT)
    ahead.unit[place] = offset


@inlined
def _have(ahead: Prefetch, buf: Bytes, at: int, count: int) -> bool:
    """Tell whether bytes of a segment are in memory; ask for them if not."""
    is_there: bool = ask_for(buf, at, count, ahead.pages)
    if not is_there:
        ahead.missing_count += 1
    return is_there


@inlined
def _read_units(world: World) -> None:
    """Ask for the piece of the timer log that is next, once the one behind it has come."""
    ahead, log, stop = world.prefetch, world.timerlog, world.prefetch.units_stop
    first = world.cleaning.timerlog_start
    start = max(first, stop - _UNITS_BYTES, (stop - 1) // log.segment_bytes * log.segment_bytes)
    is_there, now_ns = True, steady_ns(ahead.clock)
    if start < stop:
        buf = segment_at(log, start)
        if len(buf) == 0:
            ahead.unmapped = start
            return
        for offset in range(start, stop, ASK_BYTES):
            at, count = offset % log.segment_bytes, min(ASK_BYTES, stop - offset)
            if ahead.units_asked_ns == 0:
                is_there = _have(ahead, buf, at, count) and is_there
            else:
                is_there = is_there and is_resident(buf, at, count, ahead.pages)
    if ahead.units_asked_ns == 0:
        ahead.units_asked_ns = now_ns
    if is_there or now_ns - ahead.units_asked_ns > _UNITS_NS:
        ahead.units_asked_ns = 0
        ahead.units_stop = start if start > first else 0


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
        self._asked = self._missing = 0
        self._until_s = self._measured_s = 0.0
        self._measure(time.monotonic())
        fits = engine.timerlog.end - engine.timerlog.start <= self.state.bytes_max
        with acting_as(PREFETCH):
            self.state.is_active = 1
            self.state.units_stop = engine.timerlog.end if fits else 0
            self.state.units_asked_ns = 0

    def run(self, stop: Flag) -> None:
        """Look ahead until `stop` is set, and for what damage hides; the body of a thread."""
        set_thread_name("prefetch")
        set_timer_slack_us(1)
        self._until_s = time.monotonic() + _ACTIVE_S

        def waits() -> bool:
            stop.wait(_RETRY_S)
            return not stop.is_set()

        while not stop.is_set():
            scan_slots(self.engine, waits)
            if not self.looks():
                stop.wait(_IDLE_S)
            elif not self.step():
                stop.wait(_LOOK_S)

    def looks(self) -> bool:
        """Tell whether pages were missing lately, also to the services."""
        faults, state, now_s = _major_faults(), self.state, time.monotonic()
        put = self.engine.world.dequeue_put
        asked, missing = int(put.asked_count), int(put.missing_count)
        if now_s - self._measured_s >= _MEASURE_S and state.is_active != 0:
            self._measure(now_s)
        with acting_as(PREFETCH):
            state.walked_count += asked - self._asked
            state.missing_count += missing - self._missing
            if faults != self._faults or state.missing_count > 0 or state.is_asking != 0:
                self._until_s = now_s + _ACTIVE_S
                state.walked_count = state.missing_count = 0
            elif state.walked_count >= _WARM_COUNT:
                self._until_s, state.walked_count = now_s, 0
            self._faults, self._asked, self._missing = faults, asked, missing
            state.is_active = int(now_s < self._until_s)
        return state.is_active != 0

    def _measure(self, now_s: float) -> None:
        """Set how many bytes may be asked for ahead."""
        self._measured_s = now_s
        with acting_as(PREFETCH):
            self.state.bytes_max = available_bytes() // _SHARE

    def step(self) -> bool:
        """Look ahead for up to 10 ms; tell whether there is more to look at now."""
        engine, state = self.engine, self.state
        with engine.timerlog.reading():
            more = bool(walk_ahead(engine.world, _CALL_NS))
        if state.unmapped != NO_UNIT:
            self._map_unit(int(state.unmapped))
        # Of each claimed timer a page waits already.
        waiting_bytes = PAGE_BYTES * (engine.near.count + int(state.batch_count))
        if waiting_bytes >= int(state.bytes_max):
            return more
        count = state.batch_count
        order = np.argsort(state.message[:count])
        segments = set((state.message[order] // engine.commitlog.segment_bytes).tolist())
        map_segments(engine.commitlog, sorted(segments))
        with engine.commitlog.reading():
            ask_for_messages(engine.world, state.message[order], state.size[order])
        return more

    def _map_unit(self, offset: int) -> None:
        """Map the segment of a unit, or end the walk that has come to it, or leave it unread."""
        log, state = self.engine.timerlog, self.state
        number = offset // log.segment_bytes
        if map_segments(log, [number]):
            with acting_as(PREFETCH):
                state.unit[state.unit == offset] = NO_UNIT
                if (state.units_stop - 1) // log.segment_bytes == number:
                    state.units_stop = number * log.segment_bytes


def _major_faults() -> int:
    """Return how often this process waited for a page from a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
