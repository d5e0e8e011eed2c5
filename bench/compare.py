"""timerstore beside SQLite, row by row; `--help` lists the options.

Rates are taken in interleaved rounds in one process: ours, SQLite, ours, SQLite, …; each figure is
the median of its rounds, the first one, which warms caches and compiles kernels, left out.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import consumer
import jobs
import lateness
import machine
import numpy as np
import ours
import report
from peer import SqliteTimers

FILL_BEGIN = "<!-- figures: begin -->"
FILL_END = "<!-- figures: end -->"


@dataclass
class Result:
    """One row of the table, measured."""

    row: str
    what: str
    reach: str
    stretch: str
    measured: str
    reached: bool | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sizes:
    """How much of each thing one round does."""

    many: int
    single: int
    life: int
    objects: int
    burst: int
    sqlite: int
    standing: int
    synced: int
    rounds: int
    lateness_s: float
    pending: tuple[int, int]
    first_count: int
    handled: int
    jobs: int
    steady_jobs: int
    steady_ms: int


FULL = Sizes(
    many=2_000_000,
    single=200_000,
    life=2_000_000,
    objects=500_000,
    burst=1_000_000,
    sqlite=50_000,
    standing=500_000,
    synced=300,
    rounds=5,
    lateness_s=15,
    pending=(1_000_000, 10_000_000),
    first_count=3,
    handled=500_000,
    jobs=10_000,
    steady_jobs=10_000,
    steady_ms=40_000,
)
QUICK = Sizes(
    many=500_000,
    single=50_000,
    life=500_000,
    objects=200_000,
    burst=300_000,
    sqlite=20_000,
    standing=50_000,
    synced=50,
    rounds=2,
    lateness_s=4,
    pending=(100_000, 1_000_000),
    first_count=1,
    handled=200_000,
    jobs=10_000,
    steady_jobs=2_000,
    steady_ms=8_000,
)


class Bench:
    """Measures rows."""

    def __init__(self, folder: Path, sizes: Sizes, warm_bytes: int) -> None:
        """Make stores below `folder`."""
        self.folder, self.sizes, self.warm_bytes = folder, sizes, warm_bytes
        self._bodies: list[bytes] = []

    def bodies(self, count: int) -> list[bytes]:
        """Return `count` bodies; the same objects each time."""
        if len(self._bodies) < count:
            self._bodies = ours.make_bodies(count)
        return self._bodies[:count]

    @contextmanager
    def _path(self) -> Iterator[Path]:
        path = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    # --- rates

    def rates(
        self,
        play: Callable[[Any, list[bytes]], ours.Rate],
        count: int,
        against: Callable[[SqliteTimers, int], None] | None,
        sqlite_count: int,
        *,
        durability: str = "process",
        synchronous: str = "NORMAL",
    ) -> dict[str, Any]:
        """Play interleaved rounds; return medians, the ratio, and bytes for each timer.

        In both stores `standing` other timers are pending all the while.
        """
        mine: list[ours.Rate] = []
        theirs: list[ours.Rate] = []
        with self._path() as path, ours.open_store(path / "ours", durability) as store:
            peer = SqliteTimers(path / "sqlite.db", synchronous=synchronous)
            standing = self.bodies(self.sizes.standing)
            ours.put_many(store, standing)
            peer.fill(_far_due_ms(len(standing)), standing)
            for _ in range(self.sizes.rounds + 1):
                machine.warm_memory(self.warm_bytes)
                mine.append(play(store, self.bodies(count)))
                if against is not None:
                    theirs.append(self._play_peer(peer, against, sqlite_count))
            peer.close()
        figures = {"per_second": _median(mine), "bytes_each": round(mine[-1].bytes_each)}
        figures["rounds"] = [round(rate.per_second) for rate in mine]
        if theirs:
            figures["sqlite_per_second"] = _median(theirs)
            figures["sqlite_bytes_each"] = round(theirs[-1].bytes_each)
            figures["ratio"] = round(figures["per_second"] / figures["sqlite_per_second"], 1)
        return figures

    def _play_peer(
        self, peer: SqliteTimers, against: Callable[[SqliteTimers, int], None], count: int
    ) -> ours.Rate:
        written, start = machine.written_bytes(), time.perf_counter()
        against(peer, count)
        elapsed = time.perf_counter() - start
        return ours.Rate(count / elapsed, (machine.written_bytes() - written) / count)

    def sqlite_many(self, peer: SqliteTimers, count: int) -> None:
        """Insert `count` rows in batches."""
        peer.put_many(_far_due_ms(count), self.bodies(count))

    def sqlite_single(self, peer: SqliteTimers, count: int) -> None:
        """Insert `count` rows, a transaction each."""
        for due_ms, body in zip(_far_due_ms(count), self.bodies(count), strict=True):
            peer.put_one(due_ms, body)

    def sqlite_life(self, peer: SqliteTimers, count: int) -> None:
        """Insert `count` rows that are due, and take them all."""
        now_ms = int(time.time() * 1_000)
        peer.put_many([now_ms - i * 7_919 % 100 for i in range(count)], self.bodies(count))
        got = 0
        while rows := peer.take_due(now_ms):
            got += len(rows)
        assert got == count

    # --- rows

    def put_many(self) -> list[Result]:
        """`put_many` beside batched inserts."""
        s = self.sizes
        f = self.rates(ours.put_many, s.many, self.sqlite_many, s.sqlite)
        what = "`put_many` from a list of bytes"
        rows = [_rate("put_many", what, f, 40, "6 M/s")]
        f = self.rates(
            ours.put_many,
            s.many,
            self.sqlite_many,
            s.sqlite,
            durability="group",
            synchronous="FULL",
        )
        return [*rows, _rate("put_many", what + ", `group` beside `FULL`", f)]

    def put_single(self) -> list[Result]:
        """`put` beside single inserts."""
        s = self.sizes
        f = self.rates(ours.put_single, s.single, self.sqlite_single, s.sqlite)
        what = "single `put` in a loop"
        rows = [_rate("put", what, f, 25, "1 M/s")]
        f = self.rates(
            ours.put_single,
            s.synced,
            self.sqlite_single,
            s.synced,
            durability="group",
            synchronous="FULL",
        )
        return [*rows, _rate("put", what + ", `group` beside `FULL`", f)]

    def life(self) -> list[Result]:
        """Whole lives by columns."""
        s = self.sizes
        f = self.rates(ours.whole_life, s.life, self.sqlite_life, s.sqlite)
        what = "whole life, pulled by columns"
        rows = [_rate("life", what, f, 70, "4 M/s")]
        f = self.rates(
            ours.whole_life,
            s.life,
            self.sqlite_life,
            s.sqlite,
            durability="group",
            synchronous="FULL",
        )
        return [*rows, _rate("life", what + ", `group` beside `FULL`", f)]

    def objects(self) -> list[Result]:
        """Whole lives, an object each."""
        s = self.sizes
        f = self.rates(ours.whole_life_objects, s.objects, self.sqlite_life, s.sqlite)
        what = "whole life through `for d in consume()` with `ack`"
        return [_rate("objects", what, f, 20, "1.5 M/s")]

    def levels(self) -> list[Result]:
        """Whole lives through a delay level, beside the same through the wheel."""
        rates: dict[bool, list[ours.Rate]] = {True: [], False: []}
        with self._path() as path, ours.open_store(path, "process") as store:
            ours.put_many(store, self.bodies(self.sizes.standing))
            for _ in range(self.sizes.rounds + 1):
                for level, played in rates.items():
                    machine.warm_memory(self.warm_bytes)
                    bodies = self.bodies(self.sizes.life)
                    played.append(ours.whole_life_waiting(store, bodies, level=level))
        through, wheel = _median(rates[True]), _median(rates[False])
        sizes = [round(rates[level][-1].bytes_each) for level in (True, False)]
        figures = {"per_second": through, "wheel_per_second": wheel, "bytes_each": sizes}
        measured = (
            f"{through / wheel:.2f} ×: {_short(through)}/s with {sizes[0]} bytes each, "
            f"the wheel's {_short(wheel)}/s with {sizes[1]}"
        )
        what = f"whole life through a delay level of {ours.WAIT_MS} ms, beside the wheel's"
        return [Result("levels", what, "≥ 0.5 ×", "", measured, through >= wheel / 2, figures)]

    def late_log(self) -> list[Result]:
        """Lateness into the log."""
        late = self._lateness(busy=True, at_pull=False)
        what = "lateness into the log, 50,000 a second, beside a busy Python thread"
        return [_late("late_log", what, late, 2, "p99 ≤ 1 ms")]

    def late_pull(self) -> list[Result]:
        """Lateness when `pull` returns."""
        late = self._lateness(busy=False, at_pull=True)
        what = "lateness when `pull` returns, 50,000 a second"
        return [_late("late_pull", what, late, 5, "p99 ≤ 2 ms")]

    def _lateness(self, *, busy: bool, at_pull: bool) -> lateness.Lateness:
        machine.warm_memory(self.warm_bytes)
        with self._path() as path, ours.open_store(path, "process") as store:
            ours.whole_life(store, self.bodies(1_000))  # kernels are compiled
            return lateness.measure(
                store,
                per_second=50_000,
                duration_s=self.sizes.lateness_s,
                busy=busy,
                at_pull=at_pull,
            )

    def burst(self) -> list[Result]:
        """Measure a million timers in one millisecond beside the same, spread out."""
        count = self.sizes.burst
        rates: dict[int, list[ours.Rate]] = {1: [], ours.SPREAD_MS: []}
        with self._path() as path, ours.open_store(path, "process") as store:
            ours.whole_life(store, self.bodies(1_000))  # kernels are compiled
            for _ in range(max(1, self.sizes.rounds // 2)):
                for spread_ms, played in rates.items():
                    machine.warm_memory(self.warm_bytes)
                    played.append(ours.burst(store, self.bodies(count), spread_ms))
        one, spread = (statistics.median(r.per_second for r in rates[k]) for k in rates)
        figures = {"per_second": round(one), "spread_per_second": round(spread)}
        measured = f"{_short(one)}/s, {one / spread:.2f} × the spread-out {_short(spread)}/s"
        what = f"{_short(count)} timers in the same millisecond, beside over {ours.SPREAD_MS} ms"
        return [Result("burst", what, "≥ 0.5 ×", "", measured, one >= spread / 2, figures)]

    def pending(self) -> list[Result]:
        """Memory and opening time of many pending timers."""
        small, large = self.sizes.pending
        with self._path() as path:
            first = _child("pending", str(path / "small"), str(small))
            shutil.rmtree(path / "small")
            second = _child("pending", str(path / "large"), str(large))
            more = (second["private_bytes"] - first["private_bytes"]) / 1e6
            opened = [_child("open", str(path / "large")) for _ in range(3)]
        assert all(one["count"] == large for one in opened)
        open_s = statistics.median(one["open_s"] for one in opened)
        memory = Result(
            "pending",
            f"private memory, {_short(large)} pending over {_short(small)}",
            "+ ≤ 20 MB",
            "",
            f"{more:+.1f} MB ({second['private_bytes'] / 1e6:.0f} MB in all, "
            f"{second['disk_bytes'] / 1e9:.1f} GB of files)",
            more <= 20,
            {"more_mb": more, "small": first, "large": second},
        )
        opening = Result(
            "pending",
            f"opening {_short(large)} pending timers, closed cleanly",
            "≤ 1 s",
            "",
            f"{open_s:.2f} s (imports {opened[-1]['import_s']:.2f} s)",
            open_s <= 1,
            {"open_s": open_s, "runs": opened},
        )
        return [memory, opening]

    def first(self) -> list[Result]:
        """Time the first timer of a new process."""
        what = "import, open, first put, fire, close"
        results = []
        with self._path() as path:
            cold = _child("first", str(path / "cold"), cache=path / "cache")
            runs = [
                _child("first", str(path / str(i)), cache=path / "cache")
                for i in range(self.sizes.first_count)
            ]
        for name, reach_s, total_s, figures in (
            ("kernels cached", 1.5, statistics.median(r["total_s"] for r in runs), runs[-1]),
            ("cold cache", 20, cold["total_s"], cold),
        ):
            parts = ", ".join(f"{k[:-2]} {v:.2f}" for k, v in figures.items() if k != "total_s")
            measured = f"{total_s:.2f} s ({parts})"
            reach, reached = f"≤ {reach_s} s", total_s <= reach_s
            results.append(
                Result("first", f"{what}, {name}", reach, "", measured, reached, figures)
            )
        return results

    def consumer(self) -> list[Result]:
        """Messages through empty handlers of the concurrent consumer."""
        results = []
        with self._path() as path, ours.open_store(path, "process") as store:
            bodies = self.bodies(self.sizes.handled)
            for batch_count, reach in ((32, 100_000), (1, 40_000)):
                rates = [
                    consumer.handled_per_second(store, bodies, batch_count, self.warm_bytes)
                    for _ in range(self.sizes.rounds + 1)
                ][1:]
                rate = statistics.median(rates)
                what = f"`Consumer`, empty handlers, {consumer.THREADS} threads, "
                what += f"lists of {batch_count}" if batch_count > 1 else "one by one"
                results.append(
                    Result(
                        "consumer",
                        what,
                        f"≥ {reach:,}/s",
                        "",
                        f"{rate:,.0f}/s",
                        rate >= reach,
                        {"per_second": rates},
                    )
                )
        return results

    def jobs(self) -> list[Result]:
        """Delayed jobs, one put each, beside huey with APScheduler."""
        s = self.sizes
        burst = self._play_jobs(s.jobs, delay_ms=100, over_ms=0)
        # So long that all have put theirs before the first one is due.
        lead_ms = 3_000 + 4 * s.steady_jobs
        steady = self._play_jobs(s.steady_jobs, delay_ms=lead_ms, over_ms=s.steady_ms)
        rates = {name: played.per_second for name, played in burst.items()}
        peers = [rate for name, rate in rates.items() if name != "Ours"]
        ratio = rates["Ours"] / max(peers) if peers else None
        late = {n: f"{p.median_ms:.1f} / {p.p99_ms:.1f} ms" for n, p in steady.items()}
        told = "; ".join(f"{name} {_short(rate)}/s" for name, rate in rates.items())
        if ratio is None:
            told += f"; huey, APScheduler {jobs.MISSING}"
        else:
            told = f"{ratio:.3g} ×: {told}"
        figures = {"burst": {n: asdict(p) for n, p in burst.items()}}
        figures["steady"] = {n: asdict(p) for n, p in steady.items()}
        each = round(1_000 * s.steady_jobs / s.steady_ms)
        return [
            Result(
                "jobs",
                f"{s.jobs:,} jobs, put one by one, each due 100 ms later",
                "≥ 20 × the better peer",
                "",
                told,
                None if ratio is None else ratio >= 20,
                figures,
            ),
            Result(
                "jobs",
                f"lateness in the handler, median / p99, {each} jobs a second",
                "",
                "",
                "; ".join(f"{name} {text}" for name, text in late.items()),
                None,
                figures,
            ),
        ]

    def _play_jobs(self, count: int, *, delay_ms: int, over_ms: int) -> dict[str, jobs.Played]:
        played = {}
        for runner in (jobs.Ours, jobs.Huey, jobs.ApScheduler):
            with self._path() as path:
                try:
                    played[runner.__name__] = jobs.play(
                        runner, path / "jobs", count, delay_ms=delay_ms, over_ms=over_ms
                    )
                except ModuleNotFoundError as e:
                    print(f"{runner.__name__} needs {e.name}; {jobs.MISSING}", flush=True)
        return played


ROWS = ("put_many", "put_single", "life", "objects", "levels", "late_log", "late_pull", "burst")
ROWS += ("pending", "first", "consumer", "jobs")


def _far_due_ms(count: int) -> list[int]:
    """Return due times at random milliseconds of the hour after the next."""
    start_ms = int(time.time() * 1_000) + ours.FAR_MS
    return (start_ms + np.random.randint(0, ours.FAR_MS, count)).tolist()


def _median(rates: list[ours.Rate]) -> int:
    """Return the median rate, the first round left out."""
    return round(statistics.median(rate.per_second for rate in rates[1:]))


def _short(number: float) -> str:
    if number >= 1e6:
        return f"{number / 1e6:.3g} M"
    return f"{number / 1e3:.3g} k" if number >= 1e4 else f"{number:,.0f}"


def _rate(
    row: str, what: str, f: dict[str, Any], reach: int | None = None, stretch: str = ""
) -> Result:
    measured = (
        f"{f['ratio']:.3g} ×: {_short(f['per_second'])}/s with {f['bytes_each']} bytes each, "
        f"SQLite {_short(f['sqlite_per_second'])}/s with {f['sqlite_bytes_each']}"
    )
    reached = None if reach is None else f["ratio"] >= reach
    return Result(row, what, f"≥ {reach} ×" if reach else "", stretch, measured, reached, f)


def _late(row: str, what: str, late: lateness.Lateness, p99_ms: float, stretch: str) -> Result:
    measured = f"median {late.median:.2f}, p99 {late.p99:.2f}, max {late.maximum:.1f} ms"
    reached = late.median <= 1 and late.p99 <= p99_ms
    reach = f"median ≤ 1 ms, p99 ≤ {p99_ms} ms"
    return Result(row, what, reach, stretch, measured, reached, asdict(late))


def _child(*arguments: str, cache: Path | None = None) -> dict[str, Any]:
    """Run child.py and return what it prints."""
    environment = dict(os.environ)
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    script = Path(__file__).with_name("child.py")
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


# --- showing


def markdown(results: list[Result], header: str) -> str:
    """Return the results as a Markdown table."""
    lines = [header, "", "| what | reach | stretch | measured | |", "|---|---|---|---|---|"]
    for r in results:
        mark = {True: "reached", False: "missed", None: ""}[r.reached]
        lines.append(f"| {r.what} | {r.reach} | {r.stretch} | {r.measured} | {mark} |")
    return "\n".join(lines) + "\n"


def show(result: Result) -> None:
    """Print one row as it is measured."""
    mark = {True: "reached", False: "MISSED", None: ""}[result.reached]
    print(f"{result.what}\n    {result.measured}\n    {result.reach} {mark}", flush=True)


def main() -> None:
    """Measure the rows that were asked for."""
    parser = report.new_parser(
        "./run bench", __doc__, "small sizes, two rounds", "--rows", tuple(ROWS)
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    arguments = parser.parse_args()
    names = arguments.rows.split(",")
    if unknown := set(names) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; use {', '.join(ROWS)}")
    sizes = QUICK if arguments.quick else FULL
    if arguments.rounds:
        sizes = Sizes(**{**asdict(sizes), "rounds": arguments.rounds})
    header = f"{machine.describe()}; {time.strftime('%Y-%m-%d')}."
    print(header)
    results: list[Result] = []
    with machine.scratch_folder(arguments.folder) as folder:
        bench = Bench(folder, sizes, int(arguments.warm_gib * (1 << 30)))
        for name in names:
            for result in getattr(bench, name)():
                results.append(result)
                show(result)
    if arguments.json:
        document = {"machine": header, "sizes": asdict(sizes), "rows": list(map(asdict, results))}
        arguments.json.write_text(json.dumps(document, indent=1, default=float) + "\n")
    table = markdown(results, header)
    if arguments.markdown:
        print(table)
    if arguments.fill:
        report.fill(arguments.fill, table, FILL_BEGIN, FILL_END)


if __name__ == "__main__":
    main()
