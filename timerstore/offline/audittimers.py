"""Auditing the timer index: units against their messages, slots against their chains."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np

from timerstore.offline.auditlog import LogAudit
from timerstore.offline.report import Audit
from timerstore.tables.places import copied_sources
from timerstore.tables.wheel import emptied, misplaced
from timerstore.timelog import audit as kernels
from timerstore.timelog.disk import Disk
from timerstore.timelog.format import (
    BLANK_MAGIC,
    SLOT_BYTES,
    SLOT_TIME_AT,
    TIMERLOG_BLANK_BYTES,
    UNIT_BYTES,
)
from timerstore.timelog.jit.record import Words
from timerstore.timelog.message import FOUND_WORDS
from timerstore.timelog.reader import StoreReader
from timerstore.wheel.audit import (
    CHAIN_COLUMNS,
    CHAIN_COUNT,
    CHAIN_CUT,
    CHAIN_OFFSET,
    CHAIN_VERDICT,
    CHAIN_VERDICTS,
    CHAIN_WHOLE,
    audit_chains,
)
from timerstore.wheel.checksums import PAGE_BYTES, SUMS_FILE, WheelSums

Flags = np.ndarray[Any, Any]
_CHUNK_UNITS: Final = 65_536
_NAMED_MAX: Final = 100
_SEGMENTS_MAX: Final = 30_000


def judge_units(
    reader: StoreReader,
    start: int,
    stop: int,
    read_slot: int,
    log_end: int,
    *,
    window_ms: int = 0,
) -> Iterator[Words]:
    """Yield the units in [start, stop), judged: see `timelog/audit.py`. O(units).

    `read_slot`: R. `log_end`: where the commit log ends. `window_ms`: a broker's roll window, where
    it is known. The arrays are overwritten by the next step.
    """
    log, messages = reader.timerlog, reader.commitlog
    floor = 0 if reader.checkpoint is None else reader.checkpoint.floor_offset
    units = np.zeros((_CHUNK_UNITS, kernels.AUDIT_COLUMNS), np.int64)
    found, scratch = np.zeros(FOUND_WORDS, np.int64), np.zeros(64, np.uint8)
    state = np.array([start, 0, 0], np.int64)
    while True:
        count = kernels.audit_units(
            log.table,
            messages.table,
            log.start,
            stop,
            read_slot,
            messages.start,
            log_end,
            floor,
            reader.precision_ms,
            reader.sizes.hop_ms,
            window_ms,
            reader.store_tag,
            units,
            found,
            scratch,
            state,
        )
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
            units[count, kernels.AUDIT_VERDICT] = kernels.NO_MESSAGE
            state[0] = units[count, kernels.AUDIT_OFFSET] + UNIT_BYTES
            state[1] = 0
            count += 1
        elif number >= int(state[0]) // segments.segment_bytes:  # a gap, named by the reader
            state[1] = 0
            following = [each for each in segments.numbers if each > number]
            state[0] = following[0] * segments.segment_bytes if following else stop
        if count:
            yield units[:count]


class TimerAudit:
    """Reads the timer log from end to end, and walks every chain."""

    def __init__(self, audit: Audit, log: LogAudit) -> None:
        """`log`: the audited commit log."""
        self.audit, self.reader, self.log = audit, audit.reader, log
        self.units = audit.reader.timerlog
        self.units.open_count_max = _SEGMENTS_MAX
        self.end = self.units.start
        self.unit_count = self.slot_count = 0
        checkpoint = self.reader.checkpoint
        self.read_slot = 0
        self._flushed = 1 << 62
        self._queue_index = self._floor = 0
        if checkpoint is not None:
            self.read_slot = checkpoint.read_ms // self.reader.precision_ms
            self._queue_index = checkpoint.queue_index
            self._floor = checkpoint.floor_offset
            if not checkpoint.by_broker:
                self._flushed = checkpoint.timerlog_flushed
        self._scratch = np.zeros(64, np.uint8)
        self._broker_units = False

    def run(self) -> None:
        """Audit the chains, then all units, then that each timer has its unit."""
        self.audit.faults(self.units.faults)
        used_end = self.units.used_end()
        if not self.audit.by_broker and self._flushed < 1 << 62:
            used_end = max(used_end, min(self._flushed, self.units.files_end))
        visited = np.zeros((used_end - self.units.start) // UNIT_BYTES + 2, np.uint8)
        for number in self.units.numbers[:_SEGMENTS_MAX]:
            self.units.map(number)
        self._check_slots(used_end, visited)
        if not self.audit.by_broker:
            self._check_pages()
        covered = np.zeros(self.log.timer_queue_end + 1, np.bool_)
        first_index = self._check_units(used_end, visited, covered)
        self._check_blanks()
        if first_index >= 0 and not self._broker_units and not self.audit.by_broker:
            self._check_covered(first_index, covered)

    # --- units

    def _check_units(self, used_end: int, visited: Flags, covered: Flags) -> int:
        """Judge all units; return the queue index of the first's message, or −1."""
        first_index, log_end = -1, self.log.end
        for part in judge_units(self.reader, self.units.start, used_end, self.read_slot, log_end):
            self.unit_count += len(part)
            self.end = int(part[-1, kernels.AUDIT_OFFSET]) + UNIT_BYTES
            self._broker_units |= bool(part[:, kernels.AUDIT_BROKER].any())
            first_index = self._take(part, visited, covered, first_index)
            self.audit.step(log_end - self.log.log.start + self.end - self.units.start)
        return first_index

    @cached_property
    def _copied(self) -> Words:
        """The messages that were copied, fired or rolled; another pass, and rarely needed."""
        return copied_sources(self.reader)

    def _take(self, part: Words, visited: Flags, covered: Flags, first_index: int) -> int:
        offsets, verdicts = part[:, kernels.AUDIT_OFFSET], part[:, kernels.AUDIT_VERDICT]
        early = np.flatnonzero(verdicts == kernels.TOO_EARLY)
        if len(early):
            # What recovery found to be copied waits in R's slot, to be passed over; a handover
            # moves that, and what is superseded, to a passed slot. A copy of which nothing can be
            # read may be the one.
            messages = part[early, kernels.AUDIT_MESSAGE]
            done = (messages < self._floor) | self.log.has_unread
            done[~done] = np.isin(messages[~done], self._copied)
            verdicts[early[done]] = kernels.SOUND
        # A unit that differs from a message that is damaged, and named, is not damaged itself.
        differs = np.isin(verdicts, kernels.DIFFERS)
        verdicts[differs & self.log.damaged.contains(part[:, kernels.AUDIT_MESSAGE])] = (
            kernels.SOUND
        )
        for i in np.flatnonzero(verdicts)[:_NAMED_MAX].tolist():
            behind = int(offsets[i]) >= self._flushed or self.audit.by_broker
            reason = kernels.VERDICTS[int(verdicts[i])]
            if verdicts[i] == kernels.REMOVED and part[i, kernels.AUDIT_BROKER]:
                reason += ": a broker removes segments by their age, and drops such a timer"
                self.audit.warning("timerlog", int(offsets[i]), reason)
                continue
            self.audit.torn("timerlog", int(offsets[i]), reason, behind=behind)
        live = (part[:, kernels.AUDIT_UNIT_MS] // self.reader.precision_ms >= self.read_slot) & (
            (verdicts == 0) & (offsets + UNIT_BYTES <= self._flushed)
        )
        live &= part[:, kernels.AUDIT_MESSAGE] >= self._floor  # else a handover may have cut it off
        unchained = live & (visited[(offsets - self.units.start) // UNIT_BYTES] == 0)
        for i in np.flatnonzero(unchained)[:_NAMED_MAX].tolist():
            reason = "no slot leads to this unit: its timer would not fire"
            if self.audit.by_broker or part[i, kernels.AUDIT_BROKER]:
                self.audit.warning("timerlog", int(offsets[i]), reason)
            else:
                self.audit.problem("timerlog", int(offsets[i]), reason)
        indexes = part[:, kernels.AUDIT_QUEUE_INDEX]
        indexes = indexes[(indexes >= 0) & (indexes < len(covered))]
        covered[indexes] = True
        if first_index < 0 and len(indexes):
            first_index = int(indexes[0])
        return first_index

    def _check_blanks(self) -> None:
        """Check how each full segment of the timer log is closed, and that zeros follow the end."""
        segment_bytes = self.units.segment_bytes
        position = 0
        while UNIT_BYTES + TIMERLOG_BLANK_BYTES <= segment_bytes - position:
            position += UNIT_BYTES
        left = segment_bytes - position
        blank = struct.pack(">iqI", left, 0, BLANK_MAGIC).ljust(left, b"\0")[:left]
        if left < TIMERLOG_BLANK_BYTES:
            blank = bytes(left)
        for number in self.units.numbers:
            base = number * segment_bytes
            tail = self.units.read(base + position, left)
            is_last = base + segment_bytes >= self.end
            if tail == blank or (is_last and not any(tail)):
                continue
            strange = np.frombuffer(tail, np.uint8) != np.frombuffer(blank, np.uint8)
            at = base + position + int(np.argmax(strange))
            behind = at >= self._flushed or self.audit.by_broker
            self.audit.torn("timerlog", at, "the segment is not closed", behind=behind)

    def _check_covered(self, first_index: int, covered: Flags) -> None:
        """Check that every entry of the timer topic's queue before Q has its unit."""
        stop = min(self._queue_index, self.log.timer_queue_end)
        missing = np.flatnonzero(~covered[first_index:stop]) + first_index
        for index in missing[:_NAMED_MAX].tolist():
            if self.log.has_timer(index):
                reason = f"entry {index} of the timer topic's queue has no unit"
                self.audit.problem("timerlog", self.end, reason)

    # --- slots

    def _check_slots(self, used_end: int, visited: Flags) -> None:
        """Check every used slot, and walk its chain."""
        slots, audit = self.reader.slots, self.audit
        path = self.reader.path / "timerwheel"
        if not path.is_file():
            audit.torn("timerwheel", 0, "there is no wheel", behind=self.unit_count == 0)
            return
        expected = 2 * self.reader.sizes.wheel_slot_count * SLOT_BYTES
        size = path.stat().st_size
        if size != expected:
            reason = f"the wheel has {size} bytes where {expected} were expected"
            audit.problem("timerwheel", min(size, expected), reason)
        indexes = self.reader.used_slots
        used = slots[indexes]
        wrong = misplaced(indexes, used, len(slots))
        for i in np.flatnonzero(wrong)[:_NAMED_MAX].tolist():
            reason = f"the slot's time, {used['time'][i]}, does not belong here"
            audit.problem("timerwheel", int(indexes[i]) * SLOT_BYTES + SLOT_TIME_AT, reason)
        indexes = indexes[~emptied(used) & ~wrong]
        self.slot_count = len(indexes)
        if not len(indexes):
            return
        chains = np.zeros((len(indexes), CHAIN_COLUMNS), np.int64)
        audit_chains(
            self.units.table,
            slots.view(np.uint8),
            indexes,
            self.units.start,
            used_end + UNIT_BYTES,
            1 << 62 if self.audit.cleaned else self.read_slot,
            self.reader.precision_ms,
            visited,
            chains,
            self._scratch,
        )
        self._judge_chains(indexes, chains)

    def _check_pages(self) -> None:
        """Check pages of the wheel in which no slot is wrong against the checksums beside it."""
        path, wheel = self.reader.path, self.reader.slots.view(np.uint8)
        sums = WheelSums(Disk(), path / "config" / SUMS_FILE, -(-len(wheel) // PAGE_BYTES))
        page = sums.find_damaged(wheel) if len(wheel) else -1
        if self.reader.is_open and not self.reader.steady.holds():
            return  # somebody writes, and the checksums may be those of a later checkpoint
        named = [*self.audit.problems, *self.audit.warnings]
        known = {each.offset // PAGE_BYTES for each in named if each.file == "timerwheel"}
        if page >= 0 and page not in known:
            reason = "the checksum of this page does not match"
            self.audit.problem("timerwheel", page * PAGE_BYTES, reason)

    def _judge_chains(self, indexes: Words, chains: Words) -> None:
        audit, used = self.audit, self.reader.slots[indexes]
        verdicts = chains[:, CHAIN_VERDICT]
        broken = (verdicts != CHAIN_WHOLE) & (verdicts != CHAIN_CUT)
        for i in np.flatnonzero(broken)[:_NAMED_MAX].tolist():
            verdict, offset = int(verdicts[i]), int(chains[i, CHAIN_OFFSET])
            reason = f"{CHAIN_VERDICTS[verdict]}, at {offset} of the timer log"
            behind = audit.by_broker
            audit.torn("timerwheel", int(indexes[i]) * SLOT_BYTES, reason, behind=behind)
        counts = used["count"].astype(np.int64)
        wrong = (verdicts == CHAIN_WHOLE) & (counts != chains[:, CHAIN_COUNT])
        for i in np.flatnonzero(wrong)[:_NAMED_MAX].tolist():
            reason = f"the slot counts {counts[i]}, its chain {chains[i, CHAIN_COUNT]}"
            audit.warning("timerwheel", int(indexes[i]) * SLOT_BYTES, reason)
