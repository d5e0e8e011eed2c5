"""Units of hops, written by hand into an open store whose services stand still."""

from __future__ import annotations

from typing import Any, Final

from tests.kernels import kernel
from timerstore import TimerStore
from timerstore.jit.record import acting_as
from timerstore.services.world.state import ENQUEUE_PUT
from timerstore.services.world.world import World
from timerstore.tables import read_table
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NewUnit, next_unit_offset, put_timerlog_blank, put_unit
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.wheel.timerwheel import link_unit, slot_last

UNIT_COLUMNS: Final = (
    *("offset", "magic", "is_roll", "is_hop", "due_ms", "slot", "message_offset", "message_size"),
    "topic_hash",
)


def hop(store: TimerStore, id: str) -> dict[str, Any]:
    """Link one more unit of a far timer, a hop after its last one; return the row of that unit."""
    store.flush()
    timer = next(row for row in _rows(store, "timers") if row["id"] == id)
    message = timer["message_offset"]
    last = [row for row in _rows(store, "units") if row["message_offset"] == message][-1]
    engine = store.core.engine
    settings = engine.world.settings
    ms = last["due_ms"] + settings.hop_slots * settings.precision_ms
    assert last["is_roll"] and ms <= timer["due_ms"], "it does not hop"
    magic = last["magic"] | fmt.UNIT_HOP
    if ms // settings.precision_ms == timer["due_ms"] // settings.precision_ms:
        magic &= ~fmt.UNIT_ROLL
    of_message = message, last["message_size"], last["topic_hash"], timer["due_ms"]
    # The hops cursor, as if the slot that it hops from were claimed already.
    engine.hopped_from = min(engine.hopped_from, engine.timerlog.end)
    engine.hopped_until = max(engine.hopped_until, last["slot"] + 1)
    with acting_as(ENQUEUE_PUT):
        _link(engine.world, last["due_ms"], ms, magic, *of_message)
    store.flush()
    return _rows(store, "units")[-1]


def _rows(store: TimerStore, table: str) -> list[dict[str, Any]]:
    columns = None if table == "timers" else UNIT_COLUMNS
    rows: list[dict[str, Any]] = read_table(store.path, table, columns).to_pylist()
    return rows


@kernel
def _link(
    world: World,
    own_ms: int,
    ms: int,
    magic: int,
    message: int,
    size: int,
    topic_hash: int,
    due_ms: int,
) -> None:
    precision, log = world.settings.precision_ms, world.timerlog
    slot, offset = ms // precision, next_unit_offset(log.segment_bytes, log.end)
    if offset != log.end and log.end % log.segment_bytes != 0:
        put_timerlog_blank(segment_at(log, log.end), log.end % log.segment_bytes)
    unit = NewUnit(
        slot_last(world.wheel, slot),
        magic,
        own_ms,
        ms,
        slot * precision,
        message,
        size,
        topic_hash,
        due_ms,
    )
    put_unit(segment_at(log, offset), offset % log.segment_bytes, offset, unit)
    link_unit(world.wheel, slot, offset, 1)
    world.timerlog.end = offset + fmt.UNIT_BYTES
