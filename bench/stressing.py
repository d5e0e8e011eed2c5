"""Plays a scenario for minutes; at the end every timer must be accounted for.

On the way it shows rates, memory, descriptors, disk. It ends with 1 if a count does not agree, if
memory or descriptors grew, or if the store is damaged.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
import machine
import results
from results import short
from stress import judge, watch
from stress.clock import MISSING, MovedClock, compiler
from stress.ledger import Ledger
from stress.scenarios import SCENARIOS, Scenario
from stress.worker import LEDGER, STORE

import timerstore

KIND = "stress"
COLUMNS = (
    *("minutes", "put", "fired", "kills", "private memory, MB", "disk, MB at most", "load"),
    "found",
)
WORKER = Path(__file__).with_name("stress") / "worker.py"
_TICK_S = 0.1
_STUCK_S = 120.0
"""If nothing comes for so long, something is stuck."""


class PlayError(Exception):
    """A play ended before its time; says why."""


def _ending(code: int) -> str:
    if code >= 0:
        return str(code)
    more = ", as if the disk were full" if -code == signal.SIGBUS else ""
    return signal.Signals(-code).name + more


@dataclass
class Ended:
    """How a play ended."""

    counts: judge.Counts
    faults: list[str]
    seconds: float
    lives: int
    again: int
    refused: int
    hopped: int
    samples: list[watch.Sample]


@dataclass
class Play:
    """One scenario under way."""

    name: str
    scenario: Scenario
    folder: Path
    seconds: float
    seed: int
    progress_s: float = 5.0
    environment: dict[str, str] = field(default_factory=dict)
    clock: MovedClock | None = None
    lives: int = 0
    samples: list[watch.Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder / LEDGER, len(self.scenario.putters))
        self._random = random.Random(self.seed)
        self._start_s = time.monotonic()
        self._shown = (0.0, 0, 0)
        self._moved = (0.0, 0)

    @property
    def store_path(self) -> Path:
        return self.folder / STORE

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def start(self) -> subprocess.Popen[bytes]:
        self.lives += 1
        # A short play ends, too: nothing is due beyond half of it.
        ahead_ms = min(self.scenario.ahead_ms, max(100, round(self.seconds * 500)))
        command = [sys.executable, "-P", str(WORKER), self.name, str(self.folder)]
        command += [str(self.scenario.timers), str(ahead_ms), str(self.seed + self.lives)]
        command.append(str(os.getpid()))
        self.ledger["ready"] = 0
        return subprocess.Popen(command, env=os.environ | self.environment)

    def run(self) -> None:
        """Play until the time is over, and all has come."""
        scenario, worker = self.scenario, self.start()
        try:
            while not self.ledger["ready"] and worker.poll() is None:
                time.sleep(_TICK_S)  # if kernels are compiled first, that is no time of the play
            self._start_s = time.monotonic()
            kills = self._next(scenario.kill_s, drawn=True)
            steps, stalls = self._next(scenario.step_s), self._next(scenario.stall_s)
            stall_end = 0.0
            while worker.poll() is None:
                time.sleep(_TICK_S)
                now_s = self.elapsed_s
                self._look(worker.pid)
                if now_s >= self.seconds and not self.ledger["stop"]:
                    self.ledger["stop"], self.ledger["stalled"] = 1, 0
                self._judge(now_s)
                if self.ledger["stop"]:
                    continue
                if scenario.stall_s is not None:
                    if self.ledger["stalled"] and now_s >= stall_end:
                        self.ledger["stalled"], stalls = 0, self._next(scenario.stall_s)
                    elif not self.ledger["stalled"] and now_s >= stalls:
                        length_s = min(scenario.stall_s[1], self.seconds / 3)
                        self.ledger["stalled"], stall_end = 1, now_s + length_s
                if scenario.step_s is not None and now_s >= steps:
                    assert self.clock is not None
                    self.clock.set(self._random.uniform(-1, 1) * scenario.step_s[1])
                    steps = self._next(scenario.step_s)
                if scenario.kill_s is not None and now_s >= kills and self.ledger["ready"]:
                    worker.kill()
                    worker.wait()
                    self.ledger.settle()
                    worker = self.start()
                    kills = self._next(scenario.kill_s, drawn=True)
        finally:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        if worker.returncode or not self.ledger["finished"]:
            raise PlayError(f"the process with the store ended with {_ending(worker.returncode)}")

    def _next(self, every: tuple[float, float] | None, *, drawn: bool = False) -> float:
        if every is None:
            return float("inf")
        length_s = self._random.uniform(*every) if drawn else every[0]
        return self.elapsed_s + min(length_s, self.seconds / 4)

    def _judge(self, now_s: float) -> None:
        """End the play if something is known to be wrong already, or if nothing comes any more."""
        ledger, why = self.ledger, list[str]()
        came = ledger["pulled"] - ledger["again"]
        if came != self._moved[1] or ledger["stalled"] or not ledger["ready"]:
            self._moved = now_s, came
        elif now_s - self._moved[0] > _STUCK_S:
            ledger.audit(ledger.put)
            why.append(f"nothing has come for {_STUCK_S:g} s")
        if why := [*why, *judge.blamed(ledger, killed=self.lives > 1)]:
            raise PlayError("; ".join(why))

    def _look(self, pid: int) -> None:
        now_s = self.elapsed_s
        last_s = self.samples[-1].at_s if self.samples else -1.0
        if now_s - last_s >= min(1.0, self.progress_s) and self.ledger["ready"]:
            used_bytes = self.ledger["used_bytes"]
            sample = watch.look(pid, self.store_path, now_s, self.lives, used_bytes)
            if sample is not None:
                self.samples.append(sample)
        shown_s, put, pulled = self._shown
        if now_s - shown_s >= self.progress_s and self.samples:
            self._shown = (now_s, int(self.ledger.put.sum()), self.ledger["pulled"])
            print(self._line(now_s - shown_s, put, pulled), flush=True)

    def _line(self, span_s: float, put: int, pulled: int) -> str:
        now_put, now_pulled, sample = self._shown[1], self._shown[2], self.samples[-1]
        words = (
            f"{self.elapsed_s:6.0f} s  "
            f"put {short(now_put)} (+{short((now_put - put) / span_s)}/s)  "
            f"came {short(now_pulled)} (+{short((now_pulled - pulled) / span_s)}/s)  "
            f"{sample.private_bytes / 1e6:.0f} MB private  {sample.descriptors} descriptors  "
            f"{sample.disk_bytes / 1e6:,.0f} MB of disk"
        )
        for name in ("refused", "hopped", "cancelled"):
            if self.ledger[name]:
                words += f"  {short(self.ledger[name])} {name}"
        return words + (f"  life {self.lives}" if self.lives > 1 else "")


def play(name: str, folder: Path, seconds: float, seed: int = 1, progress_s: float = 5.0) -> Ended:
    """Play a scenario below a folder, and judge it."""
    scenario = SCENARIOS[name]
    clock = MovedClock(folder) if scenario.step_s is not None else None
    environment = clock.environment if clock else {}
    playing = Play(name, scenario, folder, seconds, seed, progress_s, environment, clock)
    playing.run()
    ledger, counts = playing.ledger, judge.count(playing.ledger)
    faults = judge.faults(ledger, counts, killed=playing.lives > 1)
    faults += watch.growth(playing.samples)
    report = timerstore.verify(playing.store_path, config=scenario.config)
    faults += [f"verify: {problem}" for problem in report.problems]
    again, refused, hopped = (ledger[each] for each in ("again", "refused", "hopped"))
    lives, samples = playing.lives, playing.samples
    return Ended(counts, faults, playing.elapsed_s, lives, again, refused, hopped, samples)


def missing(name: str) -> str | None:
    """Say why a scenario cannot be played here, or None."""
    return MISSING if SCENARIOS[name].step_s is not None and compiler() is None else None


def told(ended: Ended) -> str:
    counts, samples = ended.counts, ended.samples
    lines = [
        f"{counts.put:,} put, {counts.cancelled:,} cancelled, {counts.came:,} came, in "
        f"{ended.seconds:,.0f} s and {ended.lives} lives; {counts.unsure:,} under way at a kill, "
        f"{ended.again:,} handed out again, {ended.refused:,} puts refused, {ended.hopped:,} hops"
    ]
    if samples:
        used = watch.early_and_late(watch.judged(samples), "used_bytes", min)
        lines.append(
            f"at most {max(each.private_bytes for each in samples) / 1e6:,.0f} MB private, "
            f"{used[0] / 1e6:.0f} → {used[1] / 1e6:.0f} MB in use, "
            f"{max(each.descriptors for each in samples)} descriptors, "
            f"{max(each.disk_bytes for each in samples) / 1e6:,.0f} MB of disk"
        )
    lines += [f"FAULT: {fault}" for fault in ended.faults]
    return "\n".join(lines) + ("" if ended.faults else "\nEvery timer is accounted for.")


def kept(ended: Ended) -> dict[str, Any]:
    """Return what is kept of a play: the cells of its row."""
    counts, samples = ended.counts, watch.judged(ended.samples)
    memory = watch.early_and_late(samples, "private_bytes")
    load = os.getloadavg()[1]
    cells = [
        f"{ended.seconds / 60:.1f}",
        short(counts.put + counts.unsure),
        short(counts.came),
        str(ended.lives - 1),
        " → ".join(f"{value / 1e6:.0f}" for value in memory),
        f"{max((each.disk_bytes for each in ended.samples), default=0) / 1e6:,.0f}",
        f"{load:.1f}",
        "; ".join(ended.faults) or "all agree",
    ]
    return results.record(load, cells=dict(zip(COLUMNS, cells, strict=True)))


def table(records: results.Records) -> str:
    """Return a row for each scenario that was played."""
    rows = [[f"`{name}`", *each["cells"].values()] for name, each in records.items()]
    table = results.markdown(["scenario", *COLUMNS], rows)
    return f"{results.days(records.values())}.\n\n{table}"


def main() -> None:
    listed = "".join(f"\n  {name:12} {each.what}" for name, each in SCENARIOS.items())
    parser = argparse.ArgumentParser(
        prog="./run stress",
        description=f"{__doc__}\nscenarios:{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", choices=(*SCENARIOS, "all"), metavar="SCENARIO")
    parser.add_argument(
        "--minutes", type=harness.above_zero, default=1.0, help="length of a play (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (default: 1)")
    harness.add_files(parser)
    arguments = parser.parse_args()
    harness.check_files(parser, arguments, KIND)
    if arguments.fill and not arguments.json:
        parser.error("--fill needs --json")
    failed = False
    for name in SCENARIOS if arguments.scenario == "all" else [arguments.scenario]:
        print(f"{name}: {SCENARIOS[name].what}; seed {arguments.seed}\n{machine.headline()}")
        if reason := missing(name):
            print(f"not played: {reason}")
            failed = failed or arguments.scenario != "all"
            continue
        try:
            with machine.scratch_folder(arguments.folder) as folder:
                seconds = 60 * arguments.minutes
                ended = play(name, folder, seconds, arguments.seed)
        except PlayError as e:
            print(f"FAULT: {e}", flush=True)
            failed = True
            continue
        print(told(ended), flush=True)
        if arguments.json:
            results.keep(arguments.json, {f"{KIND}/{name}": kept(ended)})
        failed = failed or bool(ended.faults)
    if arguments.fill:
        records = results.of(results.read(arguments.json), KIND)
        results.fill(arguments.fill, KIND, table(records))
    sys.exit(failed)


if __name__ == "__main__":
    main()
