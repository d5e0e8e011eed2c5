"""The process with the store: `worker.py SCENARIO FOLDER TIMERS AHEAD_MS SEED PARENT`.

It ends by itself when the ledger says stop, and all has come; or if its parent, the process of that
number, has ended; or it is killed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # bench/

import timerstore
from stress.audit import look_at_newest, rounds
from stress.ledger import Ledger
from stress.load import TOPIC, Work
from stress.scenarios import SCENARIOS, Scenario
from stress.watch import used_bytes
from timerstore import ManualClock

_LOOK_S = 0.2
_MEMORY_S = 10.0
STORE, LEDGER = "store", "ledger"


def _thread(body: Callable[[], None]) -> threading.Thread:
    """Return a thread whose failure ends the process."""

    def run() -> None:
        try:
            body()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(3)

    return threading.Thread(target=run, daemon=True)


def _play(work: Work, scenario: Scenario, parent: int) -> None:
    """Start all threads; come back when they have ended."""
    ledger, base = work.ledger, {name: work.ledger[name] for name in ("hopped", "fired")}
    if scenario.script is not None:
        script = scenario.script
        puts, takes = [_thread(lambda: script(work))], list[threading.Thread]()
    else:
        puts = [
            _thread(lambda act=act, i=i: act(work, i))  # type: ignore[misc]
            for i, act in enumerate(scenario.putters)
        ]
        takes = [
            _thread(lambda act=act, i=i: act(work, i))  # type: ignore[misc]
            for i, act in enumerate(scenario.consumers)
        ]
    work.putting = len(puts)
    for thread in (*puts, *takes):
        thread.start()
    ledger["used_bytes"] = used_bytes()
    ledger["ready"] = 1
    audit, next_s = rounds(work), time.monotonic() + _MEMORY_S
    while any(thread.is_alive() for thread in (*puts, *takes)):
        time.sleep(_LOOK_S)
        if os.getppid() != parent:  # who plays this was killed
            os._exit(4)
        work.putting = sum(thread.is_alive() for thread in puts)
        stats = work.store.stats()
        ledger["hopped"] = base["hopped"] + stats.rolled_count
        ledger["fired"] = base["fired"] + stats.fired_count
        if scenario.script is None:  # a clock that is moved stands behind what fires meanwhile
            look_at_newest(work)
            next(audit)
        if time.monotonic() > next_s:
            ledger["used_bytes"], next_s = used_bytes(), time.monotonic() + _MEMORY_S


def main() -> None:
    """Open the store, play, say how it ended."""
    name, folder, timers, ahead_ms, seed, parent = sys.argv[1:]
    scenario = SCENARIOS[name]
    ledger = Ledger(Path(folder) / LEDGER, len(scenario.putters))
    path = Path(folder) / STORE
    clock = ManualClock() if scenario.script is not None else None
    with timerstore.open(path, config=scenario.config, clock=clock) as store:
        step_ms = round(1_000 * scenario.step_s[1]) if scenario.step_s else 0
        work = Work(store, ledger, int(timers), int(ahead_ms), int(seed), step_ms)
        _play(work, scenario, int(parent))
        ledger["pending"] = store.stats().pending_count
        row = store.core.engine.queues.row(TOPIC.encode())
        ledger["queue_end"] = store.core.engine.queues.next_index(row)
    ledger["finished"] = 1


if __name__ == "__main__":
    main()
