"""Where a timer's messages, units, copies meet: what became of it?"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.ground.amounts import MINUTE_MS
from timerstore.jit.record import Words
from timerstore.timelog.reading.copies import (
    ROLE_COPY,
    ROLE_DELETE,
    ROLE_LEVEL,
    ROLE_SOURCE,
    ROLE_TAKEN,
    match_copies,
)
from timerstore.validation import notes
from timerstore.validation.evidence import Evidence
from timerstore.validation.findings import Flags, fail
from timerstore.validation.lost import is_lost, last_filler
from timerstore.validation.measured import DUE, Measured
from timerstore.validation.plan import Scope

_LOG: Final = "commitlog"
_UNITS: Final = "timerlog"
_TOPIC_MASK: Final = 0xFFFFFFFF


class TimerMeeting:
    """All messages of one bucket's timers, sorted by offset, with the units that point to them."""

    def __init__(
        self, scope: Scope, timers: Words, copies: Words, links: Words, tally: Evidence
    ) -> None:
        """`timers`, `copies`, `links`: notes."""
        self.scope, self.tally, self.view = scope, tally, scope.view
        messages = np.concatenate([timers, copies[:, : notes.COPY_ORIGIN]])
        order = np.argsort(messages[:, notes.TIMER_OFFSET], kind="stable")
        messages = messages[order]
        self.key, self.offset = messages[:, notes.TIMER_KEY], messages[:, notes.TIMER_OFFSET]
        self.origin = np.full(len(messages), -1, np.int64)
        self.origin[order >= len(timers)] = copies[order[order >= len(timers)] - len(timers), -1]
        self.due_ms = messages[:, notes.TIMER_DUE_MS]
        self.word = messages[:, notes.TIMER_WORD]
        self.rolls = (self.word >> notes.ROLLS_SHIFT) & notes.ROLLS_MAX
        kind = self.word & notes.KIND_BITS
        self.is_timer, self.is_delete = kind == notes.IS_TIMER, kind == notes.IS_DELETE
        self.is_fired, self.waits = kind == notes.IS_FIRED, kind <= notes.IS_DELETE
        self.is_level = kind == notes.IS_LEVEL
        self.ours = self._has(notes.TIMER_OURS)
        self.links = links[np.argsort(links[:, notes.LINK_UNIT], kind="stable")]
        self.salvaged_to = last_filler(self.view.reader)
        """What became of a message before that may have been lost, and covered."""

    def _has(self, bit: int) -> Flags:
        found: Flags = self.word & bit != 0
        return found

    def judge(self) -> None:
        """Judge all rules about timers. O(n log n)."""
        self._meet_units()
        self._meet_copies()
        self._judge_units()
        if self.scope.only_bytes:
            return
        self._judge_copies()
        self._judge_fate()

    def _fail(self, rule: str, wrong: Flags, reason: str, *, torn: bool = False) -> None:
        fail(self.tally, rule, _LOG, self.offset[wrong], reason, torn=torn)

    def _find(self, offsets: Words) -> Words:
        """Return where messages stand, −1 if there is no such message."""
        if not len(self.offset):
            return np.full(len(offsets), -1, np.int64)
        place = np.minimum(np.searchsorted(self.offset, offsets), len(self.offset) - 1)
        return np.where(self.offset[place] == offsets, place, -1)

    # --- who belongs to whom

    def _meet_units(self) -> None:
        """Count the units of each message; find those that wait in a slot ahead."""
        place = self._find(self.links[:, notes.LINK_MESSAGE])
        met = place >= 0
        self.link_place = place
        word = self.links[:, notes.LINK_UNIT]
        self.has_unit = np.bincount(place[met], minlength=len(self.offset)) > 0
        first = met & (word & notes.LINK_HOP == 0)
        self.first_count = np.bincount(place[first], minlength=len(self.offset))
        self.linked_by_broker = np.zeros(len(self.offset), np.bool_)
        self.linked_by_broker[place[met]] = word[met] & notes.LINK_BY_BROKER != 0
        waiting = met & (word & notes.LINK_WAITING != 0)
        self.waiting_count = np.bincount(place[waiting], minlength=len(self.offset))
        self.waiting = self.waiting_count > 0
        self.in_slot = self.waiting.copy()
        self.waiting |= self._has(notes.TIMER_UNLINKED)

    def _meet_copies(self) -> None:
        """Find the source of each copy, and count the copies of each source."""
        is_copy = self.is_fired | (self.waits & (self.rolls > 0))
        self.named = is_copy & (self.origin >= 0)
        self.source = np.where(self.named, self._find(self.origin), -1)
        nameless = is_copy & ~self.named
        self.by_broker = np.zeros(len(self.offset), np.bool_)
        if nameless.any():
            self._match(nameless)
        self.is_fired &= ~self._has(notes.TIMER_WITHOUT_DUE) | (self.source >= 0)
        found = self.source >= 0
        self.copy_count = np.bincount(self.source[found], minlength=len(self.offset))

    def _match(self, nameless: Flags) -> None:
        """Match what a broker copied, which does not say of what."""
        order = np.lexsort((self.offset, self.key))
        in_level = self.is_level | self._has(notes.TIMER_WITHOUT_DUE)
        role = np.zeros(len(order), np.int64)
        for chosen, bit in (
            (self.waits, ROLE_SOURCE),
            (nameless, ROLE_COPY),
            (self.is_delete, ROLE_DELETE),
            (in_level, ROLE_LEVEL),
            (self.source[self.source >= 0], ROLE_TAKEN),
        ):
            role[chosen] |= bit
        found = np.full(len(order), -1, np.int64)
        match_copies(self.key[order], self.rolls[order], role[order], found)
        matched = found >= 0
        self.source[order[matched]] = order[found[matched]]
        self.by_broker[order[found[matched]]] = True

    # --- rules

    def _judge_units(self) -> None:
        """Judge that each message of the timer topic has its unit."""
        self.tally.check("enqueued", int(self.waits.sum()))
        excused = self._has(notes.TIMER_UNLINKED) | self._has(notes.TIMER_OLD)
        # A broker fires what is overdue without any unit, and drops such a delete.
        excused |= self.by_broker | (self.is_delete & ~self.ours)
        # A handover gives units up that nobody needs. What came of the timer, others ask.
        read_ms = self.view.read_slot * self.view.reader.precision_ms
        excused |= (self.copy_count > 0) | (self.due_ms < read_ms)
        # A broker drops a cancelled one in a slot on its way, with its last unit.
        excused |= np.isin(self.key, self.key[self.is_delete])
        missing = self.waits & ~self.has_unit & ~excused
        torn = self.scope.is_wheel_torn
        self._fail("enqueued", missing, "no unit stands for this message", torn=torn)
        twice = self.is_timer & ((self.first_count > 1) | (self.waiting_count > 1))
        reason = "more than one unit stands for this message"
        self._fail("enqueued", twice & ~self.linked_by_broker, reason, torn=torn)
        # A broker that was killed links some again. Of these the last one counts.
        self._fail("enqueued", twice & self.linked_by_broker, f"{reason}, by a broker", torn=True)
        unit = self.links[:, notes.LINK_UNIT]
        early = unit & notes.LINK_EARLY != 0
        known = early & (self.link_place >= 0)
        wrong = known.copy()
        # A handover moves all but the last unit of a message to a slot that has passed.
        went_on = (self.copy_count > 0) | (self.waiting_count > 0)
        wrong[known] = ~went_on[self.link_place[known]]
        reason = "its slot is before its due time, and nothing was copied from its message"
        offsets = unit[wrong] >> notes.LINK_SHIFT
        fail(self.tally, "unit_slot", _UNITS, offsets, reason, torn=torn)

    def _judge_copies(self) -> None:
        """Judge that copies are of something, once, and where recovery looks for them."""
        found = np.flatnonzero(self.source >= 0)
        source = self.source[found]
        self.tally.check("once", int((self.copy_count > 0).sum()))
        self._fail("once", self.copy_count > 1, "more than one copy was made of this message")

        self.tally.check("succession", int((self.named | (self.source >= 0)).sum()))
        kept = self.origin >= self.view.reader.commitlog.start
        orphan = self.named & kept & ((self.source < 0) | (self.origin >= self.offset))
        filler = self._has(notes.TIMER_FILLER)
        orphan &= ~filler
        orphan[orphan] &= ~is_lost(self.view, self.origin[orphan])
        self._fail("succession", orphan, "it is a copy, and no message before it is its source")
        more = np.where(self.waits[found], 1, 0)
        differs = self.rolls[found] != self.rolls[source] + more
        differs &= ~self.is_level[source]
        differs |= self.waits[found] & (self.due_ms[found] != self.due_ms[source])
        differs &= ~filler[found] & ~filler[source]
        reason = "its roll count or due time does not fit the message of which it is a copy"
        fail(self.tally, "succession", _LOG, self.offset[found[differs]], reason)
        early = self._has(notes.TIMER_WITHOUT_DUE)[found]
        early &= self.due_ms[found] < self.due_ms[source]
        reason = "it was delivered before its level was over"
        fail(self.tally, "early", _LOG, self.offset[found[early]], reason)

        in_slot = self.is_timer & self.in_slot
        self.tally.check("reached_once", int(in_slot.sum()))
        checkpoint = self.view.checkpoint
        if checkpoint is None or checkpoint.by_broker:
            return
        if checkpoint.handed_over:
            again = in_slot & ((self.copy_count > 0) | (self.offset < checkpoint.floor))
            self._fail("reached_once", again, "a broker would read both it and its copy")
        waiting = self.waiting[source] & self.named[found]
        waiting &= self.offset[source] >= checkpoint.floor_offset  # else it is not found again
        self.tally.check("settled", int(waiting.sum()))
        behind = waiting & (self.offset[found] < checkpoint.scan_from)
        reason = "opening would find the source of this copy, but not the copy"
        fail(self.tally, "settled", _LOG, self.offset[found[behind]], reason)

    def _judge_fate(self) -> None:
        """Judge that no timer was lost, nor fired after it was cancelled; count what is pending."""
        self.tally.check("accounted", int(self.is_timer.sum()))
        named = np.unique(self.key[self.is_delete])
        open_ended = self.is_timer & (self.copy_count == 0)
        lost = open_ended & ~self.waiting & ~np.isin(self.key, named)
        lost &= self.offset > self.salvaged_to
        self._fail(
            "accounted",
            lost,
            ("its slot has passed, but it was neither fired, rolled nor cancelled"),
        )
        in_levels = self._judge_levels(named)
        self._judge_cancelled()

        counts = self.tally.counts
        counts["timers"] += int((self.is_timer & (self.rolls == 0)).sum())
        counts["fired"] += int((self.is_fired & ~self._has(notes.TIMER_FILLER)).sum())
        counts["rolls"] += int((self.waits & (self.rolls > 0)).sum())
        counts["deletes"] += int((self.is_delete & (self.rolls == 0)).sum())
        still = np.unique(self.key[self.is_delete & self.waiting & (self.copy_count == 0)])
        pending = open_ended & self.waiting & ~np.isin(self.key, still)
        counts["pending"] += int((pending | in_levels).sum())
        counts["in_levels"] += int(in_levels.sum())
        if self.tally.measured is not None:
            self._measure_due(pending | in_levels, self.tally.measured)

    def _judge_levels(self, named: Words) -> Flags:
        """Judge what became of the messages of delay levels; return those that are pending.

        `named`: keys that a delete names.
        """
        self.tally.check("level_accounted", int(self.is_level.sum()))
        left = self.is_level & (self.copy_count == 0)
        left &= ~(self._has(notes.TIMER_FIRST) & np.isin(self.key, named))
        lost = left & ~self.waiting & (self.offset > self.salvaged_to)
        self._fail(
            "level_accounted",
            lost,
            ("its level has passed it, but it was neither delivered nor cancelled"),
        )
        still: Flags = left & self.waiting
        return still

    def _judge_cancelled(self) -> None:
        """Judge our own fired messages against our own deletes; a broker's may miss its target."""
        self.tally.check("cancelled", int(self.is_fired.sum()))
        deletes = np.flatnonzero(self.is_delete & self.ours & (self.origin < 0))
        if not len(deletes):
            return
        # The first of each key: offsets go up.
        keys, first = np.unique(self.key[deletes], return_index=True)
        fired = np.flatnonzero(self.is_fired & self.ours & (self.origin >= 0))
        place = np.minimum(np.searchsorted(keys, self.key[fired]), len(keys) - 1)
        cancelled = keys[place] == self.key[fired]
        # What was sent back has the key of its first message, and is not meant.
        source = self.source[fired]
        cancelled &= (source < 0) | ~self.is_level[source] | self._has(notes.TIMER_FIRST)[source]
        cancelled &= self.offset[deletes[first[place]]] < self.offset[fired]
        reason = "it was fired after its delete"
        fail(self.tally, "cancelled", _LOG, self.offset[fired[cancelled]], reason)

    def _measure_due(self, pending: Flags, measured: Measured) -> None:
        topic = (self.word[pending] >> notes.TOPIC_SHIFT) & _TOPIC_MASK
        measured.add(DUE, self.due_ms[pending] // MINUTE_MS, topic)
