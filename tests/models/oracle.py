"""What happens to a store of `rules_model.py`, at random, with what may be found wrong in it."""

from collections import Counter

P, W, SL, LEAD = 4, 6, 8, 1  # ms a slot, roll window, slots (ring is twice that), lead
N = 2 * SL


class CrashError(Exception):
    pass


class Oracle:
    """The acts of a history, in any order, with checks between them: `bad` counts what is wrong."""

    # ---- checks
    def truth(self):
        f = Counter(m["id"] for m in self.log if m["k"] == "f")
        gone = set(self.cancelled) | set(self.true) | {r[0] for r in self.repl}
        ids = [m["id"] for m in self.log if m["k"] == "p" and "origin" not in m]
        return f, gone, ids

    def state(self):
        waiting = len(self.near), len(self.taken), len(self.owed)
        return len(self.log), self.linked_index, self.read_slot, self.claimed_slot, waiting

    def serve(self):
        self.enqueue(99)
        self.claim()
        self.pay()
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
        if self.read_slot < self.now // P:
            self.bad["stuck: the read cursor behind"] += 1
        self.bad["not fired when due"] += sum(
            self.log[i]["due"] <= self.now and not f[i] and i not in gone for i in ids
        )
        n = sum(not f[i] and i not in gone for i in ids)
        live = {
            self.log[self.tl[u]["off"]]["id"]
            for sl in range(self.read_slot, self.read_slot + 3 * N)
            for u in self.chain(sl)
            if self.log[self.tl[u]["off"]]["k"] == "p" and not self.over(u)
        }
        self.bad["count: units - cancelled - done"] += len(live - set(self.cancelled)) != n
        kinds = [
            self.log[self.tl[u]["off"]]["k"]
            for sl in range(self.read_slot, self.read_slot + 3 * N)
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
            (4, self.pay),
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
        end = max([m["due"] for m in self.log] + [self.now, self.read_slot * P]) + 3 * P
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
