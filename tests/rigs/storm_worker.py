"""A storm over one store: threads inside all calls at once, signals, random closes.

    python storm_worker.py FOLDER --seconds 60 --threads 64 --seed 1

Segments are tiny, retention is on, the main thread gets a signal every few milliseconds whose
handler raises, and the store is closed and opened again and again, also in the middle of calls. A
ledger notes what each call promised. At the end the store is opened once more in peace: each timer
that was put fired or is pending, none that was cancelled came, and the counts are exact. Prints
what it did as JSON; exit status 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numba

from timerstore import Config, Consumer, StoreClosedError, TimerStore, TooLateError

FAR_MS = 40 * 86_400_000
TOPIC = "t"


class Alarm(BaseException):
    """What the signal's handler raises, in the middle of anything."""


class Alarms:
    """SIGALRM as an exception in the main thread: once for each `arm`, and not behind its `try`.

    The handler takes itself back before it raises, so a second signal, which falls into whatever
    deals with the first exception, finds nothing to raise.
    """

    def __init__(self) -> None:
        self.is_armed = False
        signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, *_: Any) -> None:
        if self.is_armed:
            self.is_armed = False
            raise Alarm

    def arm(self, after_s: float) -> None:
        """Have it raised then; call it inside the `try`."""
        self.is_armed = True
        signal.setitimer(signal.ITIMER_REAL, max(after_s, 1e-6))

    def disarm(self) -> None:
        """Have nothing raised any more; also inside the `try`."""
        self.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)


class Ledger:
    """What calls promised. Lists that only grow: an append is one step for threads and signals."""

    def __init__(self) -> None:
        self.put: list[str] = []
        self.cancelled: list[str] = []
        self.replaced: list[str] = []
        self.begun: list[str] = []  # each call about a timer, when it begins
        self.ended: list[str] = []  # and when what it said is noted
        self.puts_begun: list[int] = []  # how many timers each call puts
        self.puts_ended: list[int] = []
        self.came: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def some(self, rng: random.Random) -> str | None:
        """Return any timer, mostly a recent one."""
        if not self.put:
            return None
        return self.put[-1 - int(len(self.put) * rng.random() ** 4)]

    def putting(self, count: int, call: Callable[[], Iterable[str]]) -> None:
        """Put up to `count` timers and note their ids; they are unknown where it is ended."""
        self.puts_begun.append(count)
        try:
            self.put.extend(call())
        except (StoreClosedError, TooLateError) as e:
            self.put.extend(e.ids)  # of a put_many that was ended half-way
            self.puts_ended.append(count)
            raise
        self.puts_ended.append(count)

    def about(self, ids: list[str], call: Callable[[], None]) -> None:
        """Do something about timers; it is uncertain what where it is ended."""
        self.begun.extend(ids)
        call()
        self.ended.extend(ids)


def config(rng: random.Random) -> Config:
    """Return settings under which every limit is met all the time."""
    return Config(
        durability=rng.choice(["process", "process", "group"]),
        precision_ms=100,
        commitlog_segment_bytes=1 << 16,
        consumequeue_segment_bytes=2_000,
        timerlog_segment_bytes=403 * 52 + 16,
        flush_interval_ms=rng.choice([20, 100, 500]),
        retention_ms=1,
        cleaning_factor=1,
        cleaning_slack_bytes=0,
        near_count_max=1 << 18,
        open_segments_max=rng.choice([64, 256]),
        admission=rng.choice(["grow", "wait"]),
        admission_count_max=rng.choice([1, 20, 1_000]),
        delay_levels="1s 1s 2s",
    )


class Storm:
    """The calls, each as a function of a random generator."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.store: TimerStore
        self.calls: dict[str, Callable[[random.Random], None]] = {
            name.removeprefix("do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    def due(self, rng: random.Random) -> int:
        """Return a due time: mostly soon, sometimes past, sometimes beyond the wheel."""
        now = time.time_ns() // 1_000_000
        return now + rng.choice([0, rng.randrange(-50, 1_500), rng.randrange(1_500), FAR_MS])

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

    def do_look(self, rng: random.Random) -> None:
        store, id = self.store, self.ledger.some(rng)
        what = rng.randrange(6)
        if what == 0 and id is not None:
            store.get(id)
        elif what == 1:
            assert store.count() >= 0
        elif what == 2:
            for _ in store.pending(limit=5):
                pass
        elif what == 3:
            store.horizon(60_000)
        elif what == 4:
            store.stats()
        else:
            store.flush()

    def do_pull(self, rng: random.Random) -> None:
        batch = self.store.pull(TOPIC, group="g", max_count=500, timeout=0.05)
        self.ledger.came.update(batch.ids.to_pylist())
        batch.ack()

    def do_consume(self, rng: random.Random) -> None:
        for d in self.store.consume(TOPIC, group="g", timeout=0.02):
            self.ledger.came.add(d.id)
            if rng.random() < 0.02:
                d.nack(delay=timedelta(milliseconds=rng.randrange(50)))
            else:
                d.ack()

    def do_others(self, rng: random.Random) -> None:
        self.store.pull(f"other{rng.randrange(300)}", group="g", timeout=0).ack()

    def run(self, name: str, rng: random.Random, stop: threading.Event) -> None:
        """Call one kind again and again, until the store is closed."""
        call = self.calls[name]
        while not stop.is_set():
            try:
                call(rng)
                self.ledger.counts[name] += 1
                if name.startswith("put"):
                    time.sleep(rng.random() * 0.004)
            except StoreClosedError:
                return
            except BaseException:
                self.ledger.failures.append(f"{name}: {traceback.format_exc()}")
                return


def storm(
    folder: Path, seconds: float, thread_count: int, seed: int, *, signals: bool = True
) -> Ledger:
    """Play until the time is over; return the ledger.

    Without `signals` where kernels are interpreted: a compiled one cannot be left half-way.
    """
    rng, ledger = random.Random(seed), Ledger()
    play = Storm(ledger)
    until = time.monotonic() + seconds

    alarms = Alarms()
    while time.monotonic() < until and not ledger.failures:
        ledger.counts["opened"] += 1
        play.store = store = TimerStore(folder, config=config(rng))
        stop = threading.Event()
        names = list(play.calls)
        threads = [
            threading.Thread(
                target=play.run, args=(names[i % len(names)], random.Random(rng.random()), stop)
            )
            for i in range(thread_count)
        ]
        consumer = Consumer(store, "g", threads=3)
        consumer.subscribe(TOPIC, lambda d: ledger.came.add(d.id))
        consumer.start()
        for thread in threads:
            thread.start()
        round_until = min(until, time.monotonic() + rng.choice([0.2, 1.0, 4.0]))
        while time.monotonic() < round_until:
            if signals:
                with_alarms(play, rng, ledger, alarms)
            else:
                play.calls[rng.choice(list(play.calls))](rng)
        while True:  # closed in the middle of everything, by an interrupted thread
            try:
                if signals and rng.random() < 0.5:
                    alarms.arm(rng.random() * 0.02)
                store.close()
                alarms.disarm()
                break
            except Alarm:
                ledger.counts["close interrupted"] += 1
        stop.set()
        for thread in threads:
            thread.join()
        consumer.close()
    return ledger


def with_alarms(play: Storm, rng: random.Random, ledger: Ledger, alarms: Alarms) -> None:
    """Make calls in the main thread until a signal's exception ends one."""
    name = rng.choice(list(play.calls))
    try:
        alarms.arm(rng.random() * 0.004)
        for _ in range(1_000):
            play.calls[name](rng)
            if not alarms.is_armed:  # it fell into a destructor, which lets nothing out
                break
        alarms.disarm()
    except Alarm:
        ledger.counts["interrupted"] += 1


def judge(folder: Path, ledger: Ledger) -> None:
    """Open in peace, let everything soon fire, and compare with what was promised."""
    with TimerStore(folder) as store:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            batch = store.pull(TOPIC, group="g", max_count=10_000, timeout=0.5)
            ledger.came.update(batch.ids.to_pylist())
            batch.ack()
            now = time.time_ns() // 1_000_000
            if not len(batch) and not any(True for _ in store.pending(end_ms=now + 5_000)):
                break
        listed = {timer.id for timer in store.pending(topic=TOPIC)}
        count = store.count(TOPIC)
    put, ended = set(ledger.put), {*ledger.cancelled, *ledger.replaced}
    uncertain = set((Counter(ledger.begun) - Counter(ledger.ended)).keys())
    unknown_count = sum(ledger.puts_begun) - sum(ledger.puts_ended)
    lost = put - ended - uncertain - ledger.came - listed
    revived = (ended & (ledger.came | listed)) - uncertain
    strangers = (ledger.came | listed) - put
    ledger.counts["uncertain"], ledger.counts["strangers"] = len(uncertain), len(strangers)
    for text, bad in (
        ("lost", lost),
        ("cancelled, and yet there", revived),
        ("both fired and pending", ledger.came & listed),
    ):
        if bad:
            ledger.failures.append(f"{len(bad)} {text}: {sorted(bad)[:5]}")
    if count != len(listed):
        ledger.failures.append(f"count {count}, listed {len(listed)}")
    if len(strangers) > unknown_count:
        ledger.failures.append(f"{len(strangers)} strangers, {unknown_count} unknown puts")


def use_small_rings(count: int) -> None:
    """Let the services' queues have `count` places; in the interpreted mode alone."""
    assert numba.config.DISABLE_JIT, "run it with NUMBA_DISABLE_JIT=1: kernels know the number"
    modules = [each for name, each in sys.modules.items() if name.startswith("timerstore")]
    assert any(getattr(each, "RING_COUNT", None) for each in modules)
    for module in modules:
        if hasattr(module, "RING_COUNT"):
            module.RING_COUNT = count  # type: ignore[attr-defined]


def main() -> int:
    """Run one storm."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ring", type=int, help="places of a service's queue; interpreted alone")
    parser.add_argument("--switch-interval", type=float, help="sys.setswitchinterval, in seconds")
    options = parser.parse_args()
    if options.ring:
        use_small_rings(options.ring)
    if options.switch_interval:
        sys.setswitchinterval(options.switch_interval)
    faulthandler.enable()
    faulthandler.dump_traceback_later(options.seconds + 240, exit=True)
    ledger = storm(
        options.folder,
        options.seconds,
        options.threads,
        options.seed,
        signals=not numba.config.DISABLE_JIT,
    )
    if not ledger.failures:
        judge(options.folder, ledger)
    facts = dict(ledger.counts) | {
        "timers": len(ledger.put),
        "came": len(ledger.came),
        "cancelled_timers": len(ledger.cancelled),
        "replaced": len(ledger.replaced),
        "failures": ledger.failures[:5],
    }
    json.dump(facts, sys.stdout, indent=1)
    return 1 if ledger.failures else 0


if __name__ == "__main__":
    sys.exit(main())
