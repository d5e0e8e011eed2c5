"""The rules that timers keep, as an executable model: random histories of one small store.

Slots, clock, crashes (between any two appends), power cuts (a prefix of the log, torn flushes of
the wheel), long stops, clock steps. Without delay levels, retention, consumers, brokers:
`cleaning_model.py` has a floor F and what is removed, `handover_model.py` a broker in between.
`RULES` are the design's. Each is a switch: `WRONG` takes one away, and the model's own oracle,
`bad`, finds what goes wrong; nothing depends on those in `SAME`. `tests/test_rules_model.py` plays
such histories with the real store.

A roll appends no message. It *hops*: it links one more unit, further ahead on the timer's grid,
that points to the message where it lies.

counts  Of the units of one message the last one linked counts; all others are superseded. So a
        slot that is read again after a crash hops only what has no later unit.
T       The checkpoint holds T: the oldest unit that a hop linked from a slot which R has not
        passed. Opening reads the hops' units from T on, and knows by them which units of slots
        from R on are superseded.
until   An earlier life's T stays until R has passed all slots that had been claimed by then, also
        over further crashes: a unit does not say from where it hopped.
hops    R passes a slot once every hop from it has its unit. R, Q, the timer log's end and T are
        captured at one moment. So units behind that end are needed by nobody.
roll    A unit hops as soon as its slot is claimed, or once that has begun: both are right.
base    A hop is placed from max(now, R, its own slot), so it leads ahead whatever the clock does.
rolls   to: From the last claimed slot on, so it comes late into none; to any is as right.
leaves  A delete hops as its target does, also when overdue. The target leaves the cancelled set
        when R passes the delete's last unit, not before. A cancelled timer's own unit hops on, or
        is dropped: its message need not be read for either.
ahead   Where the ring has no room ahead of its slot yet, a roll waits in the near wheel.
overdue A roll that is due by the clock hops as any, and fires from its own slot; or it fires from
        where it waits, which is as right.
H       W - 1 slots, the longest hop that leads ahead from a slot which has begun.
old     A store that rolled by messages goes on with hops. What it rolled is done, as ever.
owed    C goes with the clock. Where the page of a unit is missing, the claim leaves the slot: what
        was not met of its chain is owed from that unit on, and claimed later, the oldest slot
        first. C is never more than half the ring ahead of R.
owes    R passes no slot that owes.
forgets A delete waits for R, so for all that is owed in slots before it.
looks   A listing, or a lookup by id, walks what is owed.
L       A checkpoint's L keeps the copies of all slots that R has not passed, also behind what owes.
"""

import random
from collections import Counter

from tests.models.oracle import LEAD, SL, CrashError, N, Oracle, P, W

H = W - 1

RULES = {
    "base": "max",
    "claim": "cursor",
    "dele": "R",
    "ring": "ck",
    "roll": "claimed",
    "reopen": "cut",
    "leap": "empty",
    "counts": "last",
    "T": "slots",
    "until": "claimed",
    "hops": "wait",
    "hop": "own slot",
    "rolls to": "unclaimed",
    "overdue": "hops",
    "ahead": "waits",
    "H": H,
    "copies": "done",
    "cancelled": "hop",
    "leaves": "last slot",
    "beside": "stays",
    "owed": "from there",
    "owes": "waits",
    "forgets": "R",
    "looks": "owed",
    "L": "R",
    "old": 0.3,
    "clock": 1,
    "partial": 0.4,
    "cold": 0.2,
}


class Store(Oracle):
    def __init__(self, seed, **v):
        self.v = RULES | v
        self.rnd, self.pages = random.Random(seed), random.Random(seed)
        self.now = 4000
        self.group = self.rnd.random() < 0.5
        self.log, self.tl, self.flushed, self.tlf = [], [], 0, 0
        R = self.now // P
        self.ck = {"R": R, "Q": 0, "L": 0, "tl": 0, "log": 0, "T": 0, "C": R}
        self.old = self.rnd.random() < self.v["old"]  # it rolls by messages, as stores once did
        self.disk = [None] * N
        self.bad = Counter()
        self.info = Counter()
        self.true = {}
        self.repl = []
        self.open()

    # ---- the log; a message's identity is the offset of its first put
    def append(self, **m):
        self.log.append(m)
        o = len(self.log) - 1
        if m["k"] in "pd":
            self.queue.append(o)
        return o

    def durable(self):
        if self.group:
            self.flushed = len(self.log)

    # ---- enqueue
    def top(self):
        return (self.ckR if self.v["ring"] == "ck" else self.R) + N

    def place(self, due, own=0):
        d, w, hop = due // P, self.now // P, self.v["H"]
        base = {"w": w, "max": max(w, self.R), "R": self.R}[self.v["base"]]
        if self.v["hop"] == "own slot":
            base = max(base, own)
        if self.v["rolls to"] == "unclaimed" and not self.old:
            base = max(base, self.C - 1)
        top = self.top()
        if d < base + W and d < top:
            return max(d, self.R), False
        k = max(0, (d - base - W) // hop + 1)
        while d - k * hop >= top:
            k += 1
        sl = d - k * hop
        if sl < self.R:
            self.info["roll behind R"] += 1
            sl = self.R
        return sl, True

    def enqueue(self, n):
        while self.Q < len(self.queue) and n:
            o = self.queue[self.Q]
            m = self.log[o]
            n -= 1
            sl, roll = (self.R, False) if o in self.done else self.place(m["due"])
            self.link(o, sl, roll)
            self.Q += 1
            self.rolls.pop(o, 0)

    def link(self, o, sl, roll, hop=None):  # hop: the slot that it hops from
        if not self.R <= sl < self.top():
            self.bad["outside range"] += 1
        i = sl % N
        h = self.wheel[i]
        to = self.log[o]["due"] // P if roll else sl  # where it leads: a roll's unit says so
        prev = h[1] if h and h[0] == sl else -1
        self.tl.append(
            {"slot": sl, "prev": prev, "off": o, "roll": roll, "hop": hop is not None, "to": to}
        )
        u = len(self.tl) - 1
        self.wheel[i] = (sl, u)
        self.slot_of[o] = sl
        lim = max(self.now // P, self.R) + LEAD
        if sl <= lim if self.v["claim"] == "formula" else sl < self.C:
            self.meet([u])
        if hop is not None:
            self.hopped[o] = u
            self.hops[u] = hop
            self.info["hops"] += 1
            self.bad["a hop leads nowhere"] += sl <= hop

    # ---- dequeue
    def chain(self, sl):
        h = self.wheel[sl % N]
        yield from self.walk(h[1] if h and h[0] == sl else -1)

    def walk(self, u):
        while u >= 0:
            yield u
            u = self.tl[u]["prev"]

    def claim(self):
        lim = max(self.now // P, self.R) + LEAD
        while self.C <= lim:
            if self.C >= self.R + SL:
                break  # the rest of the ring is for what is put
            units = [*self.chain(self.C)]
            met = len(units)
            if units and self.pages.random() < self.v["cold"]:
                met = self.pages.randrange(met)
                if self.v["owed"] != "forgotten":
                    self.owed[self.C] = units[met]
                self.info["owed"] += 1
            self.meet(units[:met])
            self.C += 1

    def meet(self, units):  # a unit of a claimed slot comes into the near wheel, once
        self.bad["claimed twice"] += any(u in self.met for u in units)
        self.met.update(units)
        self.near.update(dict.fromkeys(units, 1))

    def pay(self):  # claim what is owed of the oldest slot
        if self.owed:
            sl = min(self.owed)
            u = self.owed.pop(sl)
            self.meet([*(self.chain(sl) if self.v["owed"] == "from the head" else self.walk(u))])

    def later(self, u):  # has its message a later unit, which counts instead
        last = self.hopped.get(self.tl[u]["off"], u)
        return {"last": last > u, "all": False, "first": self.tl[u]["hop"]}[self.v["counts"]]

    def over(self, u):
        return self.tl[u]["off"] in self.done or self.later(u)

    def ready(self, u):
        U, m = self.tl[u], self.log[self.tl[u]["off"]]
        if self.over(u):
            return "drop"
        if m["k"] == "d":
            if not U["roll"]:
                return "keep"  # stays till R passes its slot
            if self.v["dele"] == "clock" and self.now >= m["due"]:
                return "keep"
        elif m["id"] in self.cancelled and self.is_dropped(U):
            return "drop"
        elif self.now >= m["due"] and not (U["roll"] and self.hops_overdue):
            return "fire"
        if not U["roll"]:
            return None
        ok = {"claimed": True, "begun": self.now // P >= U["slot"], "R": self.R == U["slot"]}[
            "begun" if self.old else self.v["roll"]
        ]
        if self.v["ahead"] == "waits" and not self.old:
            ok = ok and (self.place(m["due"], U["slot"])[0] > U["slot"])
        return "roll" if ok else None

    @property
    def hops_overdue(self):  # a roll hops whatever the clock says: it fires from its own slot
        return self.v["overdue"] == "hops" and not self.old

    def is_dropped(self, U):  # a cancelled timer's unit; between two slots it may as well hop on
        return (
            not U["roll"]
            or (self.now >= self.log[U["off"]]["due"] and not self.hops_overdue)
            or self.v["cancelled"] == "drop"
        )

    def due_of(self, u):
        return self.log[self.tl[u]["off"]]["due"]

    def take(self, n):  # under the verdict lock
        for u in sorted(self.near, key=lambda u: (self.due_of(u), u)):
            r = self.ready(u)
            if r == "drop":
                del self.near[u]
            elif r in ("fire", "roll") and n:
                del self.near[u]
                self.taken.append((u, r))
                n -= 1
                if r == "fire" and self.now < self.log[self.tl[u]["off"]]["due"]:
                    self.bad["early"] += 1

    def put_taken(self, n):
        while self.taken and n:
            u, r = self.taken.pop(0)
            n -= 1
            if self.stale(u):
                continue
            U = self.tl[u]
            m = self.log[U["off"]]
            if r == "roll" and not self.old:
                self.link(U["off"], *self.place(m["due"], U["slot"]), hop=U["slot"])
                if m["k"] == "d" and self.v["leaves"] == "first slot":
                    self.cancelled.pop(m["id"], 0)
                continue
            c = self.append(**(m | {"k": "f" if r == "fire" else m["k"], "origin": U["off"]}))
            self.done[U["off"]] = c
            if r == "roll":
                self.rolls[c] = U["slot"]
                self.info["rolls"] += 1

    def stale(self, u):  # superseded since it was taken: cleaning can do that
        return False

    def advance(self):
        if self.v["forgets"] == "emptied":
            self.forget_deletes()
        while self.now // P > self.R and self.C > self.R:
            if self.R in self.owed and self.v["owes"] == "waits":
                return
            if any(sl < self.R for sl in self.rolls.values()):
                return
            if any(
                self.tl[u]["slot"] <= self.R
                for u, r in self.taken
                if r == "fire" or self.old or self.v["hops"] == "wait"
            ):
                return
            if self.v["ring"] == "ck" and self.R >= self.ckR + SL:
                self.flush()
            mine = [u for u in self.near if self.tl[u]["slot"] <= self.R]
            if any(self.ready(u) != "keep" for u in mine):
                return
            for u in mine:
                del self.near[u]
                m = self.log[self.tl[u]["off"]]
                if m["due"] // P <= self.R or self.v["beside"] == "forget":
                    self.cancelled.pop(m["id"], 0)
            self.R += 1
            if self.v["claim"] == "cursor":
                self.claim()

    def forget_deletes(self):  # of slots that have ended, and hold nothing else
        for sl in range(self.R, min(self.C, self.now // P)):
            mine = [u for u in self.near if self.tl[u]["slot"] == sl]
            if sl not in self.owed and all(self.ready(u) == "keep" for u in mine):
                for u in mine:
                    del self.near[u]
                    self.cancelled.pop(self.log[self.tl[u]["off"]]["id"], 0)

    def leap(self):  # over time in which nothing waits; the checkpointed R goes along
        to, waits = self.now // P, self.Q < len(self.queue) or self.taken or self.near or self.owed
        used = any(h and h[0] >= self.R for h in self.wheel)
        if to < self.R + SL or self.v["leap"] == "no":
            return
        if (waits or used) and not (used and not waits and self.v["leap"] == "over units"):
            return
        self.info["leaps"] += 1
        self.R = self.C = to
        if self.v["leap"] != "unclaimed":  # what is overdue comes into R's slot, which is claimed
            self.C += 1
        if self.v["leap"] != "R alone":
            self.ckR = to

    # ---- the public face
    def put(self, due):
        o = self.append(k="p", due=due, id=len(self.log))
        self.durable()
        return o

    def pending(self, i):  # is it still to come: queue, near wheel, grid slots
        if i in self.cancelled:
            return False

        def mine(o):
            return self.log[o]["id"] == i and self.log[o]["k"] == "p" and o not in self.done

        def linked(u):
            return not self.later(u) and mine(self.tl[u]["off"])

        if any(map(mine, self.queue[self.Q :])) or any(map(linked, self.near)):
            return True
        if any(r == "roll" and linked(u) for u, r in self.taken):
            return True  # on its way from one slot to the next
        if self.v["looks"] == "owed" and any(
            any(map(linked, self.walk(u))) for u in self.owed.values()
        ):
            return True
        grid = range(self.due(i) // P, self.R - 1, -self.v["H"])
        cand = [c for c in grid if self.C <= c < self.R + N]
        for j, c in enumerate(reversed(cand)):
            if any(map(linked, self.chain(c))):
                self.info["max candidates"] = max(self.info["max candidates"], j + 1)
                return True
        return False

    def cancel(self, i, new=None, tear=0):
        if i in self.cancelled:
            return True
        if not self.pending(i):
            return False
        self.cancelled[i] = 1
        self.append_cancel(i, new, tear)
        return True

    def due(self, i):  # of an identity
        return self.log[i]["due"]

    def append_cancel(self, i, new, tear):
        n = None
        if new is not None:
            n = self.append(k="p", due=new, id=len(self.log), replaces=i)
            if tear:
                self.repl.append([i, n, None])
                raise CrashError
        d = self.append(k="d", due=self.due(i), id=i)
        self.durable()
        if n is None:
            self.true[i] = d
        else:
            self.repl.append([i, n, d])

    # ---- flush, crash, recovery
    def flush(self, stop=9):
        R, Q, t, end, wheel = self.R, self.Q, len(self.tl), len(self.log), list(self.wheel)
        L = (
            min(
                (
                    c
                    for o, c in self.done.items()
                    if self.is_kept(self.slot_of.get(o, R), R) or self.qi[o] >= Q
                ),
                default=end,
            )
            if self.done
            else end
        )
        T, C = self.needed_units(R, t)
        self.flushed, self.tlf = max(self.flushed, end), t
        if stop == 0:
            return
        for i in range(N):
            if stop == 9 or self.rnd.random() < 0.5:
                self.disk[i] = wheel[i]
        if stop == 9:
            self.ck = {"R": R, "Q": Q, "L": L, "tl": t, "log": end, "T": T, "C": C}
            self.ckR = R

    def is_kept(self, sl, R):  # the copy of what was in this slot, by L
        return sl >= self.C or sl == R if self.v["L"] == "not behind R" else sl >= R

    def needed_units(self, R, t):  # T, and before which slot the units of its time hopped
        T, C = min([u for u, sl in self.hops.items() if sl >= R], default=t), self.C
        if R < self.until:  # an earlier life's hops
            T, C = min(T, self.ck["T"]), max(C, self.until)
        return (t if self.v["T"] == "end" else T), C

    @property
    def qi(self):
        if len(self._qi) != len(self.queue):
            self._qi = {o: i for i, o in enumerate(self.queue)}
        return self._qi

    def crash(self, power):
        if power:
            keep = self.rnd.randrange(self.flushed, len(self.log) + 1)
            tk = self.rnd.randrange(self.tlf, len(self.tl) + 1)
            del self.log[keep:]
            del self.tl[tk:]
            for u, U in enumerate(self.tl):
                if U["off"] >= keep:
                    del self.tl[u:]
                    break
            self.true = {i: d for i, d in self.true.items() if d < keep}
            self.repl = [r for r in self.repl if r[1] < keep]
            self.bad["damage"] += keep < self.ck["log"] or len(self.tl) < self.ck["tl"]
        self.flushed, self.tlf = len(self.log), len(self.tl)  # recovery fsyncs what it keeps
        self.open()

    def open(self):
        self.R, L = self.ck["R"], self.ck["L"]
        self.C = self.ckR = self.R
        self.near, self.taken, self.rolls, self._qi, self.hops = {}, [], {}, {}, {}
        self.owed, self.met = {}, set()  # by slot: the unit at which its claim goes on
        self.until = 0 if self.v["until"] == "forget" else self.ck["C"]
        self.old = self.old and self.rnd.random() < 0.5
        self.queue = [o for o, m in enumerate(self.log) if m["k"] in "pd"]
        self.done = {m["origin"]: c for c, m in enumerate(self.log) if c >= L and "origin" in m}
        if self.v["copies"] == "fired" and not self.old:
            self.done = {o: c for o, c in self.done.items() if self.log[c]["k"] == "f"}
        self.wheel = [h if h and h[1] < len(self.tl) else None for h in self.disk]
        if self.v["reopen"] == "cut":  # heads past the checkpoint are walked back to it
            for i, h in enumerate(self.wheel):
                if h:
                    u = h[1]
                    while u >= self.ck["tl"]:
                        u = self.tl[u]["prev"]
                    self.wheel[i] = (h[0], u) if u >= 0 else None
            self.disk = list(self.wheel)
            del self.tl[self.ck["tl"] :]
            self.tlf = len(self.tl)  # in this order, each fsynced
        for u in range(self.ck["tl"], len(self.tl)):
            U = self.tl[u]
            h = self.wheel[U["slot"] % N]
            if not h or h[0] < U["slot"] or (h[0] == U["slot"] and h[1] < u):
                self.wheel[U["slot"] % N] = (U["slot"], u)
        self.slot_of = {U["off"]: U["slot"] for U in self.tl}
        self.hopped = self.last_units()
        self.Q = max((self.qi[U["off"]] + 1 for U in self.tl), default=0)
        self.cancelled = {}
        self.enqueue(10**9)
        for sl in range(self.R, self.R + 3 * N):
            for u in self.chain(sl):
                m = self.log[self.tl[u]["off"]]
                if m["k"] == "d":
                    self.cancelled[m["id"]] = 1
        if self.v["reopen"]:
            self.claim()
        last = self.log[-1] if self.log else {}
        if last.get("replaces") is not None and last["k"] == "p" and "origin" not in last:
            self.cancelled[last["replaces"]] = 1
            self.append(k="d", due=self.log[last["replaces"]]["due"], id=last["replaces"])

    def last_units(self):  # by message, of what hopped
        return {U["off"]: u for u, U in enumerate(self.tl) if u >= self.ck["T"] and U["hop"]}


FIRES_WAITING = {"overdue": "fires", "cancelled": "drop", "rolls to": "any", "roll": "begun"}
WRONG = [
    {"base": "w"} | FIRES_WAITING,
    {"claim": "formula"},
    {"dele": "clock"},
    {"ring": "R"},
    {"reopen": ""},
    {"leap": "over units"},
    {"leap": "R alone"},
    {"leap": "unclaimed"},
    {"counts": "all"},
    {"counts": "first"},
    {"T": "end"},
    {"until": "forget"},
    {"hops": "no"},
    {"hop": "base"} | FIRES_WAITING,
    {"ahead": "no"},
    {"H": W},
    {"copies": "fired"},
    {"leaves": "first slot"},
    {"owed": "forgotten"},
    {"owed": "from the head"},
    {"owes": "passed"},
    {"forgets": "emptied"},
    {"looks": "no"},
    {"L": "not behind R"},
]
SAME = [
    {"old": 1},  # all roll by messages when they are made
    {"cancelled": "drop"},
    {"roll": "begun"},
    {"overdue": "fires"},
    {"rolls to": "any"},
    {"cold": 0},  # no page is ever missing
    FIRES_WAITING,
]


def found(history, first, count, **switches):
    """What the oracle finds wrong in so many histories, from a seed on."""
    histories = [history(seed, **switches).history() for seed in range(first, first + count)]
    return {what for each in histories for what, n in each.bad.items() if n}
