"""The rules that timers keep, as an executable model: random histories of one small store.

Slots, clock, crashes (between any two appends), power cuts (a prefix of the log, torn flushes of
the wheel), long stops, clock steps. Without delay levels, retention, consumers, brokers:
`cleaning_model.py` has a floor and what is removed, `handover_model.py` a broker in
between. `RULES` are the design's. Each is a switch: `WRONG` takes one away, and the model's own
oracle, `bad`, finds what goes wrong; nothing depends on those in `SAME`.
`tests/test_rules_model.py` plays such histories with the real store.

A roll appends no message. It *hops*: it links one more unit, further ahead on the timer's grid,
that points to the message where it lies.

counts  Of the units of one message the last one linked counts; all others are superseded. So a
        slot that is read again after a crash hops only what has no later unit.
hopped  The checkpoint holds the hops cursor: the oldest unit that a hop linked from a slot which
        the read cursor has not passed. Opening reads the hops' units from the hops cursor on, and
        knows by them which units of slots from the read cursor on are superseded.
until   An earlier life's hops cursor stays until the read cursor has passed all slots that had been
        claimed by then, also over further crashes: a unit does not say from where it hopped.
hops    The read cursor passes a slot once every hop from it has its unit. The read cursor, the
        queue cursor, the timer log's end and the hops cursor are captured at one moment. So units
        behind that end are needed by nobody.
roll    A unit hops as soon as its slot is claimed, or once that has begun: both are right.
base    A hop is placed from max(now, the read cursor, its own slot), so it leads ahead whatever the
        clock does.
rolls   to: From the last claimed slot on, so it comes late into none; to any is as right.
leaves  A delete hops as its target does, also when overdue. The target leaves the cancelled set
        when the read cursor passes the delete's last unit, not before. A cancelled timer's own unit
        hops on, or is dropped: its message need not be read for either.
ring    A slot's place is used again once the read cursor has passed the slot. So a hop always has
        room ahead, behind all that can be claimed.
slots   After a crash the slots are made anew from the units before the checkpoint's end: those on
        disk may be later ones, in places that were used again.
overdue A roll that is due by the clock hops as any, and fires from its own slot; or it fires from
        where it waits, which is as right.
stride  The window less one slot, the longest hop that leads ahead from a slot which has begun.
old     A store that rolled by messages goes on with hops. What it rolled is done, as ever.
owed    The claim cursor goes with the clock. Where the page of a unit is missing, the claim leaves
        the slot: what was not met of its chain is owed from that unit on, and claimed later, the
        oldest slot first. The claim cursor is never more than half the ring ahead of the read
        cursor.
owes    The read cursor passes no slot that owes.
forgets A delete waits for the read cursor, so for all that is owed in slots before it.
looks   A listing, or a lookup by id, walks what is owed.
scan    A checkpoint's copies cursor keeps the copies of all slots that the read cursor has not
        passed, also behind what owes.
"""

import random
from collections import Counter

from tests.models.oracle import LEAD, SL, CrashError, N, Oracle, P, W

HOP = W - 1

RULES = {
    "base": "max",
    "claim": "cursor",
    "dele": "read",
    "ring": "read",
    "slots": "of the units",
    "roll": "claimed",
    "reopen": "cut",
    "counts": "last",
    "hopped": "slots",
    "until": "claimed",
    "hops": "wait",
    "hop": "own slot",
    "rolls to": "unclaimed",
    "overdue": "hops",
    "stride": HOP,
    "copies": "done",
    "cancelled": "hop",
    "leaves": "last slot",
    "beside": "stays",
    "owed": "from there",
    "owes": "waits",
    "forgets": "read",
    "looks": "owed",
    "scan": "read",
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
        read_slot = self.now // P
        self.ck = {
            "read": read_slot,
            "queue": 0,
            "scan": 0,
            "tl": 0,
            "log": 0,
            "hopped": 0,
            "claimed": read_slot,
        }
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
        return (self.claimed_slot if self.v["ring"] == "claimed" else self.read_slot) + N

    def place(self, due, own=0):
        d, w, hop = due // P, self.now // P, self.v["stride"]
        base = {"w": w, "max": max(w, self.read_slot), "read": self.read_slot}[self.v["base"]]
        if self.v["hop"] == "own slot":
            base = max(base, own)
        if self.v["rolls to"] == "unclaimed" and not self.old:
            base = max(base, self.claimed_slot - 1)
        top = self.top()
        if d < base + W and d < top:
            return max(d, self.read_slot), False
        k = max(0, (d - base - W) // hop + 1)
        while d - k * hop >= top:
            k += 1
        sl = d - k * hop
        if sl < self.read_slot:
            self.info["roll behind the read cursor"] += 1
            sl = self.read_slot
        return sl, True

    def enqueue(self, n):
        while self.linked_index < len(self.queue) and n:
            o = self.queue[self.linked_index]
            m = self.log[o]
            n -= 1
            sl, roll = (self.read_slot, False) if o in self.done else self.place(m["due"])
            self.link(o, sl, roll)
            self.linked_index += 1
            self.rolls.pop(o, 0)

    def link(self, o, sl, roll, hop=None):  # hop: the slot that it hops from
        if not self.read_slot <= sl < self.read_slot + N:
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
        lim = max(self.now // P, self.read_slot) + LEAD
        if sl <= lim if self.v["claim"] == "formula" else sl < self.claimed_slot:
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
        lim = max(self.now // P, self.read_slot) + LEAD
        while self.claimed_slot <= lim:
            if self.claimed_slot >= self.read_slot + SL:
                break  # the rest of the ring is for what is put
            units = [*self.chain(self.claimed_slot)]
            met = len(units)
            if units and self.pages.random() < self.v["cold"]:
                met = self.pages.randrange(met)
                if self.v["owed"] != "forgotten":
                    self.owed[self.claimed_slot] = units[met]
                self.info["owed"] += 1
            self.meet(units[:met])
            self.claimed_slot += 1

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
                return "keep"  # stays till the read cursor passes its slot
            if self.v["dele"] == "clock" and self.now >= m["due"]:
                return "keep"
        elif m["id"] in self.cancelled and self.is_dropped(U):
            return "drop"
        elif self.now >= m["due"] and not (U["roll"] and self.hops_overdue):
            return "fire"
        if not U["roll"]:
            return None
        ok = {
            "claimed": True,
            "begun": self.now // P >= U["slot"],
            "read": self.read_slot == U["slot"],
        }["begun" if self.old else self.v["roll"]]
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
        while self.now // P > self.read_slot and self.claimed_slot > self.read_slot:
            if self.read_slot in self.owed and self.v["owes"] == "waits":
                return
            if any(sl < self.read_slot for sl in self.rolls.values()):
                return
            if any(
                self.tl[u]["slot"] <= self.read_slot
                for u, r in self.taken
                if r == "fire" or self.old or self.v["hops"] == "wait"
            ):
                return
            mine = [u for u in self.near if self.tl[u]["slot"] <= self.read_slot]
            if any(self.ready(u) != "keep" for u in mine):
                return
            for u in mine:
                del self.near[u]
                m = self.log[self.tl[u]["off"]]
                if m["due"] // P <= self.read_slot or self.v["beside"] == "forget":
                    self.cancelled.pop(m["id"], 0)
            self.read_slot += 1
            if self.v["claim"] == "cursor":
                self.claim()

    def forget_deletes(self):  # of slots that have ended, and hold nothing else
        for sl in range(self.read_slot, min(self.claimed_slot, self.now // P)):
            mine = [u for u in self.near if self.tl[u]["slot"] == sl]
            if sl not in self.owed and all(self.ready(u) == "keep" for u in mine):
                for u in mine:
                    del self.near[u]
                    self.cancelled.pop(self.log[self.tl[u]["off"]]["id"], 0)

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

        if any(map(mine, self.queue[self.linked_index :])) or any(map(linked, self.near)):
            return True
        if any(r == "roll" and linked(u) for u, r in self.taken):
            return True  # on its way from one slot to the next
        if self.v["looks"] == "owed" and any(
            any(map(linked, self.walk(u))) for u in self.owed.values()
        ):
            return True
        grid = range(self.due(i) // P, self.read_slot - 1, -self.v["stride"])
        cand = [c for c in grid if self.claimed_slot <= c < self.read_slot + N]
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
        read_slot, linked_index, t, end, wheel = (
            self.read_slot,
            self.linked_index,
            len(self.tl),
            len(self.log),
            list(self.wheel),
        )
        scan_from = (
            min(
                (
                    c
                    for o, c in self.done.items()
                    if self.is_kept(self.slot_of.get(o, read_slot), read_slot)
                    or self.qi[o] >= linked_index
                ),
                default=end,
            )
            if self.done
            else end
        )
        hops_from, claimed_slot = self.needed_units(read_slot, t)
        self.flushed, self.tlf = max(self.flushed, end), t
        if stop == 0:
            return
        for i in range(N):
            if stop == 9 or self.rnd.random() < 0.5:
                self.disk[i] = wheel[i]
        if stop == 9:
            self.ck = {
                "read": read_slot,
                "queue": linked_index,
                "scan": scan_from,
                "tl": t,
                "log": end,
                "hopped": hops_from,
                "claimed": claimed_slot,
            }

    def is_kept(self, sl, read_slot):  # the copy of what was in this slot, by the copies cursor
        return (
            sl >= self.claimed_slot or sl == read_slot
            if self.v["scan"] == "not behind the read cursor"
            else sl >= read_slot
        )

    def needed_units(self, read_slot, t):  # and before which slot the units of its time hopped
        hops_from, claimed_slot = (
            min([u for u, sl in self.hops.items() if sl >= read_slot], default=t),
            self.claimed_slot,
        )
        if read_slot < self.until:  # an earlier life's hops
            hops_from, claimed_slot = (
                min(hops_from, self.ck["hopped"]),
                max(claimed_slot, self.until),
            )
        return (t if self.v["hopped"] == "end" else hops_from), claimed_slot

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
        self.read_slot, scan_from = self.ck["read"], self.ck["scan"]
        self.claimed_slot = self.read_slot
        self.near, self.taken, self.rolls, self._qi, self.hops = {}, [], {}, {}, {}
        self.owed, self.met = {}, set()  # by slot: the unit at which its claim goes on
        self.until = 0 if self.v["until"] == "forget" else self.ck["claimed"]
        self.old = self.old and self.rnd.random() < 0.5
        self.queue = [o for o, m in enumerate(self.log) if m["k"] in "pd"]
        self.done = {
            m["origin"]: c for c, m in enumerate(self.log) if c >= scan_from and "origin" in m
        }
        if self.v["copies"] == "fired" and not self.old:
            self.done = {o: c for o, c in self.done.items() if self.log[c]["k"] == "f"}
        self.wheel = [None] * N
        for i, h in enumerate(self.disk if self.v["slots"] == "on disk" else []):
            u = h[1] if h and h[1] < len(self.tl) else -1
            while u >= self.ck["tl"]:  # walked back to before the checkpoint's end
                u = self.tl[u]["prev"]
            self.wheel[i] = (h[0], u) if u >= 0 else None
        if self.v["reopen"] == "cut":
            del self.tl[self.ck["tl"] :]
            self.tlf = len(self.tl)
        for u, U in enumerate(self.tl if self.v["slots"] == "of the units" else []):
            if U["slot"] >= self.read_slot:
                self.wheel[U["slot"] % N] = (U["slot"], u)
        self.slot_of = {U["off"]: U["slot"] for U in self.tl}
        self.hopped = self.last_units()
        self.linked_index = max((self.qi[U["off"]] + 1 for U in self.tl), default=0)
        self.cancelled = {}
        self.enqueue(10**9)
        for sl in range(self.read_slot, self.read_slot + 3 * N):
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
        return {U["off"]: u for u, U in enumerate(self.tl) if u >= self.ck["hopped"] and U["hop"]}


FIRES_WAITING = {"overdue": "fires", "cancelled": "drop", "rolls to": "any", "roll": "begun"}
WRONG = [
    {"base": "w"} | FIRES_WAITING,
    {"claim": "formula"},
    {"dele": "clock"},
    {"ring": "claimed"},
    {"slots": "on disk"},
    {"reopen": ""},
    {"counts": "all"},
    {"counts": "first"},
    {"hopped": "end"},
    {"until": "forget"},
    {"hops": "no"},
    {"hop": "base"} | FIRES_WAITING,
    {"stride": W},
    {"copies": "fired"},
    {"leaves": "first slot"},
    {"owed": "forgotten"},
    {"owed": "from the head"},
    {"owes": "passed"},
    {"forgets": "emptied"},
    {"looks": "no"},
    {"scan": "not behind the read cursor"},
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
