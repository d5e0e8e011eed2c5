"""Looking at a range of the timer wheel: its used slots."""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.record import Words
from timerstore.tables.view import StoreView
from timerstore.tables.wheel import emptied, misplaced
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NO_UNIT
from timerstore.validation.facts import SLOTS
from timerstore.validation.findings import Findings, Flags

WHEEL: Final = "timerwheel"
_WALK_MAX: Final = 10_000_000


def look_at_slots(findings: Findings, start: int, stop: int) -> None:
    """Look at the used slots with indexes in [start, stop). O(slots)."""
    view = findings.scope.view
    slots, used = view.reader.slots, view.reader.used_slots
    indexes = used[(used >= start) & (used < stop)]
    if not len(indexes):
        return
    fields = np.array(slots[indexes], fmt.SLOT)
    names = ("time", "first", "last", "count")
    time, first, last, count = (fields[name].astype(np.int64) for name in names)
    held, wrong = ~emptied(fields), misplaced(indexes, fields, len(slots))
    at = indexes * fmt.SLOT_BYTES + fmt.SLOT_TIME_AT
    reason = "the slot's time does not belong to its index"
    torn = np.zeros(len(at), np.bool_)
    findings.judge("slot_place", wrong[held], WHEEL, at[held], reason, torn[held])
    findings.tally.counts["slots"] += int(held.sum())
    kept = held & ~wrong
    if view.cut.is_open:
        last, count = _before(view, findings.scope.units_stop, last, count, kept)
    kept &= last != NO_UNIT
    findings.tell(
        SLOTS,
        slot=time[kept],
        ring_index=indexes[kept],
        first_unit=first[kept],
        last_unit=last[kept],
        stored_count=count[kept],
    )


def _before(
    view: StoreView, stop: int, last: Words, count: Words, kept: Flags
) -> tuple[Words, Words]:
    """Take slots back to before the end of the units that count, as opening does after a kill.

    The wheel is written before the checkpoint, so it may know units that the checkpoint does not.
    """
    log, last, count = view.reader.timerlog, last.copy(), count.copy()
    for i in np.flatnonzero(kept & (last >= stop)).tolist():
        offset, units = int(last[i]), int(count[i])
        for _ in range(_WALK_MAX):
            data = log.read(offset, fmt.UNIT_BYTES) if offset >= stop else b""
            if len(data) < fmt.UNIT_BYTES:  # an older checkpoint may name units that were removed
                break
            unit = np.frombuffer(data, fmt.UNIT)[0]
            before = int(unit["prev_pos"])
            if int(unit["size"]) != fmt.UNIT_BYTES or before >= offset:
                break
            units += 1 if int(unit["magic"]) & fmt.UNIT_DELETE else -1
            offset = before
        last[i], count[i] = offset, units
    return last, count
