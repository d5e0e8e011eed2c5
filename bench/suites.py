"""Runs the suite of `bench/suite/`; says what became slower than the stored baseline.

A stage's figure is the ratio to a reference of the same rounds, so it holds while the machine is
busy, and by and large on another machine. On another kind of processor, or another Python, a slower
stage is only told; so it is on a machine that is very busy, because there what needs much memory
takes up to twice as long beside its reference: there a stage is too slow if it takes two and a half
times as long. What seems slower is measured again, twice; its lowest figure counts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import harness
import machine
import results

SUITE = Path(__file__).with_name("suite")
BASELINE = SUITE / "baseline.json"
AGAIN = 2
"""How often what seems slower is measured again."""
STORED_RUNS = 5
_NO_STAGE = "no benchmarks have been run"
"""What pytest-benchmark says if there is nothing to run."""
BUSY = 2.0
"""A machine is very busy if so many threads want each processor."""
BUSY_LIMIT = 1.5
"""On such a machine a stage that is slower by more than that is an error all the same."""


@dataclass(frozen=True)
class Stage:
    """One stage, measured."""

    name: str
    ratio: float
    """Median over rounds of processor time, for as many timers, to that of its reference."""
    ns: float
    """Processor time for each timer, or what else the stage counts."""
    beside: str


@dataclass(frozen=True)
class Verdict:
    """What a comparison found."""

    slower: dict[str, float]
    """By how much: 0.2 is a fifth slower than the baseline."""
    faster: dict[str, float]
    new: list[str]
    gone: list[str]

    @property
    def is_good(self) -> bool:
        """Tell whether nothing is slower, and the baseline knows the same stages."""
        return not (self.slower or self.new or self.gone)


def stages_of(document: dict[str, Any]) -> dict[str, Stage]:
    """Return the stages of what pytest-benchmark wrote, by name."""
    found = {}
    for each in document["benchmarks"]:
        name = each["fullname"].rpartition("suite/")[2]
        more, count = each["extra_info"], each["extra_info"]["count"]
        ns = each["stats"]["median"] / count * 1e9
        found[name] = Stage(name, statistics.median(more["ratios"]), ns, more["beside"])
    return found


def measure(rounds: int, names: Sequence[str] = (), expression: str = "") -> dict[str, Stage]:
    """Run stages, all or some, in a process of their own."""
    with machine.scratch_folder(None) as folder:
        out = folder / "out.json"
        where = [str(SUITE / name) for name in names] or [str(SUITE)]
        command = [sys.executable, "-P", "-m", "pytest", "-q", *where]
        command += ["-o", "python_functions=bench_*", "--benchmark-only", "--benchmark-quiet"]
        command += ["--benchmark-timer=time.process_time", f"--benchmark-json={out}"]
        command += ["-k", expression] if expression else []
        environment = os.environ | {"SUITE_ROUNDS": str(rounds)}
        code, said = run_tidily(command, environment)
        if code and _NO_STAGE in said:
            sys.exit(f"No stage is called {expression!r}.")
        if code:
            sys.exit(f"{said}\nThe suite failed: mend it, then run it again.")
        return stages_of(json.loads(out.read_text()))


def run_tidily(command: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    """Run a command of Python; return how it ended, and what it said.

    If this is cut short the command gets a Ctrl-C of its own, and the time to remove its folders.
    """
    with subprocess.Popen(
        command,
        cwd=SUITE.parent.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    ) as process:
        try:
            said, _ = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.communicate()
            raise
    return process.returncode, said


def baseline_of(path: Path) -> tuple[str, dict[str, float]]:
    """Return for which machines a baseline is, and its ratios; none if there is no file.

    Raises ValueError if the file is broken.
    """
    if not path.exists():
        return "", {}
    try:
        document = json.loads(path.read_text())
        ratios = {name: float(ratio) for name, ratio in document["ratios"].items()}
        if not all(0 < ratio < math.inf for ratio in ratios.values()):
            raise ValueError("a ratio is not above 0")
        return str(document["kind"]), ratios
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise ValueError(f"{path} is not a file that --store has written: {e!r}") from e


def compare(
    ratios: dict[str, float],
    baseline: dict[str, float],
    limit: float,
    again: Callable[[list[str]], dict[str, float]],
) -> Verdict:
    """Compare with a baseline; what is slower by more than `limit` is measured `again`."""
    ratios = dict(ratios)

    def off() -> dict[str, float]:
        return {
            name: ratio / baseline[name] - 1 for name, ratio in ratios.items() if name in baseline
        }

    for _ in range(AGAIN):
        slow = [name for name, more in off().items() if more > limit]
        if not slow:
            break
        for name, ratio in again(slow).items():
            ratios[name] = min(ratios[name], ratio)
    found = off()
    return Verdict(
        {name: more for name, more in found.items() if more > limit},
        {name: more for name, more in found.items() if 1 + more < 1 / (1 + limit)},
        sorted(ratios.keys() - baseline.keys()),
        sorted(baseline.keys() - ratios.keys()),
    )


def told(verdict: Verdict, limit: float) -> str:
    """Say what a comparison found, a line for each stage that stands out."""
    lines = [f"slower by {more:.0%}: {name}" for name, more in verdict.slower.items()]
    lines += [
        f"faster by {1 / (1 + more) - 1:.0%}: {name}" for name, more in verdict.faster.items()
    ]
    lines += [f"not in the baseline: {name}" for name in verdict.new]
    lines += [f"in the baseline alone: {name}" for name in verdict.gone]
    if verdict.new or verdict.gone:
        lines.append("Store the baseline again: ./run bench --suite --store")
    if not verdict.slower:
        lines.append(f"No stage is slower than the baseline by more than {limit:.0%}.")
    return "\n".join(lines)


def excuse(stored_kind: str, kind: str, load: float) -> str | None:
    """Say why slower is no error here, or None."""
    if stored_kind != kind:
        return f"The baseline was stored on {stored_kind}. On {kind} slower is no error."
    if load > BUSY * (os.cpu_count() or 1):
        return f"The load is {load:.1f}: slower by less than {BUSY_LIMIT:.0%} is no error."
    return None


def show(stages: dict[str, Stage], baseline: dict[str, float]) -> None:
    print(f"{'stage':58} {'ns each':>10} {'ratio':>8} {'baseline':>9}")
    for name, stage in stages.items():
        before = f"{baseline[name]:9.3f}" if name in baseline else f"{'':9}"
        print(f"{name:58} {stage.ns:10,.1f} {stage.ratio:8.3f} {before}  {stage.beside}")


def store(runs: list[dict[str, Stage]], path: Path) -> None:
    """Store the lowest of several runs as the baseline: what other programs took is the least."""
    ratios = {
        name: float(f"{min(run[name].ratio for run in runs):.4g}") for name in sorted(runs[0])
    }
    document = {"machine": machine.headline(), "kind": machine.kind(), "ratios": ratios}
    results.write_json(path, document)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./run bench --suite", description=__doc__)
    parser.add_argument("--compare", action="store_true", help="fail if a stage is slower by 10 %%")
    parser.add_argument("--short", action="store_true", help="few rounds; fail at 100 %% (for CI)")
    parser.add_argument("--store", action="store_true", help="store the baseline")
    parser.add_argument("-k", dest="expression", default="", help="stages, as pytest chooses them")
    parser.add_argument(
        "--rounds",
        type=harness.count_above_zero,
        help="rounds of each stage (default: 15, or 5 with --short)",
    )
    arguments = parser.parse_args()
    if arguments.store and arguments.expression:
        parser.error("--store stores all stages: it takes no -k")
    try:
        stored_kind, baseline = baseline_of(BASELINE)
    except ValueError as e:
        if not arguments.store:
            parser.error(str(e))
    if not (baseline or arguments.store) and (arguments.compare or arguments.short):
        parser.error(f"there is no baseline in {BASELINE}: use --store")
    rounds = arguments.rounds or (5 if arguments.short else 15)
    print(machine.headline(), flush=True)
    load = os.getloadavg()[0]
    if arguments.store:
        store([measure(rounds) for _ in range(STORED_RUNS)], BASELINE)
        return
    stages = measure(rounds, expression=arguments.expression)
    show(stages, baseline)
    if not (arguments.compare or arguments.short):
        return
    # With few rounds, stages of nanoseconds took up to 60 % more with the same code.
    limit = 1.0 if arguments.short else 0.1
    if arguments.expression:
        baseline = {name: ratio for name, ratio in baseline.items() if name in stages}

    def again(names: list[str]) -> dict[str, float]:
        print(f"measured again: {', '.join(names)}", flush=True)
        return {name: each.ratio for name, each in measure(2 * rounds, names).items()}

    ratios = {name: each.ratio for name, each in stages.items()}
    verdict = compare(ratios, baseline, limit, again)
    print(told(verdict, limit))
    load = max(load, os.getloadavg()[0])
    if verdict.slower and (reason := excuse(stored_kind, machine.kind(), load)):
        print(reason)
        limit = BUSY_LIMIT if stored_kind == machine.kind() else math.inf
        slower = {name: more for name, more in verdict.slower.items() if more > limit}
        verdict = replace(verdict, slower=slower)
    sys.exit(not verdict.is_good)


if __name__ == "__main__":
    main()
