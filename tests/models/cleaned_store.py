"""The store of `cleaning_model.py`: its services, passes, checkpoints, openings.

The rules, beyond those of `rules_model.py`. All but "remove" happen in bounded steps under locks.

to      Where a message leads: the own slot of its timer, which a roll's unit says as well; where
        the read cursor stood in for that, the unit's slot. So all units of one message say the
        same, wherever they wait, and a pass needs not know how far its timers have hopped.
live    What waits is told by units: a message that has one, in a slot the read cursor has not
        passed, and no copy that recovery found. A round of passes lists them once, from the whole
        timer log; what leads to a slot from a later pass's first slot on still waits then. It
        cannot be told by messages alone: of what a broker, or an older store, rolled away, nothing
        but the slots says so.
pass    The oldest segment [lo, hi): full, below the first message without a unit, below what must
        stay (here: fired messages not consumed). Its first slot, max(claim cursor, latest slot
        fired + 1) + margin, is fixed when the pass begins. Its live messages are looked at in
        order. One that leads to a slot >= the first slot: a timer in the cancelled set is dropped,
        and a delete that was appended since the store was opened. Everything else is appended
        again, all properties kept, TIMER_ORIGIN = its source's offset. What leads to a slot < the
        first slot stays, hops and fires from its place. The cursor moves in the same step.
delete  Its timer lies before it, so the passes have dropped the timer as well, or left it to fire.
        The entry in the cancelled set stays until the floor is past the delete: only then has what
        was left come to its slot. A delete of an earlier life is copied: a broker, or an older
        store, rolls by message, so the timer may lie behind it.
cut     If a timer of a slot >= the first slot was fired before the cursor has reached hi, as a far
        roll is after a jump of the clock, the pass ends at the cursor, and another one begins there
        with a new first slot. (That the claim cursor has come past the first slot meanwhile does no
        harm.) Each keeps (lo, hi, first slot, offset of its first copy) in memory.
gone    A unit is superseded if its message is before the floor; or in a pass, before its cursor,
        and leads to that pass's first slot or later; or recovery found its copy; or its message has
        a later unit. Asked before the message is read, and again, by who appends or links, of what
        was taken: a hop or a fire that was under way when a pass came by is dropped. A walk of a
        chain stops at a unit before the timer log's start.
queue   Copies get their units through the timer topic's queue like any other, by the usual rules.
floor   It moves to the oldest pass's hi once the read cursor is past the latest slot that
        what it left leads to: that has fired or been dropped.
scan    For the copies cursor a copy whose source is before the captured floor does not count; that
        of a pass which the floor has not passed does.
flush   All cursors (read, queue, claim, copies, hops), the floor, the timer log's end, the groups'
        offsets are captured at one moment; the log is synced, queues, timer log, wheel, then the
        checkpoint that holds them.
remove  Only below the durable floor, the oldest first, and what no listing holds (`listings.py`). A
        timer log segment goes if each unit's message is before the durable floor or its slot before
        the durable read cursor: a hop's unit is needed as the first one is, and the first one no
        more once its timer has hopped.
rebuild The timer log and the wheel are lost, or the checkpoint too: every message from the floor
        on that has no copy is linked anew, its hops are forgotten, and copies are looked for from
        the log's start.
reopen  The floor is the checkpoint's, or the log's start if there is none. Files below the floor
        are ignored. Copies whose source is before the floor are ignored; the others' sources are
        done, kept until the read cursor or the floor passes them. Passes are forgotten: cleaning
        starts again at the floor and skips what is done.
"""

import random
from collections import Counter

from tests.models import listings, rules_model
from tests.models.rules_model import LEAD, SL, CrashError, N, P

SEG, TSEG = 5, 4  # messages in a segment of the log, units in one of the timer log


RULES = {
    "floor": "floor",
    "mark": "cursor",
    "near": "stay",
    "cut": 1,
    "margin": 4,
    "wait": "read",
    "scan": "pass",
    "capture": "one",
    "remove": "durable",
    "reach": "linked",
    "deletes": "drop ours",
    "eaten": 1,
    "order": "log first",
    "walk": "start",
    "cancel": "one step",
    "at": "due",
    "find": "live units",
    "frontier": "kept",
    "begins": "claimed",
    "flight": "gone",
    "end": "one",
    "units": "all",
    "rebuild": "all",
    "lookup": "gone",
    "barrier": 1,
    "dead": "drop",
}


class GoneError(Exception):
    pass


class File(list):  # a log of segments: what is before `start` was removed
    start = 0

    def __getitem__(self, i):
        if i is None or (not isinstance(i, slice) and 0 <= i < self.start):
            raise GoneError
        return list.__getitem__(self, i)

    def known(self, i):  # of a unit that was claimed, and may have been removed since
        return list.__getitem__(self, i)

    def kept(self):
        return ((i, list.__getitem__(self, i)) for i in range(self.start, len(self)))


class Store(listings.Listings, rules_model.Store):
    def __init__(self, seed, **v):
        self.seed = seed
        self.v = rules_model.RULES | RULES | listings.RULES | {"clean": 1, "lose": 1} | v
        self.rnd = random.Random(seed)
        self.now = 4000
        self.group = self.rnd.random() < 0.5
        self.log, self.tl, self.flushed, self.tlf = File(), File(), 0, 0
        self.ck = {
            "read": self.now // P,
            "queue": 0,
            "scan": 0,
            "tl": 0,
            "log": 0,
            "floor": 0,
            "eaten": 0,
        }
        self.ck |= {"hopped": 0, "claimed": self.now // P, "fired": -1}
        self.old = self.rnd.random() < self.v["old"]
        self.disk = [None] * N
        self.was = (0, 0)
        self.bad = Counter()
        self.info = Counter()
        self.true = {}
        self.repl = []
        self.dues = {}
        self.open()

    # ---- the log; a message's identity is (due, offset of its first put): an id says both
    def append(self, **m):
        o = len(self.log)
        if m["k"] in "pd":
            m["q"] = len(self.queue)
            self.queue.append(o)
            self._qi[o] = m["q"]
        self.log.append(m)
        self.dues.setdefault(m["id"], m["due"])
        return o

    # ---- enqueue
    def enqueue(self, n):
        while self.linked_index < len(self.queue) and n:
            o = self.queue[self.linked_index]
            m = self.log[o]
            n -= 1
            over = o in self.done or o < self.floor_at
            self.link(o, *((self.read_slot, False) if over else self.place(m["due"])))
            self.linked_index += 1
            self.rolls.pop(o, 0)

    def link(self, o, sl, roll, hop=None):
        super().link(o, sl, roll, hop)
        self.unit[o] = len(self.tl) - 1

    def slot(self, o):  # of a message's unit; -1: none, or its unit was removed
        u = self.unit.get(o, -1)
        return self.tl[u]["slot"] if u >= self.tl.start else -1

    # ---- superseded, chains, dequeue
    def gone(self, u):
        U = self.tl.known(u)
        o, sl = U["off"], U["slot"]
        if (self.v["floor"] != "no" and o < self.floor_at) or o in self.past or self.later(u):
            return True
        if self.v["at"] == "due" and not self.old:
            sl = U["to"]
        return self.v["mark"] == "cursor" and any(
            p["lo"] <= o < p["hi"] and sl >= p["first_slot"] for p in self.passes
        )

    def stale(self, u):
        return self.v["flight"] == "gone" and self.gone(u)

    def chain(self, sl):
        h = self.wheel[sl % N]
        u = h[1] if h and h[0] == sl else -1
        while u >= (self.tl.start if self.v["walk"] == "start" else 0):
            yield u
            u = self.tl[u]["prev"]

    def claim(self):
        while (
            self.claimed_slot <= max(self.now // P, self.read_slot) + LEAD
            and self.claimed_slot < self.read_slot + SL
        ):
            for u in self.chain(self.claimed_slot):
                if not self.gone(u):
                    self.near[u] = 1
            self.claimed_slot += 1

    def ready(self, u):
        return "drop" if self.gone(u) else super().ready(u)

    def due_of(self, u):
        return -1 if self.gone(u) else self.log[self.tl[u]["off"]]["due"]

    def advance(self):
        while self.now // P > self.read_slot and self.claimed_slot > self.read_slot:
            if any(sl < self.read_slot for sl in self.rolls.values()):
                return
            if any(self.tl[u]["slot"] <= self.read_slot for u, _ in self.taken):
                return
            mine = [u for u in self.near if self.tl.known(u)["slot"] <= self.read_slot]
            if any(self.ready(u) != "keep" for u in mine):
                return
            for u in mine:
                del self.near[u]
                self.cancelled.pop(self.log[self.tl[u]["off"]]["id"], 0)
            self.read_slot += 1
            self.claim()
            self.floor()

    def put_taken(self, n):
        for u, r in self.taken[:n]:
            if r == "fire" and not self.stale(u):
                self.fired = max(self.fired, self.due_of(u) // P)
        super().put_taken(n)

    # ---- cleaning
    def limit(self):  # what a pass must not reach
        unlinked = (
            self.queue[self.linked_index]
            if self.linked_index < len(self.queue) and self.v["reach"] == "linked"
            else len(self.log)
        )
        hungry = (
            next(
                (o for o, m in self.log.kept() if m["k"] == "f" and o >= self.eaten), len(self.log)
            )
            if self.v["eaten"]
            else len(self.log)
        )
        return min(unlinked, hungry)

    def first_slot(self):  # from which on nothing was claimed, and nothing fired
        if self.v["begins"] == "fired" and not self.old:
            return max(self.read_slot, self.fired + 1)
        if self.old or self.v["frontier"] == "no":
            return self.claimed_slot
        return max(self.claimed_slot, self.fired + 1)

    def is_met(self, p):  # has a service come to slots that the pass supersedes units of
        if not self.old and self.v["frontier"] != "no" and self.fired >= p["first_slot"]:
            return True
        return self.claimed_slot > p["first_slot"] and self.v["cut"]

    def list_live(self, goal):  # what waits, when a round of passes begins
        self.round = (
            goal,
            {
                U["off"]: U["to"]
                for u, U in self.tl.kept()
                if U["slot"] >= self.read_slot
                and not self.gone(u)
                and not (U["hop"] and self.v["find"] == "first units")
            },
        )

    def target(self, o):  # of a timer's message: the slot that its units lead to
        if self.old:
            return self.slot(o)
        if self.v["find"] == "messages":
            return self.log[o]["due"] // P
        return self.round[1].get(o, -1)

    def clean(self, n):
        if not self.v["clean"]:
            return
        while n:
            p = (
                self.passes[-1]
                if self.passes and self.passes[-1]["hi"] < self.passes[-1]["goal"]
                else None
            )
            if p and self.is_met(p):
                p["goal"] = p["hi"]
                p = None
                self.info["cut"] += 1
            if not p:
                lo = self.passes[-1]["hi"] if self.passes else self.floor_at
                goal = (lo // SEG + 1) * SEG
                if goal > self.limit() or goal > len(self.log):
                    return
                p = {
                    "lo": lo,
                    "hi": lo,
                    "goal": goal,
                    "first_slot": self.first_slot() + self.rnd.randrange(self.v["margin"]),
                    "first": None,
                    "left": -1,
                    "dropped": [],
                }
                self.passes.append(p)
                if goal > self.round[0] or self.rnd.random() < 0.5:
                    self.list_live(self.limit())
                self.info["passes"] += 1
            o = p["hi"]
            m = self.log[o]
            p["hi"] += 1
            n -= 1
            if m["k"] not in "pd" or o in self.past:
                continue
            sl = self.target(o)
            if sl < p["first_slot"] and self.v["near"] == "stay":
                p["left"] = max(p["left"], sl)
            if sl < self.read_slot or (sl < p["first_slot"] and self.v["near"] == "stay"):
                continue
            if m["k"] == "p" and m["id"] in self.cancelled and self.v["dead"] == "drop":
                self.info["cancelled, not copied"] += 1
                continue
            is_ours = not self.old and o >= self.opened
            if m["k"] == "d" and (is_ours or self.v["deletes"] == "drop all"):
                self.info["deletes dropped"] += 1
                if self.v["deletes"] == "forget at once":
                    self.cancelled.pop(m["id"], 0)
                p["dropped"].append(m["id"])
                if self.v["deletes"] != "copy":
                    continue
            c = self.append(**(m | {"origin": o}))
            self.info["copies"] += 1
            self.info["copies of copies"] += "origin" in m
            if p["first"] is None:
                p["first"] = c
            if self.v["barrier"]:
                self.rolls[c] = sl
        self.floor()

    def floor(self):
        while (
            self.passes
            and self.passes[0]["hi"] == self.passes[0]["goal"]
            and (self.read_slot > self.passes[0]["left"] or self.v["wait"] == "no")
        ):
            ended = self.passes.pop(0)
            self.floor_at = ended["hi"]
            if self.v["deletes"] not in ("copy", "never forget"):
                for i in ended["dropped"]:
                    self.cancelled.pop(i, 0)
            self.done = {o: c for o, c in self.done.items() if o >= self.floor_at}

    def remove(self):
        self.look()
        floor_at = self.floor_at if self.v["remove"] == "memory" else self.ck["floor"]
        a = floor_at // SEG * SEG
        t = self.tl.start
        while t + TSEG <= self.ck["tl"] and all(
            U["off"] < floor_at
            or U["slot"] < self.ck["read"]
            or (U["hop"] and self.v["units"] == "first")
            for U in self.tl[t : t + TSEG]
        ):
            t += TSEG
        a, t = self.heed(a, t)
        if any(m["k"] == "f" and o >= self.ck["eaten"] for o, m in self.log.kept() if o < a):
            self.bad["removed unconsumed"] += 1
        self.was = (self.log.start, self.tl.start)
        self.info["segments removed"] += (a - self.log.start) // SEG
        self.log.start, self.tl.start = max(a, self.log.start), max(t, self.tl.start)

    # ---- the public face
    def pending(self, i):  # is it still to come: queue, near wheel, grid slots
        if i in self.cancelled:
            return False

        def queued(o):
            return self.log[o]["id"] == i and self.log[o]["k"] == "p" and o not in self.past

        def linked(u):
            unread = self.v["lookup"] == "no" and self.tl[u]["off"] >= self.log.start
            return (unread or not self.gone(u)) and queued(self.tl[u]["off"])

        if any(map(queued, self.queue[self.linked_index :])) or any(map(linked, self.near)):
            return True
        if any(r == "roll" and linked(u) for u, r in self.taken):
            return True  # on its way from one slot to the next
        grid = range(self.due(i) // P, self.read_slot - 1, -self.v["stride"])
        cand = [c for c in grid if self.claimed_slot <= c < self.read_slot + N]
        for j, c in enumerate(reversed(cand)):
            if any(map(linked, self.chain(c))):
                self.info["max candidates"] = max(self.info["max candidates"], j + 1)
                return True
        return False

    def due(self, i):  # also of a message that was removed
        return self.dues[i]

    def append_cancel(self, i, new, tear):
        if self.v["cancel"] == "split" and new is None and self.rnd.random() < 0.2:
            self.clean(25)
            self.serve()
            self.flush()
            raise CrashError
        super().append_cancel(i, new, tear)

    # ---- flush, crash, recovery
    def flush(self, stop=9):
        read_slot, linked_index, t, end, floor_at, eaten = (
            self.read_slot,
            self.linked_index,
            len(self.tl),
            len(self.log),
            self.floor_at,
            self.eaten,
        )
        held = [
            c
            for o, c in self.done.items()
            if o >= floor_at and (self.slot(o) >= read_slot or self._qi[o] >= linked_index)
        ]
        if self.v["scan"] == "pass":
            held += [p["first"] for p in self.passes if p["first"] is not None]
        scan_from = min(held, default=end)
        (hops_from, claimed_slot), fired = self.needed_units(read_slot, t), self.fired
        if scan_from < floor_at:
            self.bad["the copies cursor before the floor"] += 1
        if not self.busy:  # the services go on meanwhile
            self.busy = True
            r = self.rnd.randrange
            for _ in range(r(4)):
                self.rnd.choice(
                    (
                        lambda: self.clean(r(1, 6)),
                        lambda: self.put_taken(3),
                        lambda: self.take(3),
                        lambda: self.enqueue(3),
                        self.advance,
                        self.serve,
                    )
                )()
            self.busy = False
        if self.v["capture"] == "late":
            floor_at = self.floor_at
        if self.v["end"] == "late":
            t = len(self.tl)
        if self.v["end"] == "early":
            read_slot, linked_index = self.read_slot, self.linked_index
        if self.v["order"] == "floor first":
            self.ck = self.ck | {"floor": floor_at}
            if stop == 0:
                return
        self.flushed, self.tlf = max(self.flushed, end), max(self.tlf, t)
        if stop == 0:
            return
        if stop == 9:
            self.ck = {
                "read": read_slot,
                "queue": linked_index,
                "scan": scan_from,
                "tl": t,
                "log": end,
                "floor": floor_at,
                "eaten": eaten,
            }
            self.ck |= {"hopped": hops_from, "claimed": claimed_slot, "fired": fired}

    def crash(self, power, lose=0):
        if power:
            keep = self.rnd.randrange(self.flushed, len(self.log) + 1)
            tk = self.rnd.randrange(self.tlf, len(self.tl) + 1)
            del self.log[keep:]
            del self.tl[tk:]
            for u, U in self.tl.kept():
                if U["off"] >= keep:
                    del self.tl[u:]
                    break
            self.true = {i: d for i, d in self.true.items() if d < keep}
            self.repl = [r for r in self.repl if r[1] < keep]
            self.dues = {m["id"]: m["due"] for m in self.log}
            self.bad["damage"] += keep < self.ck["log"] or len(self.tl) < self.ck["tl"]
            if self.rnd.random() < 0.5:
                self.log.start, self.tl.start = self.was  # the last removal was not durable
        self.flushed, self.tlf = len(self.log), len(self.tl)  # recovery fsyncs what it keeps
        self.open(lose)

    def open(self, lose=0):
        self.begin_listings(self.seed)
        self.owed, self.met = {}, set()  # no page is missing here
        log = self.log
        self.opened = len(log)
        qs = [m["q"] for m in log if m["k"] in "pd"]
        self.next_q = qs[-1] + 1 if qs else 0  # the queue's last entry stays
        first = next((m["q"] for _, m in log.kept() if m["k"] in "pd"), None)
        if lose:  # 1: no timer log, no wheel. 2: no checkpoint either
            self.info["rebuilt without a checkpoint" if lose > 1 else "rebuilt"] += 1
            self.tl = File()
            self.was = (log.start, 0)
            self.ck = (
                self.ck
                | {
                    "scan": log.start if self.v["rebuild"] == "all" else self.ck["scan"],
                    "tl": 0,
                    "hopped": 0,
                }
                | ({"read": self.now // P, "floor": log.start, "log": 0} if lose > 1 else {})
            )
            self.ck["queue"] = next(
                (m["q"] for o, m in log.kept() if m["k"] in "pd" and o >= self.ck["floor"]),
                self.next_q,
            )
        self.read_slot, scan_from, self.floor_at, self.eaten = (
            self.ck["read"],
            self.ck["scan"],
            self.ck["floor"],
            min(self.ck["eaten"], len(log)),
        )
        self.claimed_slot = self.read_slot
        self.near, self.taken, self.rolls, self.passes, self.busy = {}, [], {}, [], False
        self.slot_of = {}
        self.hops = {}
        self.until = 0 if self.v["until"] == "forget" else self.ck["claimed"]
        self.fired = -1 if self.v["frontier"] == "forget" else self.ck["fired"]
        self.old = self.old and self.rnd.random() < 0.5
        self.queue = [None] * (self.next_q if first is None else first) + [
            o for o, m in log.kept() if m["k"] in "pd"
        ]
        self._qi = {o: i for i, o in enumerate(self.queue) if o is not None}
        self.done = {
            m["origin"]: c
            for c, m in log.kept()
            if c >= scan_from and m.get("origin", -1) >= self.floor_at
        }
        self.past = set(self.done)
        del self.tl[self.ck["tl"] :]
        self.wheel = [None] * N
        for u, U in self.tl.kept():
            if U["slot"] >= self.read_slot:
                self.wheel[U["slot"] % N] = (U["slot"], u)
        self.tlf = len(self.tl)  # in this order, each fsynced
        self.unit = {U["off"]: u for u, U in self.tl.kept()}
        self.round = -1, {}
        self.hopped = {
            U["off"]: u for u, U in self.tl.kept() if u >= self.ck["hopped"] and U["hop"]
        }
        self.linked_index = self.ck["queue"]
        self.cancelled = {}
        self.enqueue(10**9)
        for sl in range(self.read_slot, self.read_slot + 3 * N):
            for u in self.chain(sl):  # a delete below the floor has a copy above it
                if self.tl[u]["off"] >= self.floor_at and log[self.tl[u]["off"]]["k"] == "d":
                    self.cancelled[log[self.tl[u]["off"]]["id"]] = 1
        self.claim()
        last = log[-1] if len(log) > log.start else {}
        if last.get("replaces") is not None and last["k"] == "p" and "origin" not in last:
            i = last["replaces"]
            self.cancelled[i] = 1
            self.append(k="d", due=self.due(i), id=i)
