"""The calls of a storm, each as a function of a random generator; each holds what it can."""

from __future__ import annotations

import random
import shutil
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from tests.rigs.storm_keys import (
    CHAINS,
    DAY_MS,
    PARKED,
    REFUSED,
    Keyed,
    far_due,
)
from tests.rigs.storm_ledger import BULK, LEVELS, PARKED_COUNT, SHARED, TOPIC, Ledger
from tests.rigs.storm_taken import entry_of
from timerstore import (
    Config,
    Delivery,
    Retry,
    StoreClosedError,
    StoreFullError,
    TimerStore,
    TooLateError,
    restore,
    verify,
)

FAR_MS = 40 * DAY_MS
STILL, STILL_COUNT = "still", 600
_STILL_MS = far_due(random.Random(0))
_LEVEL_MS = [1_000, 2_000, 3_000]
_BACKUPS_KEPT = 3


def now_ms() -> int:
    """Return the time, epoch milliseconds."""
    return time.time_ns() // 1_000_000


class Calls:
    """What threads call; `do_…` are the kinds."""

    def __init__(self, ledger: Ledger, beside: Path, *, fills: bool) -> None:
        self.ledger, self.beside, self.fills = ledger, beside, fills
        self.store: TimerStore
        self.calls: dict[str, Callable[[random.Random], None]] = {
            name.removeprefix("do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    def due(self, rng: random.Random) -> int:
        """Return a due time: mostly soon, sometimes past, sometimes beyond the wheel."""
        return now_ms() + rng.choice([0, rng.randrange(-50, 1_500), rng.randrange(1_500), FAR_MS])

    def begin(self, rng: random.Random) -> None:
        """Put what is there all the time, and let each group begin before anything can go."""
        ledger, store = self.ledger, self.store
        for group in "gc":
            ledger.putting(1, lambda: [store.put(b"first", topic=TOPIC)])
            batch = store.pull(TOPIC, group=group)
            if group == "g":
                ledger.ack(batch)
            else:
                ledger.handled.update(batch.ids.to_pylist())
                batch.ack()
        for each in ledger.parked:
            each.park(store, rng)
        for chain in ledger.chains:
            store.put(b"%d:0" % chain.number, topic=CHAINS)
        # Half of them are due at one millisecond.
        for i in range(STILL_COUNT):
            due_ms = far_due(random.Random(i % (STILL_COUNT // 2)))
            store.put(b"still", topic=STILL, key=f"{i}", at_ms=due_ms if i % 2 else _STILL_MS)

    # --- putting

    def do_put(self, rng: random.Random) -> None:
        for _ in range(20):
            due, body = self.due(rng), b"x" * rng.choice([1, 100, 400])
            self.ledger.putting(1, lambda: [self.store.put(body, topic=TOPIC, at_ms=due)])  # noqa: B023

    def do_put_long(self, rng: random.Random) -> None:
        due, key = self.due(rng), f"k{rng.randrange(100)}"
        self.ledger.putting(
            1, lambda: [self.store.put(b"y", topic=TOPIC, at_ms=due, key=key, tag="a")]
        )

    def do_put_many(self, rng: random.Random) -> None:
        due = [self.due(rng) for _ in range(200)]
        bodies = [b"z" * 50] * len(due)
        self.ledger.putting(len(due), lambda: self.store.put_many(bodies, topic=TOPIC, at_ms=due))

    def do_put_level(self, rng: random.Random) -> None:
        level = rng.randint(1, 3)
        self.ledger.putting(1, lambda: [self.store.put(b"l", topic=TOPIC, delay_level=level)])

    def do_new_topic(self, rng: random.Random) -> None:
        self.store.put(b"o", topic=f"other{rng.randrange(300)}")

    # --- changing

    def do_cancel(self, rng: random.Random) -> None:
        self._cancel([self.ledger.some(rng)])

    def do_cancel_many(self, rng: random.Random) -> None:
        self._cancel([self.ledger.some(rng) for _ in range(20)])

    def _cancel(self, chosen: list[str | None]) -> None:
        ids = [id for id in chosen if id is not None]

        def cancel() -> None:
            if len(ids) == 1:
                done = [self.store.cancel(ids[0])]
            else:
                done = self.store.cancel_many(ids).tolist()
            self.ledger.cancelled.extend(id for id, yes in zip(ids, done, strict=True) if yes)

        self.ledger.about(ids, cancel)

    def do_reschedule(self, rng: random.Random) -> None:
        id, due = self.ledger.some(rng), self.due(rng)
        if id is None or int(id[12], 16) >= 8:  # a delay level's
            return

        def move() -> None:
            try:
                self.ledger.putting(1, lambda: [self.store.reschedule(id, at_ms=due)])
            except TooLateError:
                return
            self.ledger.replaced.append(id)

        self.ledger.about([id], move)

    # --- delay levels, keys

    def do_levels(self, rng: random.Random) -> None:
        """What waits in a level is got, listed and cancelled."""
        store, ledger, level = self.store, self.ledger, rng.randint(1, 3)
        before_ms, body = now_ms() + _LEVEL_MS[level - 1], rng.randbytes(rng.choice([8, 900]))
        new: list[str] = []

        def put() -> list[str]:
            new.append(store.put(body, topic=TOPIC, delay_level=level))
            return new

        ledger.putting(1, put, ledger.own)
        (id,) = new
        timer = store.get(id)
        if now_ms() < before_ms:
            assert timer is not None, f"{id} is not in its level"
            assert (timer.id, timer.body, timer.topic) == (id, body, TOPIC)
        what = rng.randrange(3)
        if what == 0:
            ids = store.pending_columns(topic=TOPIC, end_ms=now_ms() + 3_500, columns=["id"])
            assert now_ms() >= before_ms or id in ids["id"].to_pylist(), f"{id} is not listed"
        elif what == 1:
            ledger.about([id], lambda: self._cancel_level(id, before_ms))

    def _cancel_level(self, id: str, before_ms: int) -> None:
        done = self.store.cancel(id)
        assert done or now_ms() >= before_ms, f"{id} was not cancelled"
        if done:
            self.ledger.cancelled.append(id)
            assert self.store.get(id) is None, f"{id} is there, and was cancelled"

    def do_keys(self, rng: random.Random) -> None:
        """Keys that one thread at a time works on: each answer is known."""
        with self._one_of(self.ledger.free_keyed) as each:
            if each is not None:
                for _ in range(3):
                    each.step(self.store, rng)

    def do_parked(self, rng: random.Random) -> None:
        """The same with timers that are never cancelled; they are looked for by all."""
        with self._one_of(self.ledger.free_parked) as each:
            if each is not None:
                each.step(self.store, rng)

    @contextmanager
    def _one_of(self, free: Any) -> Iterator[Keyed | None]:
        try:
            each = free.popleft()
        except IndexError:
            yield None
            return
        try:
            yield each
        finally:
            free.append(each)

    def do_shared(self, rng: random.Random) -> None:
        """Keys that all threads put if absent, and cancel: never two of one."""
        store, ledger, key = self.store, self.ledger, f"s{rng.randrange(10)}"
        what = rng.randrange(4)
        if what == 0:
            due_ms = rng.choice([self.due(rng), far_due(rng)])
            self._shared("put", lambda: ledger.shared.add(self._put_shared(key, due_ms)))
        elif what == 1:
            self._shared("cancel", lambda: self._cancel_shared(key))
        elif what == 2:
            timer = store.get_key(SHARED, key)
            assert timer is None or timer.key == key
        else:
            found = list(store.pending(topic=SHARED, key=key))
            assert len(found) < 2, f"two of a key: {found}"

    def _put_shared(self, key: str, due_ms: int) -> str:
        return self.store.put(b"s", topic=SHARED, key=key, at_ms=due_ms, if_absent=True)

    def _cancel_shared(self, key: str) -> None:
        count = self.store.cancel_key(SHARED, key)
        assert count in (0, 1), f"{count} of {key} cancelled"
        self.ledger.shared_cancelled.append(count)

    def _shared(self, what: str, call: Callable[[], None]) -> None:
        self.ledger.shared_begun.append(what)
        try:
            call()
        except REFUSED:
            self.ledger.shared_ended.append(what)
            raise
        self.ledger.shared_ended.append(what)

    # --- looking

    def do_look(self, rng: random.Random) -> None:
        store, id, what = self.store, self.ledger.some(rng), rng.randrange(5)
        if what == 0 and id is not None:
            store.get(id)
        elif what == 1:
            assert store.count() >= 0
        elif what == 2:
            for _ in store.pending(limit=rng.choice([5, 2_000])):
                pass
        elif what == 3:
            store.horizon(60_000)
        else:
            store.pending_columns(limit=rng.choice([None, 100]))

    def do_list(self, rng: random.Random) -> None:
        """What is parked is in every listing, each exactly once, wherever it is moved meanwhile."""
        store, what = self.store, rng.randrange(5)
        start_ms, end_ms = far_due(random.Random(0)), 0
        start_ms = start_ms // DAY_MS * DAY_MS - 10 * DAY_MS
        end_ms = start_ms + 30 * DAY_MS
        keys = sorted(each.key for each in self.ledger.parked)
        found = keys
        if what == 0:
            found = sorted(str(timer.key) for timer in store.pending(topic=PARKED))
        elif what == 1:
            table = store.pending_columns(topic=PARKED, columns=["id", "key", "body"])
            found = sorted(table["key"].to_pylist())
        elif what == 2:
            each = store.pending(topic=PARKED, start_ms=start_ms, end_ms=end_ms)
            found = sorted(str(timer.key) for timer in each)
        elif what == 3:
            assert store.count(PARKED) == PARKED_COUNT
        else:
            limits = {"start_ms": start_ms, "end_ms": end_ms}
            buckets = store.horizon(3_600_000, **limits)
            assert int(buckets.count.sum()) >= PARKED_COUNT
        missing = set(keys) - set(found)
        assert found == keys, f"listing {what}: {len(found)}, not {len(keys)}; {missing} left out"

    def do_list_slowly(self, rng: random.Random) -> None:
        """What nobody moves is in a listing once, however often the log turns over meanwhile.

        Some have their hold taken away, and capture again.
        """
        listing, keys = self.store.pending(topic=STILL), list[str]()
        for timer in listing:
            keys.append(str(timer.key))
            if len(keys) % 200 == 1:
                hold = listing.gi_frame.f_locals["found"].hold  # type: ignore[attr-defined]
                if rng.random() < 0.5:
                    hold.rests_until_s = 0
                time.sleep(rng.random())
                self.ledger.counts["listings lapsed"] += hold.is_lapsed
        once = Counter(keys)
        wrong = [str(i) for i in range(STILL_COUNT) if once[str(i)] != 1]
        assert not wrong, f"a slow listing of {len(keys)} has not once: {wrong[:5]}"
        self.ledger.counts["slow listings"] += 1

    def do_watch(self, rng: random.Random) -> None:
        store = self.store
        stats = store.stats()
        assert not stats.damage_count, stats.damage
        assert stats.unreadable_count == 0
        assert stats.stopped_by is None, stats.stopped_by
        assert store.health().state
        store.upcoming(rng.choice([None, TOPIC]))

    # --- consuming

    def do_pull(self, rng: random.Random) -> None:
        batch = self.store.pull(TOPIC, group="g", max_count=500, timeout=0.05)
        if rng.random() < 0.5:
            assert batch.to_arrow().num_rows == len(batch)
            self.ledger.ack(batch)
        else:
            self.ledger.pulled(batch)
            for d in batch:
                self._settle(d, rng)

    def do_pull_beside(self, _: random.Random) -> None:
        for topic in (SHARED, BULK):
            self.ledger.ack(self.store.pull(topic, group="g", max_count=1_000, timeout=0.01))

    def do_consume(self, rng: random.Random) -> None:
        for d in islice(self.store.consume(TOPIC, group="g", timeout=0.02), 300):
            self.ledger.taken.take(*entry_of(d), [d.id])
            self.ledger.came.add(d.id)
            self._settle(d, rng)

    def _settle(self, d: Delivery, rng: random.Random) -> None:
        if rng.random() < 0.5:
            delay = rng.choice([None, timedelta(milliseconds=rng.randrange(1_000))])
            self._insist(lambda: self.ledger.nack(d, delay))
        else:
            self.ledger.ack_one(d)

    def _insist(self, call: Callable[[], None]) -> None:
        """Call until there is room: a message that nobody settles would not come again."""
        while True:
            try:
                return call()
            except StoreFullError:
                self.ledger.counts["settled again, for it was full"] += 1
                time.sleep(0.02)

    def do_chain(self, rng: random.Random) -> None:
        """Tokens that go on with a put of several, in more than one file of a queue."""
        for d in islice(self.store.consume(CHAINS, group="g", timeout=0.05), 3):
            chain = self.ledger.chains[int(d.body.split(b":")[0])]
            self._insist(lambda: chain.go_on(d, BULK, rng))  # noqa: B023
            time.sleep(rng.random() * 0.05)

    def do_dead(self, rng: random.Random) -> None:
        letters = self.store.dead_letters("c", limit=rng.choice([10, 300]))
        assert all(letter.topic == TOPIC for letter in letters)
        if rng.random() < 0.5:
            self.store.retry_dead_letters("c", limit=rng.choice([1, 50, None]))
        elif letters:
            chosen = [letter.id for letter in rng.sample(letters, min(len(letters), 20))]
            self.store.retry_dead_letters("c", ids=chosen)

    def do_others(self, rng: random.Random) -> None:
        self.store.pull(f"other{rng.randrange(300)}", group="g", timeout=0).ack()

    def handle(self, d: Delivery) -> Retry | None:
        """Handle what group "c" gets: half comes again, by a level, until it is dead."""
        taken = self.ledger.taken_by_consumer
        taken.take(*entry_of(d), [d.id])
        self.ledger.came.add(d.id)
        what = random.random()
        if what < 0.05:
            raise ValueError("as handlers do")
        if what < 0.5:
            return Retry(delay_level=random.randint(1, 3))
        if what < 0.55:
            return Retry(delay_level=-1)
        self.ledger.handled.add(d.id)
        taken.end(*entry_of(d))
        return None

    # --- operating

    def do_flush(self, _: random.Random) -> None:
        self.store.flush()

    def do_clean(self, _: random.Random) -> None:
        self.store.clean()

    def do_backup(self, rng: random.Random) -> None:
        """A point of the store as it is; it verifies, and what is parked is in it."""
        dest, restored = self.beside / "backup", self.beside / "restored"
        report = self.store.backup(dest, keep=_BACKUPS_KEPT)
        assert report.ok, str(report)
        found = verify(dest)
        assert found.ok, str(found)
        if rng.random() < 0.3:
            shutil.rmtree(restored, ignore_errors=True)
            restore(dest, restored, config=Config(delay_levels=LEVELS))
            with TimerStore(restored, config=Config(delay_levels=LEVELS)) as store:
                keys = [timer.key for timer in store.pending(topic=PARKED)]
                assert len(keys) == len(set(keys)) == PARKED_COUNT, f"{len(keys)} restored"
                assert store.count(PARKED) == PARKED_COUNT
            found = verify(restored, config=Config(delay_levels=LEVELS))
            assert found.ok, str(found)
            self.ledger.counts["restored"] += 1

    def full(self, name: str) -> None:
        """Count a call that had no room; where the disk is not filled it is a failure."""
        self.ledger.counts[f"{name} full"] += 1
        if not self.fills:
            self.ledger.failures.append(f"{name}: {traceback.format_exc()}")
        time.sleep(0.01)

    def run(self, name: str, rng: random.Random, stop: threading.Event) -> None:
        """Call one kind again and again, until the store is closed."""
        call = self.calls[name]
        while not stop.is_set():
            try:
                call(rng)
                self.ledger.counts[name] += 1
                if name.startswith("put"):
                    time.sleep(rng.random() * 0.004)
                elif name in ("dead", "others", "new_topic"):
                    time.sleep(rng.random() * 0.02)
                elif name in ("clean", "backup"):
                    time.sleep(rng.random())
            except StoreClosedError:
                return
            except StoreFullError:
                self.full(name)
            except BaseException:
                self.ledger.failures.append(f"{name}: {traceback.format_exc()}")
                return
