"""Dequeue-get in the pipeline of threads, over its two ranges of slots.

The front, and beside it what was put aside; `tests/models/threads_model.py` says the rules.
"""

from typing import Any

from tests.models.threads_store import (
    BATCH,
    KEPT,
    LEAD,
    NONE,
    PRECISION_MS,
    RING,
    SPAN,
    Steps,
    Store,
    check,
)


class DequeueGet(Store):
    """A store with its dequeue-get."""

    def near_slot(self, slot: int) -> tuple[int, bool]:
        """Return the slot in whose place a unit's slot waits, and whether it was put aside."""
        own = self.dequeue_put
        if slot < own.aside_stop:
            return slot, True
        return max(slot, own.front_slot), False  # a straggler's: the front stands in

    def is_aside(self) -> bool:
        """Whether R is still in what was put aside."""
        return bool(self.dequeue_put.passed_slot < self.dequeue_put.aside_stop)

    def bases(self) -> list[tuple[str, int]]:
        """Return the ranges of slots with the start of each: the front, then what was put aside."""
        put = self.dequeue_put
        aside = [("aside_", put.passed_slot)] if self.is_aside() else []
        return [("", put.front_slot), *aside]

    def can_claim(self, now: int, kind: str, base: int) -> bool:
        """Whether the next slot is close enough, and the near wheel has a place for it."""
        own, put = self.dequeue_get, self.dequeue_put
        slot = getattr(own, kind + "claimed_slot")
        close = slot < put.aside_stop if kind else slot <= max(now // PRECISION_MS, base) + LEAD
        return getattr(own, kind + "claim_at") == NONE and close and slot < base + SPAN

    def due(self, now: int, kind: str, base: int) -> list[Any]:
        """Return what is due of the near wheel, in its order; not past a half-walked slot."""
        own, limit = self.dequeue_get, now
        if getattr(own, kind + "claim_at") != NONE:
            limit = min(now, (getattr(own, kind + "claimed_slot") - 1) * PRECISION_MS - 1)
        start = base * PRECISION_MS  # the clock may have gone back behind it
        return sorted(
            entry
            for entry in own.near
            if (entry[3] >= SPAN) == bool(kind)
            and (entry[0] <= limit or (now < start == entry[0] and entry[2] <= now))
        )

    def ended_deletes(self, now: int, kind: str) -> list[Any]:
        """Return the plain deletes of slots of which nothing else will come."""
        own = self.dequeue_get
        slots = [
            bucket // PRECISION_MS for bucket, _, _, at in own.near if (at >= SPAN) == bool(kind)
        ]
        ended = min([*slots, now // PRECISION_MS, getattr(own, kind + "walked_slot")])
        at_once = not self.right("deletes at once")
        found = [each for each in own.deletes if each[0] < ended or at_once]
        return sorted(each for each in found if each[2] // SPAN == bool(kind))

    def kept_deletes(self) -> list[Any]:
        """Return what was kept of the front's deletes, once nothing put aside is before them."""
        own, put = self.dequeue_get, self.dequeue_put
        waits = any(at >= SPAN for *_, at in own.near) or bool(self.ring_b)
        waits |= any(SPAN <= at < KEPT for *_, at in own.deletes)
        if waits or own.aside_walked_slot < put.aside_stop or put.passed_slot < put.aside_stop - 1:
            return []
        return sorted(each for each in own.deletes if each[2] == KEPT)

    def keeps(self) -> bool:
        """Whether the front's deletes are kept: what they take back may have been put aside."""
        return self.is_aside() and self.right("deletes go before what was put aside")

    def dequeue_get_has_work(self) -> bool:
        """A late arrival, a slot to claim or to walk, or something due while ring C has room."""
        own, now, takes = self.dequeue_get, self.now, []
        if self.ring_b:
            return True
        for kind, base in self.bases():
            if getattr(own, kind + "claim_at") != NONE or self.can_claim(now, kind, base):
                return True
            deletes = self.ended_deletes(now, kind)
            if deletes and not kind and self.keeps():
                return True
            takes += self.due(now, kind, base) + deletes
        takes += self.kept_deletes() if self.is_aside() else []
        return bool(takes) and len(self.ring_c) < RING

    def insert(self, unit: int) -> int:
        """Put a unit into the near wheel; return the places that it counts in: one or none."""
        own, entry = self.dequeue_get, self.units[unit]
        check(unit not in self.inserted, "a unit came twice")
        check(entry.slot >= self.dequeue_put.passed_slot, "a unit came behind R")
        self.inserted.add(unit)
        if entry.message in self.done:  # an earlier life made its copy; `recovered_copy` keeps L
            self.settled_units.add(unit)
            return 0
        m, (slot, aside) = self.log[entry.message], self.near_slot(entry.slot)
        place = slot % SPAN + SPAN * aside
        if m.kind == "delete" and not entry.rolls:
            own.deletes.append((slot, unit, place))
        else:
            due = entry.slot * PRECISION_MS if entry.rolls else m.due
            own.near.append((max(due, slot * PRECISION_MS), unit, due, place))
        return 1

    def dequeue_get_step(self) -> Steps:
        """Empty ring B, claim, walk, take what is due. Under near; for C under wheel as well."""
        yield from self.take("near")
        now, bases = self.now, self.bases()  # an old R only makes it wait
        while self.ring_b:
            self.insert(self.ring_b[0])
            yield None
            self.ring_b.pop(0)
        for kind, base in bases:
            yield from self._claim(now, kind, base)
        for kind, base in bases:
            yield from self._hand_on(self.dequeue_get.near, self.due(now, kind, base))
            deletes = self.ended_deletes(now, kind)
            if not kind and self.keeps():
                yield from self._keep(deletes)
            else:
                yield from self._hand_on(self.dequeue_get.deletes, deletes)
        if len(bases) > 1:
            yield from self._hand_on(self.dequeue_get.deletes, self.kept_deletes())
        self.give("near")

    def _claim(self, now: int, kind: str, base: int) -> Steps:
        """Claim a slot of a range, and walk a piece of its chain."""
        own = self.dequeue_get
        claimed, at, walked = kind + "claimed_slot", kind + "claim_at", kind + "walked_slot"
        if self.can_claim(now, kind, base):
            locks = self.unless("claims without wheel", "wheel")
            yield from self.take(*locks)
            setattr(own, at, self.head(getattr(own, claimed)))
            yield None
            setattr(own, claimed, getattr(own, claimed) + 1)
            self.give(*locks)
            yield None
            setattr(own, walked, getattr(own, walked) + (getattr(own, at) == NONE))
        for _ in range(BATCH):
            unit = getattr(own, at)
            if unit == NONE:
                break
            if self.lacks("dequeue_get"):
                ends = not self.right("walks end where nothing is mapped")
                setattr(own, walked, getattr(own, walked) + ends)
                break
            place = (getattr(own, claimed) - 1) % SPAN + SPAN * bool(kind)
            own.chained[place] += self.insert(unit)
            yield None
            setattr(own, at, self.units[unit].before)
            setattr(own, walked, getattr(own, walked) + (getattr(own, at) == NONE))

    def _keep(self, deletes: list[Any]) -> Steps:
        """Take deletes off their slots, which the front may pass now. Under wheel."""
        own = self.dequeue_get
        if deletes:
            yield from self.take("wheel")
            for slot, unit, place in deletes if self.is_aside() else ():  # else R came there
                own.deletes.remove((slot, unit, place))
                own.deletes.append((slot, unit, KEPT))
                own.chained[KEPT] += 1
                own.chained[place] -= 1
            self.give("wheel")

    def _hand_on(self, entries: list[Any], taken: list[Any]) -> Steps:
        for entry in taken[: max(0, min(BATCH, RING - len(self.ring_c)))]:
            entries.remove(entry)
            self.ring_c.append((entry[1], entry[-1]))
            yield None
