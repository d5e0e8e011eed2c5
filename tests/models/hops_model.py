"""Rolls that hop, which the kernels do not do yet: random histories of one small store.

Slots, clock, crashes (between any two appends), power cuts (a prefix of the log, torn flushes of
the wheel), long stops, clock steps. Without delay levels, retention, consumers, brokers. `RULES`
are the design's. Each is a switch: with one taken away the model's own oracle, `bad`, finds what
goes wrong. It is `rules_model.py` with other rules of rolling, and takes its place once the kernels
hop.

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
base    A hop is placed from max(now, R, its own slot), so it leads ahead whatever the clock does.
leaves  A delete hops as its target does, also when overdue. The target leaves the cancelled set
        when R passes the delete's last unit, not before. A cancelled timer's own unit may be
        dropped, or hop on: its message need not be read for that.
ahead   Where the ring has no room ahead of its slot yet, a roll waits in the near wheel.
H       W - 1 slots, the longest hop that leads ahead from a slot which has begun.
old     A store that rolled by messages goes on with hops. What it rolled is done, as ever.
"""

import random
from collections import Counter

P, W, SL, LEAD = 4, 6, 8, 1  # ms a slot, roll window, slots (ring is twice that), lead
H, N = W - 1, 2 * SL


RULES = {
    "base": "max",
    "claim": "cursor",
    "dele": "R",
    "ring": "ck",
    "roll": "begun",
    "reopen": "cut",
    "leap": "empty",
    "counts": "last",
    "T": "slots",
    "until": "claimed",
    "hops": "wait",
    "hop": "own slot",
    "ahead": "waits",
    "H": H,
    "copies": "done",
    "cancelled": "drop",
    "leaves": "last slot",
    "old": 0.3,
    "clock": 1,
    "partial": 0.4,
}


class CrashError(Exception):
    pass


class Store:
    def __init__(self, seed, **v):
        self.v = RULES | v
        self.rnd = random.Random(seed)
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
            self.near[u] = 1
        if hop is not None:
            self.hopped[o] = u
            self.hops[u] = hop
            self.info["hops"] += 1
            self.bad["a hop leads nowhere"] += sl <= hop

    # ---- dequeue
    def chain(self, sl):
        h = self.wheel[sl % N]
        u = h[1] if h and h[0] == sl else -1
        while u >= 0:
            yield u
            u = self.tl[u]["prev"]

    def claim(self):
        lim = max(self.now // P, self.R) + LEAD
        while self.C <= lim:
            if self.C >= self.R + N:
                break  # a ring can hold no more than this
            for u in self.chain(self.C):
                self.near[u] = 1
            self.C += 1

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
        elif self.now >= m["due"]:
            return "fire"
        if not U["roll"]:
            return None
        ok = {"claimed": True, "begun": self.now // P >= U["slot"], "R": self.R == U["slot"]}[
            self.v["roll"]
        ]
        if self.v["ahead"] == "waits" and not self.old:
            ok = ok and (self.place(m["due"], U["slot"])[0] > U["slot"])
        return "roll" if ok else None

    def is_dropped(self, U):  # a cancelled timer's unit; between two slots it may as well hop on
        return (
            not U["roll"] or self.now >= self.log[U["off"]]["due"] or self.v["cancelled"] == "drop"
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
        while self.now // P > self.R and self.C > self.R:
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
                self.cancelled.pop(m["id"], 0)
            self.R += 1
            if self.v["claim"] == "cursor":
                self.claim()

    def leap(self):  # over time in which nothing waits; the checkpointed R goes along
        to, waits = self.now // P, self.Q < len(self.queue) or self.taken or self.near
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
                (c for o, c in self.done.items() if self.slot_of.get(o, R) >= R or self.qi[o] >= Q),
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
        self.hopped = {U["off"]: u for u, U in enumerate(self.tl) if u >= self.ck["T"] and U["hop"]}
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

    # ---- checks
    def truth(self):
        f = Counter(m["id"] for m in self.log if m["k"] == "f")
        gone = set(self.cancelled) | set(self.true) | {r[0] for r in self.repl}
        ids = [m["id"] for m in self.log if m["k"] == "p" and "origin" not in m]
        return f, gone, ids

    def state(self):
        return len(self.log), self.Q, self.R, self.C, len(self.near), len(self.taken)

    def serve(self):
        self.enqueue(99)
        self.claim()
        self.take(99)
        self.put_taken(99)
        self.advance()

    def serve_all(self):
        for _ in range(400):
            a = self.state()
            self.serve()
            if a == self.state():
                return
        self.bad["stuck: livelock"] += 1
        raise StopIteration

    def settle(self):
        self.serve_all()
        f, gone, ids = self.truth()
        if self.R < self.now // P:
            self.bad["stuck: R behind"] += 1
        self.bad["not fired when due"] += sum(
            self.log[i]["due"] <= self.now and not f[i] and i not in gone for i in ids
        )
        n = sum(not f[i] and i not in gone for i in ids)
        live = {
            self.log[self.tl[u]["off"]]["id"]
            for sl in range(self.R, self.R + 3 * N)
            for u in self.chain(sl)
            if self.log[self.tl[u]["off"]]["k"] == "p" and not self.over(u)
        }
        self.bad["count: units - cancelled - done"] += len(live - set(self.cancelled)) != n
        kinds = [
            self.log[self.tl[u]["off"]]["k"]
            for sl in range(self.R, self.R + 3 * N)
            for u in self.chain(sl)
            if not self.over(u)
        ]
        self.info["count: units - 2 x deletes differs"] += kinds.count("p") - kinds.count("d") != n
        self.info["settled"] += 1

    def someone(self):
        rnd, ids = self.rnd, [m["id"] for m in self.log if m["k"] == "p"]
        if not ids:
            return
        i = rnd.choice(ids)
        if rnd.random() < 0.6:
            over = any(m["k"] == "f" and m["id"] == i for m in self.log) or any(
                self.log[self.tl[u]["off"]]["id"] == i for u, _ in self.taken
            )
            if (
                not self.cancel(i)
                and not over
                and i not in self.true
                and i not in {x[0] for x in self.repl}
            ):
                self.bad["False though pending"] += 1
        elif i not in self.cancelled:
            self.cancel(i, self.now + rnd.randrange(0, 200), rnd.random() < 0.1)

    def tick(self, n):
        self.now += n

    def wait_long(self):  # mostly until nothing waits any more
        self.tick(self.rnd.randrange(100, 300))
        self.settle()
        self.tick(self.rnd.randrange(SL * P, 500))
        self.leap()

    def die(self):
        raise CrashError

    def stop(self):
        if self.rnd.random() < 0.4:
            self.flush()
        self.crash(self.rnd.random() < 0.5)
        self.now += self.rnd.choice((0, self.rnd.randrange(40), self.rnd.randrange(500)))
        if self.v["clock"]:
            self.now += self.rnd.choice((0, 0, self.rnd.randrange(-200, 1)))

    def history(self):
        r, rr = self.rnd, self.rnd.randrange
        acts = [
            (22, lambda: self.put(self.now + r.choice((rr(-40, 12), rr(0, 30), rr(0, 260))))),
            (8, self.someone),
            (12, lambda: self.tick(rr(1, 9))),
            (10, lambda: self.enqueue(rr(1, 4))),
            (8, self.claim),
            (8, lambda: self.take(rr(1, 4))),
            (8, lambda: self.put_taken(rr(1, 3))),
            (6, self.advance),
            (5, lambda: self.flush(9 if r.random() > self.v["partial"] else rr(2))),
            (3, lambda: self.v["clock"] and self.tick(rr(-240, 241))),
            (3, self.settle),
            (2, self.wait_long),
            (2, self.die),
            (5, self.stop),
        ]
        try:
            self.play(acts, rr(40, 140))
        except StopIteration:
            return self
        self.judge()
        return self

    def play(self, acts, count):
        weights = [n for n, _ in acts]
        for act in self.rnd.choices([a for _, a in acts], weights, k=count):
            try:
                act()
            except CrashError:
                self.crash(False)
                self.info["crashes between two appends"] += 1
        end = max([m["due"] for m in self.log] + [self.now, self.R * P]) + 3 * P
        self.settle()
        while self.now < end:
            self.tick(P)
            self.settle()

    def judge(self):
        f, _gone, ids = self.truth()
        old = {r[0]: r[1] for r in self.repl}
        for k, n in {"timers": ids, "cancelled": self.true, "rescheduled": old}.items():
            self.info[k] += len(n)
        for i in ids:
            if f[i] > 1:
                self.bad["twice"] += 1
            if i in self.true and f[i]:
                self.bad["cancelled but fired"] += 1
            elif i in old and f[i]:
                self.bad["reschedule: both"] += 1
            elif i not in self.true and i not in old and not f[i]:
                self.bad["lost"] += 1
        self.bad["count at end"] += bool(self.cancelled)
