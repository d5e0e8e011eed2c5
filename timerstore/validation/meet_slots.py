"""Where slots meet their units: is each chain whole?"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from timerstore.timelog.format import SLOT_BYTES, SLOT_COUNT_AT, SLOT_FIRST_AT, SLOT_LAST_AT
from timerstore.timelog.jit.record import Words
from timerstore.validation import notes
from timerstore.validation.findings import Flags, fail
from timerstore.validation.plan import Scope
from timerstore.validation.slots import WHEEL
from timerstore.validation.tally import HEAVIEST_MAX, Tally

_LOG: Final = "timerlog"
_NO_UNIT: Final = -1


class SlotMeeting:
    """All slots of one bucket, with all units of these slots.

    Units are sorted by slot, then by offset. A whole chain has all units of its slot, each of them
    pointing to the one before it. Only chains of which that does not hold are walked.
    """

    def __init__(self, scope: Scope, units: Words, slots: Words, tally: Tally) -> None:
        """`units`, `slots`: notes."""
        self.scope, self.tally, self.view = scope, tally, scope.view
        order = np.lexsort((units[:, notes.UNIT_OFFSET], units[:, notes.UNIT_SLOT]))
        units = units[order]
        self.time, self.offset = units[:, notes.UNIT_SLOT], units[:, notes.UNIT_OFFSET]
        self.prev = units[:, notes.UNIT_LINK] >> 2
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
        self._count_loads()

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
        fail(self.tally, "chain_shared", _LOG, self.offset[twice], reason)

    # --- slots

    def _judge_slots(self) -> None:
        slots = self.slots
        time, last = slots[:, notes.SLOT_TIME], slots[:, notes.SLOT_LAST]
        passed = time < self.view.read_slot
        # Retention removed all its units, passed or superseded.
        gone = (passed | (self.view.floor > 0)) & (last < self.start)
        low = np.searchsorted(self.time, time, "left")
        high = np.searchsorted(self.time, time, "right")
        place = self._find(last)
        within = (place >= low) & (place < high)
        at = slots[:, notes.SLOT_INDEX] * SLOT_BYTES
        for rule in ("slot_last", "slot_first", "slot_count"):
            self.tally.check(rule, len(slots))
        lost = ~within & ~gone
        reason = "the slot's last unit is none of this slot"
        fail(self.tally, "slot_last", WHEEL, at[lost] + SLOT_LAST_AT, reason)

        broken = np.concatenate([[0], np.cumsum(~self.linked)])
        whole = within & (broken[np.minimum(place + 1, len(self.linked))] == broken[low])
        self._judge_whole(np.flatnonzero(whole), low, place, at)
        for i in np.flatnonzero(within & ~whole).tolist():
            self._walk(i, int(low[i]), int(place[i]), int(at[i]))

    def _find(self, offsets: Words) -> Words:
        """Return where units stand, −1 where there is no such unit."""
        order = np.argsort(self.offset)
        if not len(order):
            return np.full(len(offsets), -1, np.int64)
        place = np.minimum(np.searchsorted(self.offset[order], offsets), len(order) - 1)
        place = order[place]
        return np.where(self.offset[place] == offsets, place, -1)

    def _judge_whole(self, chosen: Words, low: Words, place: Words, at: Words) -> None:
        """Judge the slots whose units are all linked, from the first up to their last."""
        slots, low, place = self.slots[chosen], low[chosen], place[chosen]
        if not len(chosen):
            return
        edges = np.zeros(len(self.time) + 1, np.int64)
        np.add.at(edges, low, 1)
        np.add.at(edges, place + 1, -1)
        self.reached |= np.cumsum(edges[:-1]) > 0
        cut = self.prev[low] != _NO_UNIT
        ahead = slots[:, notes.SLOT_TIME] >= self.view.read_slot
        ahead &= self.view.floor == 0
        first_offset = self.offset[low]
        wrong = np.where(cut, ahead, first_offset != slots[:, notes.SLOT_FIRST])
        reason = "the chain does not end at the slot's first unit"
        fail(self.tally, "slot_first", WHEEL, at[chosen[wrong]] + SLOT_FIRST_AT, reason)
        net = np.concatenate([[0], np.cumsum(np.where(self.is_delete, -1, 1))])
        other = ~cut & (net[place + 1] - net[low] != slots[:, notes.SLOT_COUNT])
        reason = "the slot's count is not that of its chain"
        fail(self.tally, "slot_count", WHEEL, at[chosen[other]] + SLOT_COUNT_AT, reason)

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
        if self._is_end(self.prev[end : end + 1])[0]:
            cut = self.prev[end] != _NO_UNIT
            ahead = slot[notes.SLOT_TIME] >= self.view.read_slot and self.view.floor == 0
            if ahead if cut else int(self.offset[end]) != slot[notes.SLOT_FIRST]:
                reason = "the chain does not end at the slot's first unit"
                first_at = np.array([at + SLOT_FIRST_AT])
                fail(self.tally, "slot_first", WHEEL, first_at, reason)
            elif not cut and net != slot[notes.SLOT_COUNT]:
                reason = "the slot's count is not that of its chain"
                fail(self.tally, "slot_count", WHEEL, np.array([at + SLOT_COUNT_AT]), reason)

    # --- units

    def _judge_reached(self) -> None:
        """Find units ahead that no chain leads to."""
        self.tally.check("unreached", int(self.is_ahead.sum()))
        lost = self.is_ahead & ~self.reached & ~self.is_superseded
        if not self.scope.is_lenient:
            reason = "no slot leads to this unit"
            fail(self.tally, "unreached", _LOG, self.offset[lost], reason)

    def _count_loads(self) -> None:
        """Count how many timers wait in each slot ahead."""
        waits = self.is_ahead & ~self.is_delete
        times, loads = np.unique(self.time[waits], return_counts=True)
        values, counts = np.unique(loads, return_counts=True)
        pairs = zip(values.tolist(), counts.tolist(), strict=True)
        self.tally.slot_loads.update(Counter(dict(pairs)))
        heavy = np.lexsort((-times, loads))[::-1][:HEAVIEST_MAX]
        named = zip(loads[heavy].tolist(), times[heavy].tolist(), strict=True)
        self.tally.merge(Tally(heaviest=list(named)))
