"""Deletes beside their timers, because a broker looks for them there."""

from __future__ import annotations

from timerstore.services.broker.full_files import NamedDelete
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NO_UNIT, NewUnit


def link_delete(engine: Engine, unit_ms: int, delete: NamedDelete, now_ms: int) -> None:
    """Write a plain delete unit at a timer's time, while no service runs. Raises StoreFullError."""
    precision_ms = engine.precision_ms
    slot = unit_ms // precision_ms
    held = engine.wheel.get(slot)
    unit = NewUnit(
        NO_UNIT if held is None else held.last,
        fmt.UNIT_PLAIN | fmt.UNIT_DELETE,
        now_ms // precision_ms * precision_ms,
        unit_ms,
        slot * precision_ms,
        delete.message,
        delete.size,
        delete.topic_hash,
        unit_ms,
    )
    engine.wheel.link(slot, engine.timerlog.append(unit), -1)
