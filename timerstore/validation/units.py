"""Looking at a range of the timer log, its units beside their messages, or of the wheel."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from timerstore.jit.record import Flags
from timerstore.tables.records import emptied, misplaced
from timerstore.tables.timers import hopped
from timerstore.tables.view import StoreView
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.bytes.unit import NO_UNIT, UNIT_BAD_CRC, UNIT_BROKEN
from timerstore.timelog.reading import audit as kernels
from timerstore.timelog.reading.audit import Audited, AuditedUnits
from timerstore.timelog.reading.reader import Fault, StoreReader
from timerstore.validation.entries import is_damaged
from timerstore.validation.facts import (
    LOADS,
    NO_MESSAGE,
    ROLLS,
    SLOTS,
    UNITS,
    Findings,
    fold_identity,
    hops_to_come,
)

_LOG: Final = "timerlog"
_CHUNK_UNITS: Final = 8_192
_LEAD_SLOTS: Final = 8
"""How far the services read ahead of the clock at most."""
_RULE_OF: Final = {
    UNIT_BROKEN: "unit_sound",
    UNIT_BAD_CRC: "unit_sound",
    kernels.NO_MESSAGE: "unit_message",
    kernels.REMOVED: "unit_message",
    kernels.OTHER_SIZE: "unit_size",
    kernels.OTHER_TOPIC: "unit_topic",
    kernels.OTHER_KIND: "unit_kind",
    kernels.OTHER_TIME: "unit_slot",
    kernels.OTHER_SLOT: "chain",
}
"""Which rule a verdict is about; TOO_EARLY is judged where the unit meets its message's copies."""
_RULES: Final = sorted(set(_RULE_OF.values()))


def look_at_units(findings: Findings, start: int, stop: int) -> None:
    """Look at the units that begin in [start, stop) of the timer log. O(units)."""
    scope, view = findings.scope, findings.scope.view
    parts = judge_units(
        view.reader, start, stop, view.read_slot, view.log_stop, window_ms=scope.window_ms
    )
    for part in parts:
        _judge(findings, part)
        if not scope.only_bytes:
            _tell(findings, part[: np.searchsorted(part.offset, scope.units_stop)])
    _judge_blanks(findings, start, stop)


def judge_units(
    reader: StoreReader,
    start: int,
    stop: int,
    read_slot: int,
    log_end: int,
    *,
    window_ms: int = 0,
) -> Iterator[AuditedUnits]:
    """Yield the units in [start, stop), judged: see `timelog/reading/audit.py`. O(units).

    `read_slot`: the read cursor. `log_end`: where the commit log ends. `window_ms`: a broker's roll
    window, if it is known. The arrays are overwritten by the next step.
    """
    log, messages = reader.timerlog, reader.commitlog
    store = Audited(
        start=log.start,
        from_slot=read_slot,
        log_start=messages.start,
        log_end=log_end,
        floor=0 if reader.checkpoint is None else reader.checkpoint.floor,
        precision_ms=reader.precision_ms,
        hop_ms=reader.sizes.hop_ms,
        window_ms=window_ms,
        tag=reader.store_tag,
    )
    units = AuditedUnits.room(_CHUNK_UNITS)
    found, state = MessageParts(), np.array([start, 0, 0], np.int64)
    while True:
        count = kernels.audit_units(log.table, messages.table, stop, store, units, found, state)
        wanted = int(state[1])
        if wanted == 0:
            if count:
                yield units[:count]
            if count < len(units):
                return
            continue
        segments = log if wanted == 1 else messages
        number = int(state[2]) // segments.segment_bytes
        if number in segments.numbers:
            segments.map(number)
            state[1] = 0
        elif wanted == 2:
            units.status[count] = kernels.NO_MESSAGE
            state[0] = units.offset[count] + fmt.UNIT_BYTES
            state[1] = 0
            count += 1
        elif number >= int(state[0]) // segments.segment_bytes:  # a gap, named by the reader
            state[1] = 0
            following = [each for each in segments.numbers if each > number]
            state[0] = following[0] * segments.segment_bytes if following else stop
        if count:
            yield units[:count]


def _judge(findings: Findings, part: AuditedUnits) -> None:
    scope, tally = findings.scope, findings.tally
    offsets, verdicts = part.offset, part.status
    tally.counts["units"] += len(part)
    for rule in _RULES:
        tally.check(rule, len(part))
    if not verdicts.any():
        return
    judged = np.isin(verdicts, list(_RULE_OF))
    # A unit that differs from a message that is damaged, and named, is not damaged itself.
    differs = np.isin(verdicts, kernels.DIFFERS) & judged
    judged[differs] = ~is_damaged(scope.view, part.message[differs])
    torn = scope.torn_units(offsets)
    # A broker removes segments by their age, and drops such a timer.
    torn |= (verdicts == kernels.REMOVED) & (part.by_broker != 0)
    for verdict in np.unique(verdicts[judged]).tolist():
        wrong = judged & (verdicts == verdict)
        reason = kernels.VERDICTS[verdict]
        findings.fail(_RULE_OF[verdict], _LOG, offsets[wrong], reason, torn[wrong])


def _tell(findings: Findings, part: AuditedUnits) -> None:
    view = findings.scope.view
    read_slot = view.read_slot
    offsets, verdicts = part.offset, part.status
    sound = ~np.isin(verdicts, (UNIT_BROKEN, UNIT_BAD_CRC))
    slots = part.ms // view.reader.precision_ms
    is_delete = part.magic & fmt.UNIT_DELETE != 0
    is_roll = part.magic & fmt.UNIT_ROLL != 0
    has_hopped = _has_hopped(view, part)
    superseded = (part.message < view.floor) | has_hopped
    known = part.queue_index >= 0
    # What is superseded is moved to a passed slot by a handover.
    early = (verdicts == kernels.TOO_EARLY) & ~superseded & known
    findings.tell(
        UNITS,
        slot=slots[sound],
        unit=offsets[sound],
        prev=part.prev[sound],
        message=np.where(known, part.message, NO_MESSAGE)[sound],
        who=fold_identity(part.high, part.low)[sound],
        is_delete=is_delete[sound],
        is_roll=is_roll[sound],
        is_superseded=superseded[sound],
        is_waiting=((slots >= read_slot) & ~has_hopped)[sound],
        is_early=early[sound],
        is_hop=(part.magic & fmt.UNIT_HOP != 0)[sound],
        is_by_broker=(part.by_broker != 0)[sound],
    )
    if findings.scope.measures:
        ahead = sound & (slots >= read_slot) & ~superseded
        _measure(findings, part[ahead & ~is_delete], read_slot)
        _measure_rolls(findings, part[ahead & is_roll])


def _has_hopped(view: StoreView, part: AuditedUnits) -> Flags:
    """Tell of which units the timer has hopped on, so that a later one counts."""
    message, last = hopped(view)
    if not len(message):
        return np.zeros(len(part), np.bool_)
    at = np.minimum(np.searchsorted(message, part.message), len(message) - 1)
    found: Flags = (message[at] == part.message) & (last[at] != part.offset)
    return found


def _measure(findings: Findings, live: AuditedUnits, read_slot: int) -> None:
    """Note what live units ahead weigh, and in which slot their messages say that they are."""
    reader = findings.scope.view.reader
    precision_ms = reader.precision_ms
    slots, due_ms = live.ms // precision_ms, live.message_due_ms
    is_roll = live.magic & fmt.UNIT_ROLL != 0
    own = np.where(due_ms >= 0, due_ms, live.ms) // precision_ms
    expected = own.copy()
    hop, window = reader.sizes.hop_ms // precision_ms, reader.sizes.roll_window_slots or 0
    ours = live.by_broker == 0
    if hop:
        # The slot was chosen from max(now, the read cursor, the claim cursor − 1). The unit says
        # only when that was; the read cursor may have been ahead of the clock, which was set back,
        # say: up to where it is now.
        base = np.maximum(live.write_ms // precision_ms, 0)
        most = np.maximum((own - base - window) // hop + 1, 0)
        last_base = np.maximum(base, read_slot) + _LEAD_SLOTS
        least = np.maximum((own - last_base - window) // hop + 1, 0)
        hops, off_grid = np.divmod(own - slots, hop)
        fits = (off_grid == 0) & (hops >= least) & (hops <= most)
        expected = np.where(is_roll & ours, np.where(fits, slots, own - least * hop), own)
    # A hop's unit does not say from where it hopped: any slot on the grid is as good.
    unsaid = is_roll & ~(ours & (hop > 0) & (live.magic & fmt.UNIT_HOP == 0))
    expected[unsaid] = slots[unsaid]
    # Of what came when its slot was claimed already, own and slot lie between the read cursor and
    # the claim cursor.
    claimed = (np.maximum(own, slots) < read_slot + _LEAD_SLOTS) & (own != slots)
    late = ~is_roll & ((own < read_slot) | claimed)
    findings.tell(
        LOADS,
        slot=slots,
        message=live.message,
        size=live.size,
        topic_hash=live.topic_hash & 0xFFFFFFFF,
        belongs=expected,
        is_late=late,
    )


def _measure_rolls(findings: Findings, rolls: AuditedUnits) -> None:
    """Count what rolls have still to do; a cancelled timer rolls on too, and so does its delete."""
    reader = findings.scope.view.reader
    precision_ms = reader.precision_ms
    hop, window = reader.sizes.hop_ms // precision_ms, reader.sizes.roll_window_slots or 0
    own = np.where(rolls.message_due_ms >= 0, rolls.message_due_ms, rolls.ms) // precision_ms
    left = np.maximum(own - rolls.ms // precision_ms, 0)
    count = hops_to_come(-(-left // hop), hop, window) if hop else np.ones(len(left), np.int64)
    waits = np.where(rolls.magic & fmt.UNIT_DELETE != 0, -1, 1)
    # A broker appends the message again.
    again = np.where(rolls.by_broker == 0, 0, rolls.size + fmt.ENTRY_BYTES)
    findings.tell(ROLLS, hops=count, timers=waits, bytes=again + fmt.UNIT_BYTES)


def _judge_blanks(findings: Findings, start: int, stop: int) -> None:
    """Judge how each segment that is full in [start, stop) is closed."""
    scope, log = findings.scope, findings.scope.view.reader.timerlog
    room = log.segment_bytes - fmt.TIMERLOG_BLANK_BYTES
    position = room // fmt.UNIT_BYTES * fmt.UNIT_BYTES
    left = log.segment_bytes - position
    blank = struct.pack(">iqI", left, 0, fmt.BLANK_MAGIC).ljust(left, b"\0")
    for number in log.numbers:
        base = number * log.segment_bytes
        if not start <= base + position < stop:
            continue
        findings.tally.check("closed", 1)
        tail = log.read(base + position, left)
        is_last = base + log.segment_bytes >= scope.view.units_stop
        if tail == blank or (is_last and not any(tail)):
            continue
        strange = np.frombuffer(tail, np.uint8) != np.frombuffer(blank, np.uint8)
        at = base + position + int(np.argmax(strange))
        torn = bool(scope.torn_units(np.array([at]))[0])
        findings.fault("closed", Fault(_LOG, at, "the segment is not closed"), torn=torn)


WHEEL: Final = "timerwheel"


def look_at_slots(findings: Findings, start: int, stop: int) -> None:
    """Look at the used slots with indexes in [start, stop). O(slots)."""
    view = findings.scope.view
    slots, used = view.slots, view.used_slots
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
    kept &= last != NO_UNIT
    findings.tell(
        SLOTS,
        slot=time[kept],
        ring_index=indexes[kept],
        first_unit=first[kept],
        last_unit=last[kept],
        stored_count=count[kept],
    )
