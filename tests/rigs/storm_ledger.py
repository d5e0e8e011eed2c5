"""What a storm's calls promised, held against what is there at the end.

Nothing is excused that is certain. A call that a signal ended is uncertain in what it may have
done, and in nothing else; one that raised StoreClosedError or StoreFullError did nothing, but for
what the error's `ids` name.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

from tests.rigs.storm_keys import CHAINS, KEYED, PARKED, REFUSED, Chain, Keyed
from tests.rigs.storm_taken import Taken, entry_of, run_of
from timerstore import (
    Batch,
    Config,
    Delivery,
    StoreFullError,
    TimerStore,
    TooLateError,
    verify,
)

TOPIC, BULK, SHARED = "t", "bulk", "shared"
LEVELS = "1s 2s 3s"
PARKED_COUNT, KEYED_COUNT, CHAIN_COUNT = 300, 24, 6


class Ledger:
    """What calls promised. Lists that only grow: an append is one step for threads and signals."""

    def __init__(self) -> None:
        self.put: list[str] = []
        self.own: list[str] = []  # put as well, and nobody else's to cancel
        self.cancelled: list[str] = []
        self.replaced: list[str] = []
        self.begun: list[str] = []  # each call about a timer, when it begins
        self.ended: list[str] = []  # and when what it said is noted
        self.puts_begun: list[int] = []  # how many timers each call puts
        self.puts_ended: list[int] = []
        self.came: set[str] = set()
        # What group "g" took, and the calls that may have ended it.
        self.acks_begun: set[str] = set()
        self.nacks_begun: list[str] = []
        self.nacks_ended: list[str] = []
        self.nacks_refused: list[str] = []
        # What the Consumer, group "c", took.
        self.handled: set[str] = set()
        # Keys that many threads put if absent: ids, and cancels by key that said 1.
        self.shared: set[str] = set()
        self.shared_begun: list[str] = []
        self.shared_ended: list[str] = []
        self.shared_cancelled: list[int] = []
        self.shared_came: set[str] = set()
        # What chains put: all of a step, or nothing.
        self.bulk_ids: set[str] = set()
        self.bulk_bodies: set[bytes] = set()
        self.parked = [Keyed(PARKED, f"p{i}") for i in range(PARKED_COUNT)]
        self.keyed = [Keyed(KEYED, f"k{i}") for i in range(KEYED_COUNT)]
        self.chains = [Chain(i) for i in range(CHAIN_COUNT)]
        self.free_parked, self.free_keyed = deque(self.parked), deque(self.keyed)
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.taken, self.taken_by_consumer = Taken(self.failures), Taken(self.failures)

    def some(self, rng: random.Random) -> str | None:
        """Return any timer, mostly a recent one."""
        if not self.put:
            return None
        return self.put[-1 - int(len(self.put) * rng.random() ** 4)]

    def reopened(self, store: TimerStore, *, clean: bool = True) -> None:
        """Begin another opening; the close before it was `clean`, if it returned."""
        self.taken.reopened(lambda queue: store.core.offsets.get(queue, "g", 0), clean=clean)
        self.taken_by_consumer.reopened(None)  # its own threads acknowledge, unseen

    def putting(
        self, count: int, call: Callable[[], Iterable[str]], where: list[str] | None = None
    ) -> None:
        """Put up to `count` timers and note their ids; they are unknown where it is ended."""
        ids = self.put if where is None else where
        self.puts_begun.append(count)
        try:
            ids.extend(call())
        except (*REFUSED, TooLateError) as e:
            ids.extend(e.ids)  # of a put_many that was ended half-way
            self.puts_ended.append(count)
            raise
        self.puts_ended.append(count)

    def about(self, ids: list[str], call: Callable[[], None]) -> None:
        """Do something about timers; it is uncertain what where it is ended.

        A full disk ends a call about many between two of them.
        """
        self.begun.extend(ids)
        try:
            call()
        except StoreFullError:
            self.ended.extend(ids if len(ids) == 1 else [])
            raise
        self.ended.extend(ids)

    def pulled(self, batch: Batch) -> tuple[list[int], list[str]]:
        """Note what group "g" was handed; return the entries, and the ids."""
        run = run_of(batch)
        indexes, ids = run.indexes.tolist(), batch.ids.to_pylist()
        self.taken.take(run, indexes, ids)
        self.came.update(ids)
        if ids and batch.topic == SHARED:
            self.shared_came.update(ids)
        elif ids and batch.topic == BULK:
            self.bulk_ids.update(ids)
            self.bulk_bodies.update(batch.bodies.to_pylist())
        return indexes, ids

    def ack(self, batch: Batch) -> None:
        """Take a batch, and acknowledge it."""
        indexes, ids = self.pulled(batch)
        self.acks_begun.update(ids)
        batch.ack()
        self.taken.end(run_of(batch), indexes)

    def ack_one(self, delivery: Delivery) -> None:
        """Acknowledge one."""
        self.acks_begun.add(delivery.id)
        delivery.ack()
        self.taken.end(*entry_of(delivery))

    def nack(self, delivery: Delivery, delay: timedelta | None) -> None:
        """Send one back; where that is refused it was not."""
        self.nacks_begun.append(delivery.id)
        try:
            delivery.nack(delay)
        except REFUSED:
            self.nacks_refused.append(delivery.id)
            raise
        self.taken.end(*entry_of(delivery))
        self.nacks_ended.append(delivery.id)


def judge(folder: Path, ledger: Ledger, *, clean: bool) -> None:
    """Open in peace, let everything soon fire, and compare with what was promised."""
    failures = ledger.failures
    with TimerStore(folder, config=Config(delay_levels=LEVELS)) as store:
        ledger.reopened(store, clean=clean)
        letters = _drain(store, ledger)
        listed = {timer.id for timer in store.pending(topic=TOPIC)}
        if store.count(TOPIC) != len(listed):
            failures.append(f"count {store.count(TOPIC)}, listed {len(listed)}")
        _judge_timers(ledger, listed, letters)
        _judge_shared(store, ledger)
        _judge_chains(store, ledger)
        for each in (*ledger.parked, *ledger.keyed):
            each.resolve(store)
            if each.topic == PARKED and len(each.ids) != 1:
                failures.append(f"{each.key} was parked and is not there")
    report = verify(folder, config=Config(delay_levels=LEVELS))
    if not report.ok:
        failures.append(str(report))


def _drain(store: TimerStore, ledger: Ledger) -> set[str]:
    """Take all that comes soon, for each group; return the dead letters that there were."""
    letters, deadline = set[str](), time.monotonic() + 120
    redriven = False
    while time.monotonic() < deadline:
        taken = 0
        for topic, group in ((TOPIC, "g"), (TOPIC, "c"), (SHARED, "g"), (BULK, "g")):
            batch = store.pull(topic, group=group, max_count=10_000, timeout=0.2)
            taken += len(batch)
            if group == "g":
                ledger.ack(batch)
            elif len(batch):
                ids, run = batch.ids.to_pylist(), run_of(batch)
                ledger.taken_by_consumer.take(run, run.indexes.tolist(), ids)
                ledger.came.update(ids)
                batch.ack()
                ledger.handled.update(ids)
        soon_ms = time.time_ns() // 1_000_000 + 10_000
        if taken or any(True for _ in store.pending(end_ms=soon_ms)):
            continue
        if redriven:
            return letters
        letters = {letter.id for letter in store.dead_letters("c", limit=None)}
        count, redriven = len(store.dead_letters("c", limit=None)), True
        if (done := store.retry_dead_letters("c")) != count:
            ledger.failures.append(f"{count} dead letters, {done} put back")
    ledger.failures.append("it does not come to an end")
    return letters


def _judge_timers(ledger: Ledger, listed: set[str], letters: set[str]) -> None:
    put, ended = {*ledger.put, *ledger.own}, {*ledger.cancelled, *ledger.replaced}
    uncertain = set((Counter(ledger.begun) - Counter(ledger.ended)).keys())
    unknown_count = sum(ledger.puts_begun) - sum(ledger.puts_ended)
    expected = put - ended - uncertain - listed
    strangers = (ledger.came | listed) - put - ledger.shared_came - ledger.bulk_ids
    ledger.counts["uncertain"], ledger.counts["strangers"] = len(uncertain), len(strangers)
    ledger.counts["letters at the end"] = len(letters)
    for text, bad in (
        ("lost", expected - ledger.came),
        ("lost after they were handed out", expected - ledger.acks_begun),
        ("lost by the consumer", expected - ledger.handled),
        ("dead letters that did not come again", letters - ledger.handled),
        ("cancelled, and yet there", (ended & (ledger.came | listed)) - uncertain),
        ("both fired and pending", ledger.came & listed),
    ):
        if bad:
            ledger.failures.append(f"{len(bad)} {text}: {sorted(bad)[:5]}")
    begun = Counter(ledger.nacks_begun) - Counter(ledger.nacks_refused)
    sent, back = Counter(ledger.nacks_ended), ledger.taken.sent_back
    wrong = {
        id: (sent[id], len(back.get(id, ())), begun[id])
        for id in {*begun, *back}
        if not sent[id] <= len(back.get(id, ())) <= begun[id]
    }
    if wrong:
        ledger.failures.append(f"{len(wrong)} sent back too rarely or often: {str(wrong)[:500]}")
    if len(strangers) > unknown_count:
        ledger.failures.append(f"{len(strangers)} strangers, {unknown_count} unknown puts")


def _judge_shared(store: TimerStore, ledger: Ledger) -> None:
    """What was put if absent came, was cancelled by its key, or is pending."""
    pending = [timer.id for timer in store.pending(topic=SHARED)]
    unsure = Counter(ledger.shared_begun) - Counter(ledger.shared_ended)
    put, cancelled = len(ledger.shared), sum(ledger.shared_cancelled)
    seen = ledger.shared_came | set(pending)
    there = len(seen) + cancelled
    ledger.counts["shared"] = put
    if not put - unsure["cancel"] <= there <= put + unsure["put"]:
        ledger.failures.append(
            f"{put} put if absent, {len(ledger.shared_came)} came, {cancelled} cancelled, "
            f"{len(pending)} pending, unsure {dict(unsure)}"
        )
    if len(seen - ledger.shared) > unsure["put"]:
        ledger.failures.append(f"{len(seen - ledger.shared)} of the shared keys nobody put")


def _judge_chains(store: TimerStore, ledger: Ledger) -> None:
    """Each chain has one token, and exactly what its steps put with it."""
    bodies, tokens = set[bytes](), Counter[int]()
    for delivery in store.consume(CHAINS, group="g", timeout=1):
        number, step = map(int, delivery.body.split(b":"))
        tokens[number] += 1
        chain = ledger.chains[number]
        if not chain.may_be_at(step):
            ledger.failures.append(f"chain {number} is at {step}: {chain.done}, {chain.begun}")
        bodies.update(body for i in range(step) for body in chain.bodies(i))
        ledger.counts["chain steps"] += step
    if tokens != Counter(range(len(ledger.chains))):
        ledger.failures.append(f"tokens of chains: {tokens}")
    if bodies != ledger.bulk_bodies or len(bodies) != len(ledger.bulk_ids):
        missing, more = bodies - ledger.bulk_bodies, ledger.bulk_bodies - bodies
        ledger.failures.append(
            f"chains put {len(bodies)}, came {len(ledger.bulk_ids)}; "
            f"missing {sorted(missing)[:5]}, more {sorted(more)[:5]}"
        )
