"""Where slots meet their units: is each chain whole?"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.record import Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.reading.rowsums import divided, summed
from timerstore.validation import notes
from timerstore.validation.evidence import Evidence
from timerstore.validation.findings import Flags, fail
from timerstore.validation.measured import (
    SLOT_COLUMNS,
    SLOT_DELETES,
    SLOT_DEPTH,
    SLOT_EXPECTED,
    SLOT_FIRES,
    SLOT_INDEX,
    SLOT_LATE,
    SLOT_LIVE,
    SLOT_MESSAGE_BYTES,
    SLOT_NUMBER,
    SLOT_PAGES,
    SLOT_ROLLS,
    SLOT_SUPERSEDED,
    SLOT_TOP,
    SLOT_TOP_HASH,
    SLOT_UNITS,
    Measured,
    pages_read,
)
from timerstore.validation.plan import Scope
from timerstore.validation.usedslots import WHEEL

_LOG: Final = "timerlog"
_NO_UNIT: Final = -1
_TOPIC_BITS: Final = 32
_TOPIC_MASK: Final = (1 << _TOPIC_BITS) - 1


class SlotMeeting:
    """All slots of one bucket, with all units of these slots.

    Units are sorted by slot, then by offset. A whole chain has all units of its slot, each of them
    pointing to the one before it. Only chains of which that does not hold are walked.
    """

    def __init__(self, scope: Scope, units: Words, slots: Words, tally: Evidence) -> None:
        """`units`, `slots`: notes."""
        self.scope, self.tally, self.view = scope, tally, scope.view
        offset = units[:, notes.UNIT_OFFSET]
        if (np.diff(offset) < 0).any():  # else they are in order
            units = units[np.argsort(offset)]
        units = units[np.argsort(units[:, notes.UNIT_SLOT], kind="stable")]
        self.time, self.offset = units[:, notes.UNIT_SLOT], units[:, notes.UNIT_OFFSET]
        self.prev = units[:, notes.UNIT_LINK] >> 3
        self.is_roll = units[:, notes.UNIT_LINK] & 4 != 0
        self.is_superseded = units[:, notes.UNIT_LINK] & 2 != 0
        self.is_delete = units[:, notes.UNIT_LINK] & 1 != 0
        self.start = self.view.reader.timerlog.start
        self.is_ahead = self.time >= self.view.read_slot
        self.slots = slots[np.argsort(slots[:, notes.SLOT_INDEX])]
        self.reached = np.zeros(len(units), np.bool_)

    def judge(self) -> None:
        """Judge all rules about slots and chains. O(n log n)."""
        same = self.time[1:] == self.time[:-1]
        before = np.concatenate([[False], same])
        follows = np.concatenate([[False], self.prev[1:] == self.offset[:-1]])
        ends = self._is_end(self.prev)
        self.linked: Flags = np.where(before, follows, ends)
        self._judge_shared()
        self._judge_slots()
        self._judge_reached()

    def _fail(self, rule: str, file: str, offsets: Words, reason: str, units: Words) -> None:
        """Note failures at these offsets; `units`: the timer log's units that they are about."""
        torn = self.scope.torn_wheel(units)
        for is_torn in (False, True):
            fail(self.tally, rule, file, offsets[torn == is_torn], reason, torn=is_torn)

    def _is_end(self, prev: Words) -> Flags:
        """Tell where a chain ends: at −1, or where retention removed what came before."""
        ends: Flags = (prev == _NO_UNIT) | (prev < self.start)
        return ends

    def _judge_shared(self) -> None:
        """Find units ahead that two others point back to."""
        self.tally.check("chain_shared", int(self.is_ahead.sum()))
        if self.linked[self.is_ahead].all():
            return  # each points to the one before it, so no two to the same
        ahead = np.flatnonzero(self.is_ahead & (self.prev != _NO_UNIT))
        order = ahead[np.lexsort((self.offset[ahead], self.prev[ahead]))]
        twice = order[1:][self.prev[order][1:] == self.prev[order][:-1]]
        reason = "an earlier unit has the same predecessor"
        self._fail("chain_shared", _LOG, self.offset[twice], reason, self.offset[twice])

    # --- slots

    def _judge_slots(self) -> None:
        slots = self.slots
        time, last = slots[:, notes.SLOT_TIME], slots[:, notes.SLOT_LAST]
        passed = time < self.view.read_slot
        # Retention removed all its units, passed or superseded.
        gone = (passed | (self.view.floor > 0)) & (last < self.start)
        low = np.searchsorted(self.time, time, "left")
        high = np.searchsorted(self.time, time, "right")
        place = high - 1  # where its last unit stands, unless something is wrong
        other = np.append(self.offset, -1)[place] != last
        if other.any():
            place[other] = self._find(last[other])
        within = (place >= low) & (place < high)
        at = slots[:, notes.SLOT_INDEX] * fmt.SLOT_BYTES
        for rule in ("slot_last", "slot_first", "slot_count"):
            self.tally.check(rule, len(slots))
        lost = ~within & ~gone
        reason = "the slot's last unit belongs to another slot"
        self._fail("slot_last", WHEEL, at[lost] + fmt.SLOT_LAST_AT, reason, last[lost])

        broken = np.concatenate([[0], np.cumsum(~self.linked)])
        whole = within & (broken[np.minimum(place + 1, len(self.linked))] == broken[low])
        self._judge_whole(np.flatnonzero(whole), low, place, at)
        for i in np.flatnonzero(within & ~whole).tolist():
            self._walk(i, int(low[i]), int(place[i]), int(at[i]))

    def _find(self, offsets: Words) -> Words:
        """Return where units stand, −1 if there is no such unit."""
        order = np.argsort(self.offset)
        if not len(order):
            return np.full(len(offsets), -1, np.int64)
        place = np.minimum(np.searchsorted(self.offset[order], offsets), len(order) - 1)
        place = order[place]
        return np.where(self.offset[place] == offsets, place, -1)

    def _judge_whole(self, chosen: Words, low: Words, place: Words, at: Words) -> None:
        """Judge the slots whose units are all linked, from the first up to their last."""
        slots, low, place = self.slots[chosen], low[chosen], place[chosen]
        last = slots[:, notes.SLOT_LAST]
        if not len(chosen):
            return
        edges = np.zeros(len(self.time) + 1, np.int64)
        np.add.at(edges, low, 1)
        np.add.at(edges, place + 1, -1)
        self.reached |= np.cumsum(edges[:-1]) > 0
        cut = self.prev[low] != _NO_UNIT
        ahead = slots[:, notes.SLOT_TIME] >= self.view.read_slot
        first_offset = self.offset[low]
        wrong = ahead & np.where(
            cut, self.view.floor == 0, first_offset != slots[:, notes.SLOT_FIRST]
        )
        reason = "the chain does not end at the slot's first unit"
        first_at = at[chosen[wrong]] + fmt.SLOT_FIRST_AT
        self._fail("slot_first", WHEEL, first_at, reason, last[wrong])
        net = np.concatenate([[0], np.cumsum(np.where(self.is_delete, -1, 1))])
        other = ahead & ~cut & (net[place + 1] - net[low] != slots[:, notes.SLOT_COUNT])
        reason = "the slot's count is not that of its chain"
        count_at = at[chosen[other]] + fmt.SLOT_COUNT_AT
        self._fail("slot_count", WHEEL, count_at, reason, last[other])

    def _walk(self, i: int, low: int, place: int, at: int) -> None:
        """Walk one chain that is not whole, as far as it leads."""
        places = {int(self.offset[each]): each for each in range(low, place + 1)}
        net, end, step = 0, place, place
        while True:
            self.reached[step] = True
            net += -1 if self.is_delete[step] else 1
            end = step
            found = places.get(int(self.prev[step]))
            if found is None or found >= step:
                break
            step = found
        slot = self.slots[i]
        is_ahead = slot[notes.SLOT_TIME] >= self.view.read_slot
        last = self.offset[place : place + 1]
        if is_ahead and self._is_end(self.prev[end : end + 1])[0]:
            cut = self.prev[end] != _NO_UNIT
            if self.view.floor == 0 if cut else int(self.offset[end]) != slot[notes.SLOT_FIRST]:
                reason = "the chain does not end at the slot's first unit"
                first_at = np.array([at + fmt.SLOT_FIRST_AT])
                self._fail("slot_first", WHEEL, first_at, reason, last)
            elif not cut and net != slot[notes.SLOT_COUNT]:
                reason = "the slot's count is not that of its chain"
                self._fail("slot_count", WHEEL, np.array([at + fmt.SLOT_COUNT_AT]), reason, last)

    # --- units

    def _judge_reached(self) -> None:
        """Find units ahead that no chain leads to."""
        self.tally.check("unreached", int(self.is_ahead.sum()))
        lost = self.is_ahead & ~self.reached & ~self.is_superseded
        reason = "no slot leads to this unit: its timer would not fire"
        self._fail("unreached", _LOG, self.offset[lost], reason, self.offset[lost])

    # --- what each slot holds

    def measure(self, loads: Words, expected: Words, measured: Measured) -> None:
        """Add a row for each slot ahead; `loads`, `expected`: notes. O(n log n)."""
        known = expected[expected[:, notes.EXPECTED_SLOT] >= self.view.read_slot]
        times = self.time[self.is_ahead]
        first_of_slot = np.append(True, times[1:] != times[:-1])[: len(times)]
        slots = np.union1d(times[first_of_slot], known[:, notes.EXPECTED_SLOT])
        rows = np.zeros((len(slots), SLOT_COLUMNS), np.int64)
        rows[:, SLOT_NUMBER], rows[:, SLOT_INDEX] = slots, -1
        at = np.searchsorted(slots, times)
        for column, chosen in (
            (SLOT_UNITS, np.ones(len(times), np.bool_)),
            (SLOT_DELETES, self.is_delete[self.is_ahead]),
            (SLOT_SUPERSEDED, (self.is_superseded & ~self.is_delete)[self.is_ahead]),
            (SLOT_DEPTH, self.reached[self.is_ahead]),
        ):
            rows[:, column] = np.bincount(at[chosen], minlength=len(slots))
        counts = np.where(self.is_superseded, 0, np.where(self.is_delete, -1, 1))[self.is_ahead]
        for column, chosen in ((SLOT_FIRES, ~self.is_roll), (SLOT_ROLLS, self.is_roll)):
            left = np.bincount(at, counts * chosen[self.is_ahead], minlength=len(slots))
            rows[:, column] = np.maximum(left, 0)  # a delete may have nothing left to cancel
        at = np.searchsorted(slots, known[:, notes.EXPECTED_SLOT])
        np.add.at(rows[:, SLOT_EXPECTED], at, known[:, notes.EXPECTED_COUNT])
        used = self.slots[np.isin(self.slots[:, notes.SLOT_TIME], slots)]
        at = np.searchsorted(slots, used[:, notes.SLOT_TIME])
        rows[at, SLOT_INDEX] = used[:, notes.SLOT_INDEX]
        _measure_loads(rows, slots, loads)
        measured.slots.append(rows)


def _measure_loads(rows: Words, slots: Words, loads: Words) -> None:
    """Fill what live units weigh: bytes, pages, the topic that has most."""
    if (np.diff(loads[:, notes.LOAD_MESSAGE]) < 0).any():  # else they are in order
        loads = loads[np.argsort(loads[:, notes.LOAD_MESSAGE])]
    at = np.searchsorted(slots, loads[:, notes.LOAD_SLOT])
    loads, ends = divided(loads, at, len(slots))
    counts = np.diff(ends, prepend=0)
    at = np.repeat(np.arange(len(slots)), counts)
    slot, message, word = np.ascontiguousarray(loads.T)
    size = (word >> notes.LOAD_SIZE_SHIFT) & ((1 << notes.LOAD_SIZE_BITS) - 1)
    late, elsewhere = word & notes.LOAD_LATE != 0, word >> notes.LOAD_ELSEWHERE_SHIFT != 0
    rows[:, SLOT_LIVE] = counts
    used = counts > 0
    for column, values in (
        (SLOT_LATE, late),
        (SLOT_EXPECTED, ~late & ~elsewhere),
        (SLOT_MESSAGE_BYTES, size),
        (SLOT_PAGES, pages_read(slot, message, size)),
    ):
        starts = (ends - counts)[used]
        rows[used, column] += np.add.reduceat(values, starts, dtype=np.int64)
    topic = (word >> notes.LOAD_HASH_SHIFT) & _TOPIC_MASK
    each = summed(np.column_stack([at, topic, np.ones(len(at), np.int64)]), 2)
    top = np.zeros(len(rows), np.int64)
    np.maximum.at(top, each[:, 0], each[:, 2] << _TOPIC_BITS | each[:, 1])
    rows[:, SLOT_TOP_HASH], rows[:, SLOT_TOP] = top & _TOPIC_MASK, top >> _TOPIC_BITS
