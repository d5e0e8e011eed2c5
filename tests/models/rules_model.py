"""The rules of docs/design.md as an executable model: random histories of one small store.

Slots, clock, crashes (between any two appends), power cuts (a prefix of the log, torn flushes of
the wheel), long stops, clock steps, services that go on during a flush. An offset is an index into
the log; to read below the start of the log, or of the timer log, raises. Without delay levels,
brokers, handover. `RULES` are the design's. Each is a switch: `WRONG` takes it away, and the
model's own oracle, `bad`, finds what goes wrong. `tests/test_rules_model.py` plays such histories
with the real store. `cleaning_model.py` has the rules of cleaning, which moves the floor F.
"""

import random
from collections import Counter

P, W, SL, LEAD = 4, 6, 8, 1  # ms a slot, roll window, slots (ring is twice that), lead
H, N = 2 * W // 3, 2 * SL

RULES = {
    "claim": "cursor",
    "dele": "R",
    "ring": "ck",
    "roll": "begun",
    "reopen": "cut",
    "leap": "empty",
    "partial": 0.4,
    "clock": 1,
}


class CrashError(Exception):
    pass


class GoneError(Exception):
    pass


class File(list):  # a log of segments: what is before `start` was removed
    start = 0

    def __getitem__(self, i):
        if i is None or (not isinstance(i, slice) and 0 <= i < self.start):
            raise GoneError
        return list.__getitem__(self, i)

    def kept(self):
        return ((i, list.__getitem__(self, i)) for i in range(self.start, len(self)))


class Store:
    rules = RULES

    def __init__(self, seed, **v):
        self.v = self.rules | v
        self.rnd = random.Random(seed)
        self.now = 4000
        self.group = self.rnd.random() < 0.5
        self.log, self.tl, self.flushed, self.tlf = File(), File(), 0, 0
        self.ck = {"R": self.now // P, "Q": 0, "L": 0, "tl": 0, "log": 0, "F": 0, "eaten": 0}
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

    def durable(self):
        if self.group:
            self.flushed = len(self.log)

    # ---- enqueue
    def top(self):
        return (self.ckR if self.v["ring"] == "ck" else self.R) + N

    def place(self, due):
        d = due // P
        base = max(self.now // P, self.R)
        top = self.top()
        if d < base + W and d < top:
            return max(d, self.R), False
        k = max(0, (d - base - W) // H + 1)
        while d - k * H >= top:
            k += 1
        if d - k * H < self.R:
            self.info["roll behind R"] += 1
        return max(d - k * H, self.R), True

    def enqueue(self, n):
        while self.Q < len(self.queue) and n:
            o = self.queue[self.Q]
            m = self.log[o]
            n -= 1
            sl, roll = (self.R, False) if o in self.done or o < self.F else self.place(m["due"])
            if not self.R <= sl < self.top():
                self.bad["outside range"] += 1
            i = sl % N
            h = self.wheel[i]
            self.tl.append(
                {"slot": sl, "prev": h[1] if h and h[0] == sl else -1, "off": o, "roll": roll}
            )
            u = len(self.tl) - 1
            self.wheel[i] = (sl, u)
            self.Q += 1
            self.rolls.pop(o, 0)
            self.unit[o] = u
            lim = max(self.now // P, self.R) + LEAD
            if sl <= lim if self.v["claim"] == "formula" else sl < self.C:
                self.near[u] = 1

    def slot(self, o):  # of a message's unit; -1: none, or its unit was removed
        u = self.unit.get(o, -1)
        return self.tl[u]["slot"] if u >= self.tl.start else -1

    # ---- superseded, chains, dequeue
    def gone(self, u):
        o = self.tl[u]["off"]
        return o < self.F or o in self.past

    def chain(self, sl):
        h = self.wheel[sl % N]
        u = h[1] if h and h[0] == sl else -1
        while u >= self.tl.start:
            yield u
            u = self.tl[u]["prev"]

    def claim(self):
        while self.C <= max(self.now // P, self.R) + LEAD and self.C < self.R + N:
            for u in self.chain(self.C):
                if not self.gone(u):
                    self.near[u] = 1
            self.C += 1

    def ready(self, u):
        if self.gone(u):
            return "drop"
        U = self.tl[u]
        m = self.log[U["off"]]
        if m["k"] == "d":
            if not U["roll"]:
                return "keep"  # stays till R passes its slot
            if self.v["dele"] == "clock" and self.now >= m["due"]:
                return "keep"
        elif m["id"] in self.cancelled:
            return "drop"
        elif self.now >= m["due"]:
            return "fire"
        begun = self.now // P >= U["slot"] or self.v["roll"] == "claimed"
        return "roll" if U["roll"] and begun else None

    def due_of(self, u):
        return -1 if self.gone(u) else self.log[self.tl[u]["off"]]["due"]

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
            U = self.tl[u]
            m = self.log[U["off"]]
            c = self.append(**(m | {"k": "f" if r == "fire" else m["k"], "origin": U["off"]}))
            self.done[U["off"]] = c
            if r == "roll":
                self.rolls[c] = U["slot"]
                self.info["rolls"] += 1

    def advance(self):
        while self.now // P > self.R and self.C > self.R:
            if any(sl < self.R for sl in self.rolls.values()):
                return
            if any(self.tl[u]["slot"] <= self.R for u, _ in self.taken):
                return
            if self.v["ring"] == "ck" and self.R >= self.ckR + SL:
                if self.busy:
                    return  # the flush that goes on must end first
                self.flush()
                continue
            mine = [u for u in self.near if self.tl[u]["slot"] <= self.R]
            if any(self.ready(u) != "keep" for u in mine):
                return
            for u in mine:
                del self.near[u]
                self.cancelled.pop(self.log[self.tl[u]["off"]]["id"], 0)
            self.R += 1
            if self.v["claim"] == "cursor":
                self.claim()
            self.floor()

    def leap(self):  # over time in which nothing waits; the checkpointed R goes along
        to, waits = self.now // P, self.Q < len(self.queue) or self.taken or self.near
        used = any(h and h[0] >= self.R for h in self.wheel)
        if to < self.R + SL:
            return
        if (waits or used) and not (used and not waits and self.v["leap"] == "over units"):
            return
        self.info["leaps"] += 1
        self.R = self.C = to
        if self.v["leap"] != "unclaimed":  # what is overdue comes into R's slot, which is claimed
            self.C += 1
        if self.v["leap"] != "R alone":
            self.ckR = to

    # ---- cleaning, of which there is none
    def clean(self, n):
        pass

    def floor(self):
        pass

    # ---- the public face
    def put(self, due):
        o = self.append(k="p", due=due, id=len(self.log))
        self.durable()
        return o

    def linked(self, u, i):  # whether a unit is that of a timer
        return not self.gone(u) and self.queued(self.tl[u]["off"], i)

    def queued(self, o, i):
        return self.log[o]["id"] == i and self.log[o]["k"] == "p" and o not in self.past

    def pending(self, i):  # is it still to come: queue, near wheel, grid slots
        if i in self.cancelled:
            return False
        if any(self.queued(o, i) for o in self.queue[self.Q :]):
            return True
        if any(self.linked(u, i) for u in self.near):
            return True
        cand = [c for c in range(self.due(i) // P, self.R - 1, -H) if self.C <= c < self.R + N]
        for j, c in enumerate(reversed(cand)):
            if any(self.linked(u, i) for u in self.chain(c)):
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

    def due(self, i):  # of an identity; also of a message that was removed
        return self.dues[i]

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
    def held(self, F, R, Q):  # copies that an opening must know
        copies = self.done.items()
        return [c for o, c in copies if o >= F and (self.slot(o) >= R or self._qi[o] >= Q)]

    def meanwhile(self):  # the services go on while a flush does
        r = self.rnd.randrange
        return (
            lambda: self.clean(r(1, 6)),
            lambda: self.put_taken(3),
            lambda: self.take(3),
            lambda: self.enqueue(3),
            self.advance,
            self.serve,
        )

    def flush(self, stop=9):
        R, Q, t, end, F = self.R, self.Q, len(self.tl), len(self.log), self.F
        wheel, eaten = list(self.wheel), self.eaten
        L = min(self.held(F, R, Q), default=end)
        if L < F:
            self.bad["L before F"] += 1
        if not self.busy:
            self.busy = True
            for _ in range(self.rnd.randrange(4)):
                self.rnd.choice(self.meanwhile())()
            self.busy = False
        F = self.captured(F)
        if self.v.get("order") == "F first":
            self.ck = self.ck | {"F": F}
            if stop == 0:
                return
        self.flushed, self.tlf = max(self.flushed, end), max(self.tlf, t)
        if stop == 0:
            return
        for i in range(N):
            if stop == 9 or self.rnd.random() < 0.5:
                self.disk[i] = wheel[i]
        if stop == 9:
            self.ck = {"R": R, "Q": Q, "L": L, "tl": t, "log": end, "F": F, "eaten": eaten}
            self.ckR = R

    def captured(self, F):
        return F

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

    def forget_index(self, lose):  # 1: no timer log, no wheel. 2: no checkpoint either
        log = self.log
        self.info["rebuilt without a checkpoint" if lose > 1 else "rebuilt"] += 1
        self.tl = File()
        self.disk = [None] * N
        self.was = (log.start, 0)
        self.ck = self.ck | {"L": log.start, "tl": 0}
        if lose > 1:
            self.ck |= {"R": self.now // P, "F": log.start, "log": 0}
        puts = (m["q"] for o, m in log.kept() if m["k"] in "pd" and o >= self.ck["F"])
        self.ck["Q"] = next(puts, self.next_q)

    def open_index(self):
        tl, ck = self.tl, self.ck["tl"]
        self.wheel = [h if h and tl.start <= h[1] < len(tl) else None for h in self.disk]
        if self.v["reopen"] == "cut":  # heads past the checkpoint are walked back to it
            for i, h in enumerate(self.wheel):
                if h:
                    u = h[1]
                    while u >= ck:
                        u = tl[u]["prev"]
                    self.wheel[i] = (h[0], u) if u >= tl.start else None
            self.disk = list(self.wheel)
            del tl[ck:]
            self.tlf = len(tl)  # in this order, each fsynced
            self.Q = self.ck["Q"]
        else:  # units past the checkpoint are linked as they stand
            for u in range(ck, len(tl)):
                sl = tl[u]["slot"]
                h = self.wheel[sl % N]
                if not h or h[0] < sl or (h[0] == sl and h[1] < u):
                    self.wheel[sl % N] = (sl, u)
            self.Q = self._qi[tl[-1]["off"]] + 1 if tl else 0
        self.unit = {U["off"]: u for u, U in tl.kept()}

    def open(self, lose=0):
        log = self.log
        qs = [m["q"] for m in log if m["k"] in "pd"]
        self.next_q = qs[-1] + 1 if qs else 0  # the queue's last entry stays
        first = next((m["q"] for _, m in log.kept() if m["k"] in "pd"), None)
        if lose:
            self.forget_index(lose)
        self.R = self.C = self.ckR = self.ck["R"]
        L, self.F, self.eaten = self.ck["L"], self.ck["F"], min(self.ck["eaten"], len(log))
        self.near, self.taken, self.rolls, self.passes, self.busy = {}, [], {}, [], False
        self.queue = [None] * (self.next_q if first is None else first)
        self.queue += [o for o, m in log.kept() if m["k"] in "pd"]
        self._qi = {o: i for i, o in enumerate(self.queue) if o is not None}
        self.done = {
            m["origin"]: c for c, m in log.kept() if c >= L and m.get("origin", -1) >= self.F
        }
        self.past = set(self.done)
        self.open_index()
        self.cancelled = {}
        self.enqueue(10**9)
        for sl in range(self.R, self.R + 3 * N):
            for u in self.chain(sl):  # a delete below F has a copy above it
                if self.tl[u]["off"] >= self.F and log[self.tl[u]["off"]]["k"] == "d":
                    self.cancelled[log[self.tl[u]["off"]]["id"]] = 1
        self.claim()
        last = log[-1] if len(log) > log.start else {}
        if last.get("replaces") is not None and last["k"] == "p" and "origin" not in last:
            i = last["replaces"]
            self.cancelled[i] = 1
            self.append(k="d", due=self.due(i), id=i)


class History(Store):
    """One random history of a store, and what its oracle finds wrong with it."""

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
            self.due(i) <= self.now and not f[i] and i not in gone for i in ids
        )
        n = sum(not f[i] and i not in gone for i in ids)
        live = [
            self.log[self.tl[u]["off"]]
            for sl in range(self.R, self.R + 3 * N)
            for u in self.chain(sl)
            if not self.gone(u) and self.tl[u]["off"] not in self.done
        ]
        live = [m["id"] for m in live if m["k"] == "p" and m["id"] not in self.cancelled]
        self.bad["count: units - cancelled - done"] += len(set(live)) != n
        self.info["settled"] += 1
        self.bad["two live units"] += len(live) != len(set(live))

    # ---- acts
    def someone(self):
        rnd, ids = self.rnd, [m["id"] for m in self.log if m["k"] == "p"]
        if not ids:
            return
        i = rnd.choice(ids)
        over = any(m["k"] == "f" and m["id"] == i for m in self.log)
        if rnd.random() < 0.6:
            taken = any(self.log[self.tl[u]["off"]]["id"] == i for u, _ in self.taken)
            if not self.cancel(i):
                if (
                    not over
                    and not taken
                    and i not in self.true
                    and i not in {x[0] for x in self.repl}
                ):
                    self.bad["False though pending"] += 1
            elif over:
                self.bad["True though fired"] += i not in self.true
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
        self.now += self.rnd.choice((0, self.rnd.randrange(40), self.rnd.randrange(500)))
        if self.v["clock"]:
            self.now += self.rnd.choice((0, 0, self.rnd.randrange(-200, 1)))
        self.end_life(self.rnd.random() < 0.5)

    def end_life(self, power):
        self.crash(power)

    def delay(self):
        rr = self.rnd.randrange
        return self.rnd.choice((rr(-40, 12), rr(0, 30), rr(0, 260)))

    def acts(self):
        r, rr = self.rnd, self.rnd.randrange
        return [
            (22, lambda: self.put(self.now + self.delay())),
            (8, self.someone),
            (12, lambda: self.tick(rr(1, 9))),
            (10, lambda: self.enqueue(rr(1, 4))),
            (8, self.claim),
            (8, lambda: self.take(rr(1, 4))),
            (8, lambda: self.put_taken(rr(1, 3))),
            (6, self.advance),
            (7, lambda: self.flush(9 if r.random() > self.v["partial"] else rr(2))),
            (3, lambda: self.v["clock"] and self.tick(rr(-240, 241))),
            (3, self.settle),
            (2, self.die),
            (5, self.stop),
        ]

    def history(self):
        try:
            self.play([*self.acts(), (2, self.wait_long)], self.rnd.randrange(40, 140))
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


WRONG = [
    {"claim": "formula"},
    {"dele": "clock"},
    {"ring": "R"},
    {"roll": "claimed"},
    {"reopen": "keep"},
    {"leap": "over units"},
    {"leap": "R alone"},
    {"leap": "unclaimed"},
]


def found(history, first, count, **switches):
    """What the oracle finds wrong in so many histories, from a seed on."""
    histories = [history(seed, **switches).history() for seed in range(first, first + count)]
    return {what for each in histories for what, n in each.bad.items() if n}
