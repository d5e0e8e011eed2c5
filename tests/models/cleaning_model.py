"""The rules of cleaning as an executable model: random histories, with an oracle.

`rules_model.py` with a floor: crashes between any two appends, power cuts (a prefix of
the log, torn flushes of the wheel, removed segments that come back), long stops, clock steps,
services that go on during a flush, loss of the timer log and the wheel, loss of the checkpoint as
well. An offset is an index into the log, a segment SEG messages; to read below the start of the
log, or of the timer log, raises. Fired messages that a consumer still needs are there. `WRONG`
takes each of the rules away, and the oracle, `bad`, finds what goes wrong; nothing depends on those
in `SAME`. `tests/test_cleaning_model.py` plays such histories with the real store.
"""

from tests.models.cleaned_store import SEG, GoneError, N, P, Store
from tests.models.rules_model import FIRES_WAITING


class History(Store):
    """One random history of a store, and what its oracle finds wrong with it."""

    # ---- checks
    def settle(self):
        self.serve_all()
        f, gone, ids = self.truth()
        if self.read_slot < self.now // P:
            self.bad["stuck: the read cursor behind"] += 1
        self.bad["not fired when due"] += sum(
            self.due(i) <= self.now and not f[i] and i not in gone for i in ids
        )
        n = sum(not f[i] and i not in gone for i in ids)
        live = [
            self.log[self.tl[u]["off"]]
            for sl in range(self.read_slot, self.read_slot + 3 * N)
            for u in self.chain(sl)
            if not self.gone(u) and self.tl[u]["off"] not in self.done
        ]
        live = [m["id"] for m in live if m["k"] == "p" and m["id"] not in self.cancelled]
        self.bad["count: units - cancelled - done"] += len(set(live)) != n
        self.info["settled"] += 1
        self.bad["two live units"] += len(live) != len(set(live))

    def free(self):  # clean all there is: nothing may stay for a far timer's sake
        self.now = max(self.now, self.read_slot * P)
        self.settle()
        self.eaten = len(self.log)
        end = len(self.log) // SEG * SEG
        for _ in range(200):
            self.clean(max(0, end - self.floor_at))
            self.tick(P)
            self.settle()
            self.flush()
            self.remove()
            if self.log.start >= end:
                self.info["freed"] += 1
                return
        self.bad["space stays"] += self.v["clean"] > 0

    def someone(self):
        rnd, ids = self.rnd, [m["id"] for m in self.log if m["k"] == "p"]
        if not ids:
            return
        i = rnd.choice(ids)
        over = any(m["k"] == "f" and m["id"] == i for m in self.log)
        if rnd.random() < 0.6:
            taken = any(
                self.log[self.tl[u]["off"]]["id"] == i for u, _ in self.taken if not self.gone(u)
            )
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

    def stop(self):
        if self.rnd.random() < 0.4:
            self.flush()
        self.now += self.rnd.choice((0, self.rnd.randrange(40), self.rnd.randrange(500)))
        if self.v["clock"]:
            self.now += self.rnd.choice((0, 0, self.rnd.randrange(-200, 1)))
        self.crash(
            self.rnd.random() < 0.5,
            self.rnd.choice((0, 0, 0, 0, 0, 0, 0, 1, 1, 2)) if self.v["lose"] else 0,
        )

    def eat(self):
        self.eaten = self.rnd.randrange(self.eaten, len(self.log) + 1)

    def history(self):
        r, rr = self.rnd, self.rnd.randrange
        acts = [
            (
                22,
                lambda: self.put(
                    self.now + r.choice((rr(-40, 12), rr(0, 30), rr(0, 260), rr(100, 900)))
                ),
            ),
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
    {"mark": "floor"},
    {"at": "slot"},
    {"find": "first units"},
    {"find": "messages"},
    {"frontier": "no"} | FIRES_WAITING,  # else what fires was claimed
    {"begins": "fired"},
    {"flight": "no"},
    {"end": "early"},
    {"end": "late"},
    {"units": "first"},
    {"rebuild": "scan"},
    {"counts": "all"},
    {"hopped": "end"},
    {"near": "copy"},
    {"wait": "no"},
    {"scan": "early"},
    {"capture": "late"},
    {"order": "floor first"},
    {"remove": "memory"},
    {"reach": "all"},
    {"deletes": "forget at once"},
    {"deletes": "never forget"},
    {"deletes": "drop all"},
    {"eaten": 0},
    {"cancel": "split"},
    {"walk": "-1"},
    {"floor": "no"},
    {"hold": "ignored", "listings": 1},
    {"lapse": "silent", "listings": 1},
    {"listed": "place", "listings": 1},
    {"dead": "copy"},  # its delete may lie before the floor then, unseen by a rebuilding
]
SAME = [
    {"cut": 0},
    {"frontier": "forget"},
    {"roll": "begun"},
    {"cancelled": "drop"},
    FIRES_WAITING,
    {"lookup": "no"},
    {"barrier": 0},
    {"margin": 1},
    {"clean": 0},
    {"deletes": "copy"},
]  # not needed, or no cleaning: nothing bad
