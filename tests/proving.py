"""What `./run prove` plays: each attack again and again, until it has had its amount.

    ./run prove                          all of them: days; Ctrl-C ends it, the next call goes on
    ./run prove --hours 3                so long
    ./run prove --plays kills listings   those alone
    ./run prove --pythons a/bin/python   with these, which have what requirements.lock says
    ./run prove --summary                what was played so far
    ./run prove --anew                   forgets that

A play is tests, which run in batches. Each batch has a seed of its own, and a discomfort: a file
system, little memory, a busy neighbour, caches that are dropped. All plays get the same time.
`.prove/played.jsonl` keeps a line for each batch, `.prove/summary.md` the table. A failure is shown
with the command that repeats it, and its output is kept. The others go on; a play that has failed
three times does not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import machine
import pytest

from tests.loop_disk import DISK_BYTES, mounted

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".prove"
MEMORY_BYTES = 700 << 20
"""Python with all its libraries and kernels takes half of it."""
BATCH_BYTES = 6 << 30
"""What a file system has for a batch."""
BATCH_S_MAX = 3_600
"""Its tests have time limits, so none takes so long, unless a process of theirs is left."""
LINES_SHOWN = 40
FAILURES_MAX = 3


class Play(NamedTuple):
    """What is counted, how many are asked for, which tests play it, with what for one batch.

    A test tells how much it played, of this play or of others (`record_property`); else it counts
    as one.
    """

    what: str
    amount: int
    tests: str
    settings: str = ""


PLAYS = {
    "kills": Play(
        "kill -9 of a real process",
        20_000,
        "tests/test_kill.py tests/consumer/test_consumer_kill.py tests/aio/test_kill.py"
        " tests/calls/consuming/test_ackput_kill.py tests/share/test_share_kill.py",
        "KILL_ROUNDS=30 CONSUMER_KILLS=10 CHAIN_KILLS=10 AIO_KILLS=5 SHARE_KILL_SECONDS=20",
    ),
    "cuts": Play(
        "simulated power cuts", 1_000_000, "tests/testing/test_kills.py", "CRASH_STEPS=20"
    ),
    "disks": Play(
        "power cuts of real file systems", 5_000, "tests/test_power_cuts.py", "POWER_CUTS=100"
    ),
    "damage": Play("damaged directories", 100_000, "tests/test_damaged_files.py", "DAMAGED=14"),
    "calls": Play(
        "lives in which system calls fail", 5_000, "tests/test_failing_calls.py", "FAILING_CALLS=3"
    ),
    "histories": Play(
        "stateful histories",
        50_000,
        "tests/test_rules_model.py::test_history tests/test_cleaning_model.py::test_history",
        "RULES_RUNS=60 CLEANING_RUNS=60",
    ),
    "listings": Play(
        "long listings beside cleaning",
        5_000,
        "tests/test_storm.py::test_listings_that_are_overtaken",
        "STORM_SECONDS=60",
    ),
    "threads": Play(
        "minutes of 64 threads in all calls, with signals and closes",
        120,
        "tests/test_storm.py::test_nothing_freezes_and_counts_are_exact",
        "STORM_SECONDS=240 STORM_THREADS=64",
    ),
    "alarms": Play(
        "snapshots of a live, busy, healthy store", 400, "tests/pipeline/test_live_alarms.py"
    ),
}


@contextmanager
def busy_neighbour(folder: Path) -> Iterator[Path]:
    """Have a process for each processor that does nothing else than to be busy."""
    spin = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    try:
        yield folder
    finally:
        for each in processes:
            each.kill()
            each.wait()


@contextmanager
def dropped_caches(folder: Path) -> Iterator[Path]:
    """Drop the page cache twice a second."""
    stop, file = threading.Event(), Path("/proc/sys/vm/drop_caches")

    def drop() -> None:
        while not stop.wait(0.5):
            file.write_text("1")

    file.write_text("1")
    thread = threading.Thread(target=drop)
    thread.start()
    try:
        yield folder
    finally:
        stop.set()
        thread.join()


def discomforts() -> dict[str, Callable[[Path], AbstractContextManager[Path]]]:
    """Return those which this machine and this user can have; each gives the folder of a batch."""
    found: dict[str, Callable[[Path], AbstractContextManager[Path]]] = {
        "none": nullcontext,
        "a busy neighbour": busy_neighbour,
    }
    with suppress(OSError), machine.limited_memory(1 << 50):
        found["little memory"] = nullcontext
    with suppress(OSError), dropped_caches(ROOT):
        found["dropped caches"] = dropped_caches
    for kind in DISK_BYTES:
        mount = partial(mounted, kind=kind, disk_bytes=BATCH_BYTES)
        with (
            suppress(pytest.skip.Exception),
            tempfile.TemporaryDirectory() as folder,
            mount(Path(folder)),
        ):
            found[kind] = mount
    return found


class Proof:
    """What was played, and what is under way."""

    def __init__(self, folder: Path, asked: argparse.Namespace) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.plays: list[str] = asked.plays
        self.pythons: list[str] = asked.pythons
        self.until_s = time.monotonic() + asked.hours * 3_600
        self.file = folder / "played.jsonl"
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.played: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.discomforts, self.rnd, self.lock = discomforts(), random.Random(), threading.Lock()
        self.running: set[subprocess.Popen[str]] = set()
        self.is_over = False
        self.under_way, self.failed = Counter[str](), Counter[str]()
        self.commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip()

    def count(self, play: str) -> float:
        """Return how much of a play was played, in batches of any."""
        return sum(float(each["counts"].get(play, 0)) for each in self.played)

    def seconds(self, play: str) -> float:
        return sum(float(each["seconds"]) for each in self.played if each["play"] == play)

    def next(self) -> str | None:
        """Return the play, of those that have not had their amount, that has had the least time."""
        left = [play for play in self.plays if self.failed[play] < FAILURES_MAX]
        left = [play for play in left if self.count(play) < PLAYS[play].amount]
        if self.is_over or not left or time.monotonic() > self.until_s:
            return None
        return min(left, key=lambda play: (self.under_way[play], self.seconds(play)))

    def work(self) -> None:
        """Play batches until nothing is left, or the time is over."""
        while True:
            with self.lock:
                if (play := self.next()) is None:
                    return
                self.under_way[play] += 1
                seed = self.rnd.randrange(1 << 30)
                discomfort = self.rnd.choice(list(self.discomforts))
                python = self.rnd.choice(self.pythons)
            try:
                self.play(play, seed, discomfort, python)
            finally:
                self.under_way[play] -= 1

    def play(self, play: str, seed: int, discomfort: str, python: str) -> None:
        """Play a batch, and note it; what was ended from outside is forgotten."""
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made,
            self.discomforts[discomfort](Path(made)) as folder,
        ):
            begun_s = time.monotonic()
            has_passed, output = self.run(
                play, seed, folder, python, has_little=discomfort == "little memory"
            )
            seconds = time.monotonic() - begun_s
            counts = counted(play, folder / "results.xml")
        if self.is_over:
            return
        line = {
            "play": play,
            "seed": seed,
            "under": discomfort,
            "python": python,
            "commit": self.commit,
            "counts": counts,
            "seconds": round(seconds, 1),
            "failed": not has_passed,
        }
        with self.lock:
            self.played.append(line)
            self.failed[play] += not has_passed
            with self.file.open("a") as opened:
                opened.write(json.dumps(line) + "\n")
            told = f"{PLAYS[play].what}: {self.count(play):,.0f} of {PLAYS[play].amount:,}"
            print(f"{time.strftime('%X')}  {told}; seed {seed}, {discomfort}, {seconds:.0f} s")
            if not has_passed:
                kept = self.folder / f"{play}-{seed}.txt"
                kept.write_text(output)
                print(*output.splitlines()[-LINES_SHOWN:], sep="\n")
                print(f"FAILED, under: {discomfort}. Its output is in {kept}. Repeat it with\n")
                print(f"    PROVE=1 SEED={seed} {PLAYS[play].settings} ./run test \\")
                print(f"        --hypothesis-seed={seed} {PLAYS[play].tests}\n")
            sys.stdout.flush()

    def run(
        self, play: str, seed: int, folder: Path, python: str, *, has_little: bool
    ) -> tuple[bool, str]:
        """Run the tests of a batch; return whether they passed, and what they printed."""
        environment = dict(each.split("=") for each in PLAYS[play].settings.split())
        environment |= {"PROVE": "1", "SEED": str(seed), "TMPDIR": str(folder)}
        command = [python, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"]
        command += [f"--junitxml={folder / 'results.xml'}", f"--hypothesis-seed={seed}"]
        process = subprocess.Popen(
            [*command, *PLAYS[play].tests.split()],
            cwd=ROOT,
            env={**os.environ, **environment, "PYTHONPATH": ""},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with self.lock:
            self.running.add(process)
        limit = machine.limited_memory(MEMORY_BYTES, process.pid) if has_little else nullcontext()
        try:
            with limit:
                try:
                    output, _ = process.communicate(timeout=BATCH_S_MAX)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    output = f"{process.communicate()[0]}\nIt did not end in {BATCH_S_MAX} s."
        finally:
            with self.lock:
                self.running.discard(process)
        return process.returncode == 0, output

    def end(self) -> None:
        """End what is under way."""
        self.is_over = True
        with self.lock:
            for process in self.running:
                os.killpg(process.pid, signal.SIGKILL)

    def summary(self) -> str:
        """Return the table of what was played."""
        lines = ["| play | asked for | played | failed batches | hours | batches under |"]
        lines += ["|---|---|---|---|---|---|"]
        for name, play in PLAYS.items():
            mine = [each for each in self.played if each["play"] == name]
            under = Counter(each["under"] for each in mine)
            said = ", ".join(f"{kind} {count}" for kind, count in sorted(under.items()))
            failed = sum(each["failed"] for each in mine)
            numbers = f"{play.amount:,} | {self.count(name):,.0f} | {failed}"
            hours = self.seconds(name) / 3_600
            lines.append(f"| {play.what} | {numbers} | {hours:.1f} | {said} |")
        for what in ("python", "commit"):
            used = Counter(each[what] for each in self.played)
            told = ", ".join(f"{name} ({count} batches)" for name, count in used.items())
            lines += ["", f"{what.capitalize()}: {told}"]
        return "\n".join([*lines, ""])


def counted(play: str, results: Path) -> dict[str, float]:
    """Return how much of each play the tests of a batch have played, of those that passed."""
    counts: dict[str, float] = defaultdict(float)
    for case in ET.parse(results).iter("testcase") if results.exists() else ():
        if all(case.find(each) is None for each in ("skipped", "failure", "error")):
            told = {play: 1.0}
            for each in case.iter("property"):
                told[each.get("name", "")] = float(each.get("value", "0"))
            for name in PLAYS:
                counts[name] += told.get(name, 0)
    return dict(counts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run prove", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hours", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--plays", nargs="+", choices=PLAYS, default=list(PLAYS))
    parser.add_argument("--pythons", nargs="+", default=[sys.executable])
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="batches at a time")
    parser.add_argument("--summary", action="store_true", help="tell what was played so far")
    parser.add_argument("--anew", action="store_true", help="forget what was played")
    asked = parser.parse_args()
    if asked.anew:
        shutil.rmtree(FOLDER, ignore_errors=True)
    proof = Proof(FOLDER, asked)
    workers = [threading.Thread(target=proof.work) for _ in range(asked.workers)]
    for each in [] if asked.summary else workers:
        each.start()
    try:
        while any(each.is_alive() for each in workers):
            time.sleep(0.1)
    except KeyboardInterrupt:
        proof.end()
        for each in workers:
            each.join()
    (FOLDER / "summary.md").write_text(proof.summary())
    print(proof.summary())
    return int(any(each["failed"] for each in proof.played))


if __name__ == "__main__":
    sys.exit(main())
