"""A storm over one store: threads inside all calls at once, signals, random closes.

    STORM_SECONDS=3600 SEED=7 pytest tests/test_storm.py

Segments are tiny, few of them are mapped, retention, cleaning, the scrub are on, half of what is
consumed comes again, the main thread gets a signal every few milliseconds whose handler raises, and
the store is closed and opened again and again, also in the middle of calls. A ledger notes what
each call promised (`storm_ledger.py`). At the end the store is opened once more in peace, and
judged. With `--fills` the store's disk is full and free again all the time. Prints what it did as
JSON; exit status 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numba
import pytest

from tests.interrupting import alarms
from tests.loop_disk import fill
from tests.rigs.storm_calls import Calls
from tests.rigs.storm_ledger import LEVELS, TOPIC, Ledger, judge
from tests.small_store import few_maps
from timerstore import Config, Consumer, StoreClosedError, StoreFullError, TimerStore, Tuning
from timerstore.services.damage import scrub
from timerstore.warmup import compile_kernels

MAPS = (0, 24, 192)
"""Segments that stay mapped; 0: as few as a store can do with."""
_ALONE = ("backup", "clean")  # by one thread each
_READING = ("consume", "pull", "levels", "list", "list_slowly")  # by more threads than the others
_NOT_INTERRUPTED = ("backup",)
_SLOW_INTERPRETED = ("backup", "clean", "list", "list_slowly")
_OF_A_RESTORE = "have no queue entries that say when they are due"
_FULL_S, _FREE_S = 0.1, 0.2


class Alarm(BaseException):
    """What the signal's handler raises, in the middle of anything."""


def in_reach(call: Any, *args: Any) -> None:
    """Call something that alarms may end; they raise nowhere else."""
    call(*args)


def is_in_reach(frame: FrameType | None) -> bool:
    """Tell whether the main thread is in reach of alarms; who catches one is not."""
    while frame is not None:
        if frame.f_code is in_reach.__code__:
            return True
        frame = frame.f_back
    return False


class Heard(logging.Handler):
    """What the store warns of is a failure.

    Handlers that fail are ours, as a full disk is; on a slow one opening tells how far it is.
    """

    def __init__(self, ledger: Ledger, *, fills: bool) -> None:
        super().__init__(logging.WARNING)
        self.ledger, self.fills = ledger, fills

    def emit(self, record: logging.LogRecord) -> None:
        """Note it."""
        text = record.getMessage()
        ours = record.pathname.endswith(
            ("consumer/handling.py", "consumer/threads.py", "recovery_findings.py")
        )
        ours |= _OF_A_RESTORE in text
        is_full = any(isinstance(each, StoreFullError) for each in record.args or ())
        ours |= self.fills and (is_full or hasattr(record, "waiting_for_space"))
        if not ours:
            self.ledger.failures.append(f"log: {text} {record.exc_info or ''}")


def config(rng: random.Random) -> Config:
    """Return settings under which every limit is met all the time."""
    return Config(
        durability=rng.choice(["process", "process", "group"]),
        flush_interval_ms=rng.choice([20, 100, 500]),
        retention_ms=1,
        admission=rng.choice(["grow", "wait"]),
        delay_levels=LEVELS,
        tuning=Tuning(
            precision_ms=100,
            commitlog_segment_bytes=1 << 16,
            consumequeue_segment_bytes=2_000,
            timerlog_segment_bytes=403 * 52 + 16,
            cleaning_factor=1,
            cleaning_slack_bytes=0,
            near_count_max=1 << 18,
            admission_count_max=rng.choice([1, 20, 1_000]),
            level_batch_count=rng.choice([1, 1_024]),
        ),
    )


def storm(
    folder: Path,
    seconds: float,
    thread_count: int,
    seed: int,
    *,
    signals: bool = True,
    only: Collection[str] = (),
    fills: bool = False,
) -> tuple[Ledger, bool]:
    """Play until the time is over; return the ledger, and whether the last close was clean.

    `only`: kinds of calls that are made, in rounds that are longer than a listing. Else all.
    Without `signals` where kernels are interpreted: a compiled one cannot be left half-way. With
    `fills` the folder above has a file system of its own, which is full now and then.
    """
    rng, ledger = random.Random(seed), Ledger()
    above = folder.parent.parent if fills else folder.parent
    play = Calls(ledger, above / f"{folder.name} beside", fills=fills)
    play.beside.mkdir(exist_ok=True)
    heard = Heard(ledger, fills=fills)
    logging.getLogger("timerstore").addHandler(heard)
    until = time.monotonic() + seconds
    names = [each for each in play.calls if signals or each not in _SLOW_INTERPRETED]
    names, rounds_s = (list(only), [8.0]) if only else (names, [0.2, 1.0, 4.0])
    clean = True
    with TimerStore(folder, config=config(rng)) as play.store:
        ledger.reopened(play.store)
        play.begin(rng)
    filling = filled_again_and_again(folder.parent, rng.random(), ledger, begun=fills)
    with alarms(Alarm, is_in_reach), filling:
        while time.monotonic() < until and not ledger.failures:
            play.store = store = opened(folder, config(rng), play)
            ledger.reopened(store, clean=clean)
            watch_scrub(store, ledger)
            ledger.counts["opened"] += 1
            threads, stop = begin_threads(play, names, thread_count, rng)
            consumer = Consumer(store, "c", threads=3, max_attempts=3)
            consumer.subscribe(TOPIC, play.handle)
            try:
                consumer.start()
            except StoreFullError:
                play.full("start")
            round_until = min(until, time.monotonic() + rng.choice(rounds_s))
            while time.monotonic() < round_until and not ledger.failures:
                by_main = [each for each in names if each not in _NOT_INTERRUPTED]
                name = rng.choice([*by_main, "flush", "flush", "clean"] if signals else by_main)
                call_in_main(play, name, rng, ledger, signals=signals)
            clean = close(store, rng, play, signals=signals)
            stop.set()
            for thread in threads:
                thread.join()
            consumer.close()
    logging.getLogger("timerstore").removeHandler(heard)
    return ledger, clean


@contextmanager
def filled_again_and_again(
    disk: Path, seed: float, ledger: Ledger, *, begun: bool
) -> Iterator[None]:
    """Take all room of a disk, but for some pages, and give it back, until the block ends."""
    rng, stop, filling = random.Random(seed), threading.Event(), disk / "filling"

    def run() -> None:
        while not stop.wait(_FREE_S * rng.random() * 2):
            fill(filling, left_bytes=4096 * rng.choice([0, 0, 1, 5, 40]))
            stop.wait(_FULL_S * rng.random() * 2)
            filling.unlink(missing_ok=True)
            ledger.counts["filled"] += 1

    thread = threading.Thread(target=run)
    if begun:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if begun:
            thread.join()


def opened(folder: Path, config: Config, play: Calls) -> TimerStore:
    """Open the store, as soon as there is room for that."""
    while True:
        try:
            return TimerStore(folder, config=config)
        except StoreFullError:
            play.full("open")
            if not play.fills:
                raise


def watch_scrub(store: TimerStore, ledger: Ledger) -> None:
    """Count the steps of the scrub by the file that they read."""
    step = store.core.upkeep.scrub.step

    def counted() -> int:
        done = step()
        ledger.counts[f"scrubbed {store.core.upkeep.scrub.file or 'all'}"] += 1
        return done

    store.core.upkeep.scrub.step = counted  # type: ignore[method-assign]


def begin_threads(
    play: Calls, names: list[str], thread_count: int, rng: random.Random
) -> tuple[list[threading.Thread], threading.Event]:
    """Start threads that make calls; some kinds are made by one thread alone."""
    stop, kinds = threading.Event(), names.copy()
    rng.shuffle(kinds)
    many = [each for each in kinds if each not in _ALONE]
    many += [each for each in many if each in _READING] * 3
    while len(kinds) < thread_count:
        kinds.append(rng.choice(many))
    threads = [
        threading.Thread(target=play.run, args=(kind, random.Random(rng.random()), stop))
        for kind in kinds[:thread_count]
    ]
    for thread in threads:
        thread.start()
    return threads, stop


def call_in_main(
    play: Calls, name: str, rng: random.Random, ledger: Ledger, *, signals: bool
) -> None:
    """Make calls in the main thread until a signal's exception ends one, or it did enough."""
    call = play.calls[name]
    try:
        if not signals:
            call(rng)
            return
        first_s = 0.004 if rng.random() < 0.8 else 0.2
        signal.setitimer(signal.ITIMER_REAL, rng.random() * first_s, 0.0005)
        for _ in range(1_000):
            in_reach(call, rng)
    except Alarm:
        ledger.counts[f"{name} interrupted"] += 1
    except StoreClosedError:
        raise
    except StoreFullError:
        play.full(name)
    except Exception:
        ledger.failures.append(f"main, {name}: {traceback.format_exc()}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def close(store: TimerStore, rng: random.Random, play: Calls, *, signals: bool) -> bool:
    """Close in the middle of everything, by an interrupted thread; tell whether it was clean."""
    clean = True
    while True:
        try:
            if signals and rng.random() < 0.5:
                signal.setitimer(signal.ITIMER_REAL, rng.random() * 0.02)
            in_reach(store.close)
            signal.setitimer(signal.ITIMER_REAL, 0)
            return clean
        except Alarm:
            play.ledger.counts["close interrupted"] += 1
        except StoreFullError:
            clean = False
            play.full("close")


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
    parser.add_argument("--maps", type=int, default=24, help="segments that stay mapped")
    parser.add_argument("--only", default="", help="kinds of calls, with commas; else all")
    parser.add_argument("--fills", action="store_true", help="the disk of the folder above")
    parser.add_argument("--ring", type=int, help="places of a service's queue; interpreted alone")
    parser.add_argument("--switch-interval", type=float, help="sys.setswitchinterval, in seconds")
    parser.add_argument("--die", type=int, help="of this signal, at once: to see what is told")
    options = parser.parse_args()
    faulthandler.enable()
    if options.die:
        os.kill(os.getpid(), options.die)
    # All the time, and not from the second minute on.
    scrub.FIRST_PASS_S, scrub.PAUSE_S = 0.0, 0.0  # type: ignore[misc]
    scrub.STEP_BYTES, scrub.BYTES_PER_S = 32 << 20, 1 << 40  # type: ignore[misc]
    if options.ring:
        use_small_rings(options.ring)
    few_maps(pytest.MonkeyPatch(), options.maps)
    if options.switch_interval:
        sys.setswitchinterval(options.switch_interval)
    if not numba.config.DISABLE_JIT:
        compile_kernels()
    faulthandler.dump_traceback_later(options.seconds + 240, exit=True)
    ledger, clean = storm(
        options.folder,
        options.seconds,
        options.threads,
        options.seed,
        signals=not numba.config.DISABLE_JIT,
        only=options.only.split(",") if options.only else (),
        fills=options.fills,
    )
    if not ledger.failures:
        judge(options.folder, ledger, clean=clean)
    facts = dict(ledger.counts) | {
        "timers": len(ledger.put),
        "came": len(ledger.came),
        "cancelled_timers": len(ledger.cancelled),
        "replaced": len(ledger.replaced),
        "sent_back": len(ledger.nacks_ended),
        "failures": ledger.failures[:5],
    }
    json.dump(facts, sys.stdout, indent=1)
    return 1 if ledger.failures else 0


if __name__ == "__main__":
    sys.exit(main())
