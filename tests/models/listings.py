"""Listings in the histories of `cleaning_model.py`: captured at one moment, read piece by piece.

hold    Taken before the capture: retention removes nothing from there on. It begins behind what
        retention would remove by then, whatever other listings keep of that.
lapse   A hold that keeps retention from something may lapse at any time. Who comes to what is gone
        then captures again.
listed  After that the listing goes on with who was not listed yet: copies lie elsewhere.

Each timer that is pending as long as the listing lasts is listed once, no timer twice. The choices
are made beside the history's own, which stays as it is.
"""

import random

from tests.models.rules_model import N

RULES = {"listings": 1, "hold": "kept", "lapse": "capture again", "listed": "identity"}


class Listing:
    """One listing of a model's store."""

    def __init__(self, store):
        self.store, self.listed, self.last = store, [], -1
        self.before = pending(store)
        self.capture()

    def capture(self):
        s = self.store
        self.from_log, self.from_tl = map(max, s.limits, (s.log.start, s.tl.start))
        self.lapsed, self.cancelled = False, set(s.cancelled)
        self.places = sorted(set(waiting(s)), key=lambda place: place[1])

    def read(self, count):
        """Read some places; False once all are read, or nothing more can be."""
        while self.places and count:
            unit, o = self.places[0]
            if o < self.store.log.start or (unit is not None and unit < self.store.tl.start):
                if self.lapsed and self.store.v["lapse"] != "silent":
                    self.store.info["listing: captured again"] += 1
                    self.capture()
                    count -= 1
                    continue
                if self.lapsed or self.store.v["hold"] == "ignored":
                    self.places.pop(0)  # taken for fired and removed
                    continue
            self.places.pop(0)
            if unit is not None:
                assert self.store.tl[unit]["off"] == o
            m = self.store.log[o]
            behind = o > self.last if self.store.v["listed"] == "place" else True
            known = self.store.v["listed"] == "identity" and m["id"] in self.listed
            if m["k"] == "p" and m["id"] not in self.cancelled and behind and not known:
                self.listed.append(m["id"])
                self.last = o
            count -= 1
        return bool(self.places)

    def judge(self):
        """Compare what was listed with what was pending all the while."""
        s = self.store
        s.info["listings"] += 1
        s.bad["listing: left out"] += len((self.before & pending(s)) - set(self.listed))
        s.bad["listing: twice"] += len(self.listed) - len(set(self.listed))


def pending(s):
    """Return who is pending: the ids."""
    fired, gone, ids = s.truth()
    return {i for i in ids if not fired[i] and i not in gone}


def waiting(s):
    """Yield the places where timers wait: a unit, or None, with its message."""
    yield from ((None, o) for o in s.queue[s.linked_index :] if o not in s.past)
    slots = (u for slot in range(s.claimed_slot, s.read_slot + N) for u in s.chain(slot))
    for u in (*s.near, *(u for u, _ in s.taken), *slots):
        if not s.gone(u):
            yield u, s.tl[u]["off"]


class Listings:
    """What a store has of them: it is asked before anything is removed."""

    def begin_listings(self, seed):
        """At an opening: those of an earlier life have ended with it."""
        self.eyes = getattr(self, "eyes", None) or random.Random(f"listings {seed}")
        self.listings, self.limits = [], (0, 0)

    def look(self):
        """Some listing begins, goes on or ends."""
        if self.v["listings"] and len(self.listings) < 3 and self.eyes.random() < 0.5:
            self.listings.append(Listing(self))
        for each in list(self.listings):
            if not each.read(self.eyes.randrange(4)):
                each.judge()
                self.listings.remove(each)

    def heed(self, *limits):
        """Return up to where the two logs may go now."""
        self.limits = limits
        for each in self.listings if self.v["hold"] == "kept" else ():
            held = each.from_log, each.from_tl
            if any(map(int.__lt__, held, self.limits)) and self.eyes.random() < 0.2:
                each.lapsed = True
            if not each.lapsed:
                limits = tuple(map(min, limits, held))
        return limits
