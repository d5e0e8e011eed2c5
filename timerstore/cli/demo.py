"""The demonstration: kill a process that puts timers, then show that none was lost or fired twice.

    child    puts, cancels, fires; is killed              demochild.py
    ledger   what the child was told; the judgement       ledger.py
    here     kills, reopens, consumes, compares

It runs on the default configuration, against the wall clock.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from timerstore.cli.demochild import TOPIC
from timerstore.cli.ledger import (
    Fired,
    Judgement,
    Lateness,
    Ledger,
    judge,
    lateness,
    ledger_bytes,
    offsets_of_ids,
    read_ledger,
)
from timerstore.cli.output import Output
from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.ground.amounts import shown_bytes
from timerstore.ground.ids import Int64s
from timerstore.offline.verify import verify
from timerstore.serving import entrance
from timerstore.store.store import TimerStore
from timerstore.timelog.files.names import held_names
from timerstore.warmup import compile_kernels

TIMER_COUNT = 400_000
SPAN_S = 20.0
KILL_SHARE = 0.75
"""The kill comes when the child was told of this share of its timers that they are safe."""
_START_S_MAX = 180.0
"""Compiling the kernels takes that long on a machine that is very busy."""
_PUT_S_MAX = 60.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a demonstration found."""

    judgement: Judgement
    acknowledged_count: int
    cancelled_count: int
    fired_before_count: int
    reopen_s: float
    before: Lateness
    while_down: Lateness
    after: Lateness
    damage: list[str]

    @property
    def ok(self) -> bool:
        """Tell whether every promise was kept."""
        return self.judgement.ok and not self.damage

    def to_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        return {"ok": self.ok, **asdict(self)}


def demonstrate(
    out: Output,
    path: Path | None = None,
    *,
    timer_count: int = TIMER_COUNT,
    span_s: float = SPAN_S,
) -> Outcome:
    """Run it in `path`, which is kept, or in a temporary folder; `timer_count` over `span_s`."""
    if path is not None and path.exists() and held_names(path):
        raise InvalidArgumentError(
            f"{path} is not empty. Pass a folder that does not exist for the demonstration."
        )
    with out.progress("loading the kernels"):
        compile_kernels()
    folder = Path(tempfile.mkdtemp(prefix="timerstore-demo-"))
    try:
        store_path = folder / "store" if path is None else path
        with _quiet(str(store_path)):
            span_ms = int(span_s * 1000)
            return _demonstrate(out, store_path, folder / "ledger", timer_count, span_ms)
    finally:
        shutil.rmtree(folder)


@contextmanager
def _quiet(folder: str) -> Iterator[None]:
    """Keep a store out of the log: that it was not closed cleanly is meant."""
    log = logging.getLogger("timerstore")

    def concerns_others(record: logging.LogRecord) -> bool:
        return folder not in record.getMessage()

    log.addFilter(concerns_others)
    try:
        yield
    finally:
        log.removeFilter(concerns_others)


def _demonstrate(
    out: Output, path: Path, ledger_path: Path, timer_count: int, span_ms: int
) -> Outcome:
    killed_ms = _put_and_kill(out, path, ledger_path, timer_count, span_ms)
    ledger = read_ledger(ledger_path)
    out.say(
        f"   Before that, timerstore had told it that {len(ledger.put):,} timers are safe, and "
        f"that {len(ledger.cancelled):,} are cancelled."
    )
    out.say("3. Opening the store again.")
    with entrance.open(path, create=False) as store:
        ready_ms = store.core.clock.now_ms
        stats = store.stats()
        recovery = stats.recovery
        out.say(
            f"   Open after {stats.open_s:.2f} s: recovery read {recovery['scanned_count']:,} "
            f"messages behind the last checkpoint, cut {recovery['torn_bytes']:,} torn bytes, "
            f"and found {recovery['pending_count']:,} timers pending."
        )
        out.say("4. Consuming: first what fired before the kill, then the others as they fall due.")
        fired = _consume_all(out, store, len(ledger.expected))
        disk_bytes = store.stats().disk_bytes
    out.say(f"   Consumed and acknowledged {len(fired.offsets):,} messages.")
    out.say("5. Comparing this with what the child was told, and checking every byte of the store.")
    with out.progress(f"verifying {shown_bytes(disk_bytes)}"):
        report = verify(path)
    damage = [f"{each.file} at {each.offset}: {each.reason}" for each in report.problems]
    outcome = _compare(ledger, fired, killed_ms, ready_ms, stats.open_s, damage)
    _show(out, outcome)
    return outcome


def _put_and_kill(
    out: Output, path: Path, ledger_path: Path, timer_count: int, span_ms: int
) -> int:
    """Run the child and kill it; return when that was."""
    command = [sys.executable, "-P", "-m", "timerstore.cli.demochild"]
    command += [str(path), str(ledger_path), str(timer_count), str(span_ms)]
    child = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + _START_S_MAX
        while ledger_bytes(ledger_path) == 0:
            _check_alive(child, time.monotonic() < deadline)
            time.sleep(_POLL_S)
        out.say(
            f"1. Process {child.pid} puts timers that fall due over the next "
            f"{span_ms / 1000:g} seconds, cancels some of them, and fires those that are due."
        )
        target, stop = int(timer_count * KILL_SHARE), time.monotonic() + _PUT_S_MAX
        with out.progress("putting", "timers") as update:
            count = 0
            while count < target and time.monotonic() < stop:
                time.sleep(_POLL_S)
                _check_alive(child, True)
                count = len(read_ledger(ledger_path).put)
                update(count, target)
        killed_ms = time.time_ns() // 1_000_000
    finally:
        child.kill()
        child.wait()
    out.say(f"2. Killed process {child.pid} with SIGKILL while it did that.")
    return killed_ms


def _check_alive(child: subprocess.Popen[bytes], in_time: bool) -> None:
    if child.poll() is not None:
        raise TimerStoreError(
            "The child process of the demonstration ended by itself, with exit status "
            f"{child.returncode}. Read what it wrote above."
        )
    if not in_time:
        raise TimerStoreError(
            f"The child process of the demonstration put nothing for {_START_S_MAX:g} s. Try "
            "again when the machine is less busy."
        )


def _consume_all(out: Output, store: TimerStore, expected_count: int) -> Fired:
    """Pull and acknowledge until nothing is pending, and nothing is left to hand out."""
    offsets: list[Int64s] = []
    due_ms: list[Int64s] = []
    fired_ms: list[Int64s] = []
    count = 0
    with out.progress("consuming", "timers") as update:
        while True:
            pending_count = store.count(TOPIC)
            batch = store.pull(TOPIC, max_count=16_384, timeout=0.2)
            if len(batch) == 0:
                if pending_count == 0:
                    break
                continue
            offsets.append(offsets_of_ids(batch.ids))
            due_ms.append(batch.due_ms)
            fired_ms.append(batch.fired_ms)
            batch.ack()
            count += len(batch)
            update(count, expected_count)
    if not offsets:
        none = np.zeros(0, np.int64)
        return Fired(none, none, none)
    return Fired(np.concatenate(offsets), np.concatenate(due_ms), np.concatenate(fired_ms))


def _compare(
    ledger: Ledger,
    fired: Fired,
    killed_ms: int,
    ready_ms: int,
    open_s: float,
    damage: list[str],
) -> Outcome:
    late_ms = fired.fired_ms - fired.due_ms
    before = fired.fired_ms <= killed_ms
    while_down = ~before & (fired.due_ms < ready_ms)
    return Outcome(
        judgement=judge(ledger, fired),
        acknowledged_count=len(ledger.put),
        cancelled_count=len(ledger.cancelled),
        fired_before_count=int(before.sum()),
        reopen_s=round(open_s, 3),
        before=lateness(late_ms[before]),
        while_down=lateness(late_ms[while_down]),
        after=lateness(late_ms[~before & ~while_down]),
        damage=damage,
    )


def _show(out: Output, outcome: Outcome) -> None:
    judged = outcome.judgement
    if out.as_json:
        out.json(outcome.to_dict())
        return
    out.say()
    out.table(
        ["promise", ">timers", ">broken"],
        [
            ("acknowledged, not cancelled: fired", f"{judged.expected_count:,}", judged.lost_count),
            ("fired once into the log", f"{judged.fired_count:,}", judged.twice_count),
            ("never early", f"{judged.fired_count:,}", judged.early_count),
            ("fired for the time asked for", f"{judged.fired_count:,}", judged.wrong_due_count),
            (
                "cancelled: not fired",
                f"{outcome.cancelled_count:,}",
                judged.cancelled_but_fired_count,
            ),
        ],
        aligned=True,
    )
    if judged.unacknowledged_count:
        out.say(
            f"({judged.unacknowledged_count:,} more had been put when the process was killed, "
            "but it had not been told yet. They were safe already, and fired once too.)"
        )
    out.say()
    out.table(
        ["fired_ms - due_ms", ">timers", ">p50", ">p99", ">max"],
        [
            _lateness_row("before the kill", outcome.before),
            _lateness_row("after reopening", outcome.after),
            _lateness_row("overdue: fell due while the process was down", outcome.while_down),
        ],
        aligned=True,
    )
    out.say()
    for each in outcome.damage:
        out.say(f"Damaged: {each}")
    out.say(
        "Every promise was kept." if outcome.ok else "A promise was BROKEN: see above which one."
    )


def _lateness_row(what: str, late: Lateness) -> tuple[object, ...]:
    if late.count == 0:
        return what, 0, "-", "-", "-"
    return what, f"{late.count:,}", *(f"{ms} ms" for ms in (late.p50_ms, late.p99_ms, late.max_ms))
