"""Answering needs: what a service's step cannot go on without, see needs.py."""

from __future__ import annotations

from timerstore.errors import CorruptStoreError
from timerstore.jit.acting import acting_as
from timerstore.services.damage.entries import pass_timer_entry
from timerstore.services.damage.pass_lost import pass_lost
from timerstore.services.damage.slot_scan import leave_slot
from timerstore.services.engine.engine import CANCELLED_GROWTH, Engine
from timerstore.services.world import needs
from timerstore.services.world.state import CLEANING


def provide(engine: Engine, service: int) -> int:
    """Answer a service's need, and clear it; return which it was.

    Only the thread that runs its steps calls this. FLUSHED is left to the caller.
    """
    thread = engine.world.cleaning.thread if service == CLEANING else engine.services[service]
    need, offset = thread.need, thread.need_offset
    with acting_as(service):
        try:
            _provide(engine, service, need, offset)
        finally:
            thread.need = needs.NOTHING
    return need


def _provide(engine: Engine, service: int, need: int, offset: int) -> None:
    engine.let_go()
    if need == needs.COMMITLOG_SEGMENT:
        engine.commitlog.make_room(offset + 1)
        engine.prepare_commitlog()
    elif need == needs.QUEUE_SEGMENT:
        engine.queues.prepare(offset, index=engine.queues.next_index(offset))
    elif need == needs.TIMERLOG_SEGMENT:
        number = offset // engine.timerlog.segment_bytes
        if offset >= engine.timerlog.end:
            engine.timerlog.make_unit_room()
        else:
            _map_units(engine, number, offset)
    elif need == needs.COMMITLOG_READ:
        engine.commitlog.readable(offset // engine.commitlog.segment_bytes)
    elif need == needs.TIMER_QUEUE_READ:
        file = engine.queues.files[0]
        file.existing(offset // file.segment_bytes)
    elif need == needs.LEVEL_READ:
        engine.map_level(offset)
    elif need == needs.TOPIC:
        engine.row_of_message(offset)
    elif need == needs.CANCELLED_ROOM:
        engine.cancelled.grow(engine.world.fire_lock, CANCELLED_GROWTH)
    elif need == needs.DAMAGED_TIMERLOG:
        leave_slot(engine, offset)
    elif need == needs.LOST:
        pass_lost(engine, engine.services[service])
    elif need == needs.BAD_ENTRY:
        pass_timer_entry(engine, offset)


def _map_units(engine: Engine, number: int, offset: int) -> None:
    """Map a segment of units; one that retention removed meanwhile is needed no more."""
    try:
        engine.timerlog.existing(number)
    except CorruptStoreError:
        if number in engine.timerlog.numbers:
            raise
        if offset >= engine.world.cleaning.timerlog_start:
            leave_slot(engine, offset)
