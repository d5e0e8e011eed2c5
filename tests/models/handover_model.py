"""The rules of hops beside a broker: random histories of a store that a broker has in between.

`rules_model.py` with lives of a broker in between. A broker knows nothing of hops: it takes units
as they are, reads each slot from its read cursor on, and rolls by appending the message again, with
one roll more and no origin. Its queue cursor is one past the entry of the last unit's message. It
matches deletes inside one slot alone.

anew    A store is handed over with a timer log and a wheel that are made anew: one unit for each
        timer that is pending, and for each delete that is not passed, placed as if it were put now.
        Nothing else has a unit: not what fired from a slot that the read cursor has not passed, not
        a cancelled timer. So no slot need be finished, and no hop, no chain asks for anything.
last    An empty delete is appended, and has the last unit: so the last unit is that of the queue's
        last entry, behind which a broker goes on. Else it would link again what fired.
order   Units stand in the order of their messages. A broker removes the oldest file of the timer
        log once the message of its last unit lies before the log's start.
again   A broker that is killed goes back to the queue cursor that it flushed last, and links some
        timers again, by then perhaps to other slots. Two units of one message are one timer: the
        last one counts. So opening reads all units, and again in later lives until the read cursor
        has passed the slots of those that are not alone.
match   Opening scans the whole log. A broker's copy stands for the last message before it that
        bears its name, with one roll less; hops count no rolls. All units of what has a copy are
        done.
"""

from tests.models import rules_model
from tests.models.oracle import SL, N, P, W

TSEG = 4  # units in a file of the timer log
RULES = {
    "anew": "pending",
    "last": "entry",
    "order": "messages",
    "again": "last",
    "match": "copies",
}
WRONG = [
    {"anew": "fired"},
    {"anew": "hopped"},
    {"last": "timer"},
    {"order": "due"},
    {"match": "origins"},
    {"again": "each"},
    {"again": "first"},
    {"again": "last at first"},
]


class History(rules_model.Store):
    """One random history of a store that a broker has now and then."""

    def __init__(self, seed, **v):
        self.start = 0  # of the timer log
        super().__init__(seed, **rules_model.RULES | RULES | {"old": 0, "cold": 0} | v)

    def someone(self):
        self.hand_over() if self.rnd.random() < 0.1 else super().someone()

    # ---- handing over
    def hand_over(self):
        if self.v["last"] == "entry":
            self.append(k="d", due=max(self.now, self.read_slot * P), id=-1, rolls=0)
        self.enqueue(len(self.queue))
        offsets = [self.tl[u]["off"] for u in self.all_units() if self.is_anew(u)]
        if self.v["anew"] != "hopped":
            offsets = set(offsets)
        self.read_slot = self.claimed_slot = max(self.read_slot, self.now // P)
        self.tl, self.wheel, self.start = [], [None] * N, 0
        self.hopped, self.hops, self.near, self.taken = {}, {}, {}, []
        by = {"messages": lambda o: o, "due": lambda o: (self.log[o]["id"] < 0, self.log[o]["due"])}
        for o in sorted(offsets, key=by[self.v["order"]]):
            self.link(o, *self.place(self.log[o]["due"]))
        self.near = {}
        self.flush()
        self.info["handed over"] += 1
        self.life_of_a_broker()

    def is_anew(self, u):
        m = self.log[self.tl[u]["off"]]
        if m["k"] == "p" and m["id"] in self.cancelled:
            return False
        if self.v["anew"] == "fired":
            return not self.later(u)
        if self.v["anew"] == "hopped":
            return self.tl[u]["off"] not in self.done
        return not self.over(u)

    def full_files(self):  # the last unit of each
        return range(self.start + TSEG - 1, len(self.tl), TSEG)

    def chain(self, sl):
        for u in super().chain(sl):
            if u < self.start:
                return
            yield u

    def all_units(self):
        return [u for sl in range(self.read_slot, self.top()) for u in self.chain(sl)]

    # ---- a broker
    def life_of_a_broker(self):
        self.linked_index = self.qi[self.tl[-1]["off"]] + 1 if self.tl else 0
        self.claimed_slot = self.read_slot
        checkpoint, self.flushed_index = self.read_slot, self.linked_index
        for _ in range(self.rnd.randrange(40)):
            self.tick(self.rnd.choice((1, P, P)))
            self.broker_links()
            while self.read_slot < self.now // P:
                self.broker_reads(self.read_slot)
                self.read_slot += 1
                self.claimed_slot = self.read_slot
            self.broker_removes()
            if self.rnd.random() < 0.3 or self.read_slot > checkpoint + SL - 2:
                checkpoint, self.flushed_index = self.read_slot, self.linked_index
            if self.rnd.random() < 0.3:
                self.put(self.now + self.rnd.randrange(260))
        self.broker_links()
        if self.rnd.random() < 0.5:
            self.info["linked again"] += self.linked_index - self.flushed_index  # it is killed
            self.linked_index = self.flushed_index
            self.tick(self.rnd.randrange(3 * P))
            self.broker_links()
        self.disk = list(self.wheel)
        t = len(self.tl)
        self.ck = {
            "read": checkpoint,
            "queue": self.linked_index,
            "scan": 0,
            "tl": t,
            "log": len(self.log),
        }
        self.ck |= {"hopped": 0, "claimed": 0}
        if self.v["again"] != "last at first":
            self.ck["claimed"] = max(
                (self.tl[u]["slot"] + 1 for u in self.linked_again()), default=0
            )
        self.flushed, self.tlf = len(self.log), t
        self.open()

    def broker_removes(self):
        live = [self.tl[u]["off"] for u in self.all_units()] + self.queue[self.linked_index :]
        log_start = min(live, default=len(self.log))
        for last in self.full_files():
            if self.tl[last]["off"] >= log_start or last == len(self.tl) - 1:
                return
            self.start = last + 1
            self.info["files removed"] += 1

    def broker_links(self):
        while self.linked_index < len(self.queue):
            o, w = self.queue[self.linked_index], max(self.now // P, self.read_slot)
            due = self.log[o]["due"] // P
            self.linked_index += 1
            if due < w:
                if self.log[o]["k"] == "p":
                    self.broker_copies(o, "f")
            elif due - w < W:
                self.link(o, due, False)
            else:
                self.link(o, w + (W // 2 if due - w - W < W // 3 else W), True)
        self.near = {}

    def broker_reads(self, slot):
        units = [(self.tl[u]["off"], self.tl[u]["roll"]) for u in self.chain(slot)]
        deleted = {self.log[o]["id"] for o, roll in units if self.log[o]["k"] == "d" and not roll}
        for o, roll in units:
            m = self.log[o]
            if m["id"] in deleted and (m["k"] == "p" or not roll):
                continue
            if roll:
                self.broker_copies(o, m["k"])
                self.info["rolled by a broker"] += 1
                self.info["that had hopped"] += any(U["hop"] for U in self.tl if U["off"] == o)
            elif m["k"] == "p":
                self.broker_copies(o, "f")

    def broker_copies(self, o, kind):
        m = {name: value for name, value in self.log[o].items() if name != "origin"}
        rolls = m.get("rolls", 0) + (kind != "f")
        self.append(**m | {"k": kind, "rolls": rolls, "by": "broker"})
        self.flushed_index = self.linked_index  # else it would copy again, by its own doing
        self.durable()

    def pending(self, i):  # a broker's rolls are not on the grid: all that waits is looked through
        def waits(u):
            m = self.log[self.tl[u]["off"]]
            return m["k"] == "p" and m["id"] == i and not self.over(u)

        return super().pending(i) or (i not in self.cancelled and any(map(waits, self.unread())))

    def unread(self):
        return [u for sl in range(self.claimed_slot, self.top()) for u in self.chain(sl)]

    # ---- opening
    def open(self):
        if self.v["match"] == "copies":
            self.name_origins()
        super().open()
        self.past = set(self.done)
        self.cancelled.pop(-1, 0)

    def linked_again(self):  # the units of what hopped, or a killed broker linked again
        units = {}
        for u in range(max(self.ck["hopped"], self.start), len(self.tl)):
            o = self.tl[u]["off"]
            if self.tl[u]["hop"] or self.log[o]["k"] == "p":  # a delete is linked to many slots
                units.setdefault(o, []).append(u)
        several = (us for us in units.values() if len(us) > 1 or self.tl[us[0]]["hop"])
        return [u for us in several for u in us]

    def later(self, u):
        if self.v["again"] == "first":
            return self.hopped.get(self.tl[u]["off"], u) != u
        return super().later(u)

    def last_units(self):
        if self.v["again"] == "each":
            return super().last_units()
        again = self.linked_again()
        if self.v["again"] == "first":
            again.reverse()
        return {self.tl[u]["off"]: u for u in again}

    def name_origins(self):  # what a broker's copies do not say
        for c, m in enumerate(self.log):
            if m.get("by") == "broker" and "origin" not in m:
                kinds = "p" if m["k"] == "f" else m["k"]
                rolls = m["rolls"] - (m["k"] != "f")
                m["origin"] = max(
                    o
                    for o in range(c)
                    if self.log[o]["id"] == m["id"]
                    and self.log[o]["k"] == kinds
                    and self.log[o].get("rolls", 0) == rolls
                )
