"""The rules of cleaning as an executable model: random histories of a small store, with an oracle.

The histories of `rules_model.py`, with a floor F: also with removed segments that come back after a
power cut, loss of the timer log and the wheel, loss of the checkpoint as well. A segment is SEG
messages. Fired messages that a consumer still needs are there. `WRONG` takes each of the rules
away, and the oracle, `bad`, finds what goes wrong; nothing depends on those in `SAME`.
`tests/test_cleaning_model.py` plays such histories with the real store.

The rules. All but "remove" happen in bounded steps under locks.

pass    The oldest segment [lo, hi): full, below the first message without a unit, below what must
        stay (here: fired messages not consumed). S = C + margin is fixed when the pass begins. Its
        units are looked at in the order of their messages. A unit of slot >= S that has no copy
        yet: a timer in the cancelled set is dropped, everything else, deletes too, is
        appended again, all properties kept, TIMER_ORIGIN = its source's offset. Units of slot < S
        stay and fire from their place. The cursor moves in the same step.
cut     If C > S before the cursor has reached hi, the pass ends at the cursor, and another one
        begins there with a new S. Each keeps (lo, hi, S, offset of its first copy) in memory.
gone    A unit is superseded if its message is before F; or in a pass, before its cursor, and the
        slot is >= that pass's S; or recovery found its copy. Asked before the message is read. A
        walk of a chain stops at a unit before the timer log's start.
queue   Copies get their units through the timer topic's queue like any other, by the usual rules.
floor   F moves to the oldest pass's hi once R is past the latest slot of what it left: that has
        fired, been dropped or rolled.
L       A copy whose source is before the captured F does not count; that of a pass F has not
        passed does.
flush   R, Q, C, L, F, the groups' offsets are captured at one moment; the log is synced, queues,
        timer log, wheel, then the checkpoint that holds them.
remove  Only below the durable F, the oldest first. A timer log segment goes if each unit's message
        is before the durable F or its slot before the durable R.
reopen  F is the checkpoint's, or the log's start if there is none. Files below F are ignored.
        Copies whose source is before F are ignored; the others' sources are done, kept until R or F
        passes them. Passes are forgotten: cleaning starts again at F and skips what is done.
"""

from tests.models import rules_model
from tests.models.rules_model import CrashError, GoneError, N, P

SEG, TSEG = 5, 4  # messages in a segment of the log, units in one of the timer log

RULES = rules_model.RULES | {
    "floor": "F",
    "mark": "cursor",
    "near": "stay",
    "cut": 1,
    "margin": 4,
    "wait": "R",
    "L": "pass",
    "capture": "one",
    "remove": "durable",
    "reach": "linked",
    "deletes": "copy",
    "eaten": 1,
    "order": "log first",
    "walk": "start",
    "cancel": "one step",
    "lookup": "gone",
    "barrier": 1,
    "dead": "drop",
    "clean": 1,
    "lose": 1,
}


class History(rules_model.History):
    """One random history of a store that is cleaned."""

    rules = RULES

    # ---- superseded
    def gone(self, u):
        U = self.tl[u]
        o, sl = U["off"], U["slot"]
        if (self.v["floor"] != "no" and o < self.F) or o in self.past:
            return True
        return self.v["mark"] == "cursor" and any(
            p["lo"] <= o < p["hi"] and sl >= p["S"] for p in self.passes
        )

    def chain(self, sl):
        h = self.wheel[sl % N]
        u = h[1] if h and h[0] == sl else -1
        while u >= (self.tl.start if self.v["walk"] == "start" else 0):
            yield u
            u = self.tl[u]["prev"]

    def linked(self, u, i):
        unread = self.v["lookup"] == "no" and self.tl[u]["off"] >= self.log.start
        return (unread or not self.gone(u)) and self.queued(self.tl[u]["off"], i)

    # ---- cleaning
    def limit(self):  # what a pass must not reach
        unlinked = (
            self.queue[self.Q]
            if self.Q < len(self.queue) and self.v["reach"] == "linked"
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

    def clean(self, n):
        if not self.v["clean"]:
            return
        while n:
            p = (
                self.passes[-1]
                if self.passes and self.passes[-1]["hi"] < self.passes[-1]["goal"]
                else None
            )
            if p and self.C > p["S"] and self.v["cut"]:
                p["goal"] = p["hi"]
                p = None
                self.info["cut"] += 1
            if not p:
                lo = self.passes[-1]["hi"] if self.passes else self.F
                goal = (lo // SEG + 1) * SEG
                if goal > self.limit() or goal > len(self.log):
                    return
                p = {
                    "lo": lo,
                    "hi": lo,
                    "goal": goal,
                    "S": self.C + self.rnd.randrange(self.v["margin"]),
                    "first": None,
                    "left": -1,
                }
                self.passes.append(p)
                self.info["passes"] += 1
            o = p["hi"]
            m = self.log[o]
            p["hi"] += 1
            n -= 1
            if m["k"] not in "pd" or o in self.past:
                continue
            sl = self.slot(o)
            if sl < p["S"] and self.v["near"] == "stay":
                p["left"] = max(p["left"], sl)
            if sl < self.R or (sl < p["S"] and self.v["near"] == "stay"):
                continue
            if m["k"] == "p" and m["id"] in self.cancelled and self.v["dead"] == "drop":
                self.info["cancelled, not copied"] += 1
                continue
            if m["k"] == "d" and self.v["deletes"] != "copy":
                if self.v["deletes"] == "drop":
                    self.cancelled.pop(m["id"], 0)
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
            and (self.R > self.passes[0]["left"] or self.v["wait"] == "no")
        ):
            self.F = self.passes.pop(0)["hi"]
            self.done = {o: c for o, c in self.done.items() if o >= self.F}

    def remove(self):
        F = self.F if self.v["remove"] == "memory" else self.ck["F"]
        a = F // SEG * SEG
        t = self.tl.start
        while t + TSEG <= self.ck["tl"] and all(
            U["off"] < F or U["slot"] < self.ck["R"] for U in self.tl[t : t + TSEG]
        ):
            t += TSEG
        if any(m["k"] == "f" and o >= self.ck["eaten"] for o, m in self.log.kept() if o < a):
            self.bad["removed unconsumed"] += 1
        self.was = (self.log.start, self.tl.start)
        self.info["segments removed"] += (a - self.log.start) // SEG
        self.log.start, self.tl.start = max(a, self.log.start), t

    # ---- a cancel, a flush, the end of a life
    def append_cancel(self, i, new, tear):
        if self.v["cancel"] == "split" and new is None and self.rnd.random() < 0.2:
            self.clean(25)
            self.serve()
            self.flush()
            raise CrashError
        super().append_cancel(i, new, tear)

    def held(self, F, R, Q):
        first = [p["first"] for p in self.passes if p["first"] is not None]
        return super().held(F, R, Q) + (first if self.v["L"] == "pass" else [])

    def captured(self, F):
        return self.F if self.v["capture"] == "late" else F

    def end_life(self, power):
        lose = self.rnd.choice((0, 0, 0, 0, 0, 0, 0, 1, 1, 2)) if self.v["lose"] else 0
        self.crash(power, lose)

    # ---- acts
    def free(self):  # clean all there is: nothing may stay for a far timer's sake
        self.now = max(self.now, self.R * P)
        self.settle()
        self.eaten = len(self.log)
        end = len(self.log) // SEG * SEG
        for _ in range(200):
            self.clean(max(0, end - self.F))
            self.tick(P)
            self.settle()
            self.flush()
            self.remove()
            if self.log.start >= end:
                self.info["freed"] += 1
                return
        self.bad["space stays"] += self.v["clean"] > 0

    def eat(self):
        self.eaten = self.rnd.randrange(self.eaten, len(self.log) + 1)

    def delay(self):
        rr = self.rnd.randrange
        return self.rnd.choice((rr(-40, 12), rr(0, 30), rr(0, 260), rr(100, 900)))

    def history(self):
        r, rr = self.rnd, self.rnd.randrange
        acts = [
            *self.acts(),
            (24, lambda: self.clean(rr(1, r.choice((4, 25))))),
            (6, self.remove),
            (8, self.eat),
            (0.3, self.free),
        ]
        try:
            self.play(acts, rr(40, 200))
            self.free()
        except StopIteration:
            return self
        except (GoneError, KeyError):
            self.bad["read what was removed"] += 1
            return self
        self.judge()
        return self


WRONG = [
    {"mark": "F"},
    {"near": "copy"},
    {"cut": 0},
    {"wait": "no"},
    {"L": "early"},
    {"capture": "late"},
    {"order": "F first"},
    {"remove": "memory"},
    {"reach": "all"},
    {"deletes": "drop"},
    {"deletes": "forget"},
    {"eaten": 0},
    {"cancel": "split"},
    {"walk": "-1"},
    {"floor": "no"},
]
SAME = [
    {"lookup": "no"},
    {"barrier": 0},
    {"dead": "copy"},
    {"margin": 1},
    {"clean": 0},
]  # not needed, or no cleaning: nothing bad
