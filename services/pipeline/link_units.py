"""Linking: writes a unit at the timer log's end, as the last one of its slot.

By enqueue-put, and by dequeue-get for what hops; under wheel.
"""

from __future__ import annotations

from typing import NamedTuple

from timerstore.jit.kernel import inlined, inlined_always
from timerstore.services.world.needs import TIMERLOG_SEGMENT
from timerstore.services.world.state import ServiceThread, tell_need
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NewUnit, unit_change
from timerstore.timelog.timerlog import append_unit, find_unit_room
from timerstore.wheel.settings import Settings
from timerstore.wheel.timerwheel import link_unit


@inlined
def has_unit_room(world: World, thread: ServiceThread) -> bool:
    """Tell whether there is room for a unit; a service's need says it if there is not."""
    offset = find_unit_room(world.timerlog)
    if offset < 0:
        tell_need(thread, TIMERLOG_SEGMENT, -1 - offset)
    return offset >= 0


class NewTimer(NamedTuple):
    """A message that gets its first unit."""

    message: int
    size: int
    topic_hash: int
    out_ms: int  # TIMER_OUT_MS
    due_ms: int  # exact
    is_delete: bool


@inlined
def unit_in_slot(
    settings: Settings, slot: int, hops: int, prev: int, timer: NewTimer, now_ms: int
) -> NewUnit:
    """Return a timer's unit in the slot that `place` chose; `prev`: the slot's last unit."""
    precision, magic = settings.precision_ms, fmt.UNIT_PLAIN
    unit_ms = timer.out_ms
    if hops > 0:
        magic |= fmt.UNIT_ROLL
        unit_ms -= hops * settings.hop_slots * precision
    if unit_ms // precision != slot:
        unit_ms = slot * precision  # its own slot was passed, or the read cursor's stands in for it
    if timer.is_delete:
        magic |= fmt.UNIT_DELETE
    return NewUnit(
        prev,
        magic,
        now_ms // precision * precision,
        unit_ms,
        slot * precision,
        timer.message,
        timer.size,
        timer.topic_hash,
        timer.due_ms,
    )


@inlined_always
def write_unit(world: World, slot: int, unit: NewUnit) -> int:
    """Write a unit, for which there is room, and link it into its slot; return its offset. O(1)."""
    offset = append_unit(world.timerlog, unit)
    link_unit(world.wheel, slot, offset, unit_change(unit.magic))
    return offset
