"""The timer index that an opening goes on with: empty, cut to the checkpoint, or a broker's."""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import Words
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.read_units import all_units
from timerstore.services.opening.recover_log import ScannedLog
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import Units
from timerstore.timelog.files.checkpoint import Stamp, TimerCheckpoint
from timerstore.timelog.timerlog import WALK_FULL, scan_units
from timerstore.wheel.timerwheel import WRONG_PAGE_REASON

CHUNK_ROWS: Final = 65_536
LEFT_BEHIND_REASON: Final = "a broker has linked a timer to a slot that it had passed"


def empty_index(engine: Engine, first_index: int, floor: int) -> int:
    """Forget all units and slots; return the queue cursor: the first message from the floor on.

    `first_index`: that of the first timer message which was read.
    """
    timerlog = engine.timerlog
    timerlog.zero_from(0)
    timerlog.end = timerlog.start
    engine.wheel.clear()
    timerlog.prepare()
    kept = engine.queues.first_kept(0, max(floor, engine.commitlog.start))
    return max(first_index, kept)


def cut_index(engine: Engine, checkpoint: TimerCheckpoint, stamp: Stamp | None) -> int:
    """Take units back to the checkpoint, have slots lead to them; return its queue cursor.

    Units behind it are not replayed: their slots were chosen by a read cursor that is gone.
    `stamp`: of a clean close, whose slots hold unless a page is damaged, else None. O(units) then.
    """
    timerlog, end, damaged = engine.timerlog, checkpoint.timerlog_flushed, None
    timerlog.end = end
    if stamp is None:
        timerlog.zero_from(end)
    else:
        damaged = engine.wheel.find_damaged(stamp)
    if damaged is not None and damaged >= 0:
        engine.damage.note("timerwheel", damaged, WRONG_PAGE_REASON)
    if damaged != -1:
        engine.wheel.clear()
        from_slot = checkpoint.read_ms // engine.precision_ms
        for units in all_units(engine, timerlog.start, end, from_slot):
            engine.wheel.revise(units, engine.precision_ms)
    top = checkpoint.read_ms // engine.precision_ms + len(engine.wheel.slots)
    engine.wheel.off_grid_until = min(engine.wheel.off_grid_until, top)
    timerlog.prepare()
    return min(checkpoint.queue_index, engine.queues.next_index(0))


def take_brokers_units(engine: Engine, checkpoint: TimerCheckpoint, log: ScannedLog) -> int:
    """Take a broker's units as they are, up to the first bad one; return the queue cursor.

    Slots are made anew: what a broker that was killed has left in them may be anything. Raises
    CorruptStoreError if the broker has left a timer behind its read cursor.
    """
    copied = np.unique(np.concatenate([*log.origins, log.broker_origins]))
    timerlog = engine.timerlog
    for number in timerlog.numbers:
        timerlog.ensure(number)
    units = Units.room(CHUNK_ROWS)
    where = np.array([timerlog.start, 0], np.int64)
    linked, is_more = -1, True
    engine.wheel.clear()
    while is_more:
        with timerlog.reading() as table:
            count = scan_units(
                *(table, timerlog.files_end, -1, engine.precision_ms, engine.hop_ms, units, where)
            )
        _find_left_behind(engine, units[:count], checkpoint.read_ms, copied)
        whole = units.message[:count] + units.size[:count] <= log.end
        kept = count if whole.all() else int(np.argmin(whole))
        if kept:
            linked = max(linked, _revise_slots(engine, units[:kept], checkpoint))
        if kept < count:
            where[0] = units.offset[kept]
        is_more = kept == count and bool(where[1] == WALK_FULL)
    timerlog.end = int(where[0])
    timerlog.zero_from(timerlog.end)
    timerlog.prepare()
    queue_index = checkpoint.queue_index if linked < 0 else linked + 1
    return min(queue_index, engine.queues.next_index(0))


def _find_left_behind(engine: Engine, units: Units, read_ms: int, copied: Words) -> None:
    """Raise CorruptStoreError if a timer came to a slot that the broker had passed by then.

    `copied`: the messages that have a copy, sorted.
    """
    timerlog = engine.timerlog
    kept = (units.ms < read_ms) & (units.message >= engine.commitlog.start)
    kept &= (units.magic & fmt.UNIT_DELETE == 0) & ~np.isin(units.message, copied)
    for offset in units.offset[kept].tolist():
        if timerlog.view(offset)[fmt.UNIT_DELTA_AT] & 0x80:  # it is negative: written that late
            raise CorruptStoreError("timerlog", offset, LEFT_BEHIND_REASON)


def _revise_slots(engine: Engine, units: Units, checkpoint: TimerCheckpoint) -> int:
    """Have slots from the read cursor on lead to these; return the last queue index, or −1."""
    engine.wheel.revise(units[units.ms >= checkpoint.read_ms], engine.precision_ms)
    there = units[(units.message >= engine.commitlog.start) & (units.magic & fmt.UNIT_HOP == 0)]
    if not len(there):
        return -1
    message = int(there.message.max())  # a broker that was killed goes back, and links again
    return int.from_bytes(engine.commitlog.read(message + fmt.MESSAGE_QUEUE_INDEX_AT, 8), "big")
