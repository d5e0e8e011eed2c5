"""timerstore beside SQLite, LMDB, the disk, row by row.

Rates are taken in interleaved rounds in one process: ours, SQLite, LMDB, ours, SQLite, …; each
figure is the median of its rounds, the first one, which warms caches and compiles kernels, left
out. With `--json FILE` each row is kept as soon as it is measured, beside those that the file has
from other runs; `--fill` then puts all of them into a page. With `--rows ''` it measures nothing.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import beside
import cleaned
import consumer
import lateness
import limit
import machine
import ours
import report
import space
from bare import BareFile
from beside import short as _short
from jobs import MISSING, RUNNERS, Played, play
from limit import Limited
from report import Row
from sizes import FULL, QUICK, Sizes

FILL_BEGIN = "<!-- figures: begin -->"
FILL_END = "<!-- figures: end -->"


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

    def rates(
        self,
        play: Callable[[Any, list[bytes]], ours.Rate],
        count: int,
        against: Callable[[beside.Timers, list[bytes]], None],
        peers: Sequence[beside.Peer],
        *,
        durability: str = "process",
        limited: bool = False,
    ) -> dict[str, Any]:
        """Play interleaved rounds, see `beside.Rounds`; `limited`: beside the disk, too."""
        s = self.sizes
        rounds = beside.Rounds(self.bodies(s.standing), s.rounds, self.warm_bytes)
        with self._path() as path:
            if not limited:
                return rounds.play(path, play, self.bodies(count), against, peers, durability)
            disk = Limited(path / "bare", play, durability)
            figures = rounds.play(path, disk.play, self.bodies(count), against, peers, durability)
        return figures | {"limit": disk.figures()}

    # --- rows

    def put_many(self) -> list[Row]:
        """`put_many` beside batched inserts."""
        s, what = self.sizes, "`put_many` from a list of bytes"
        rows = []
        for durability, peers in (
            ("process", [beside.sqlite(s.sqlite, 22), beside.lmdb(s.lmdb)]),
            ("group", self._synced_peers()),
        ):
            f = self.rates(ours.put_many, s.many, beside.put_many, peers, durability=durability)
            rows.append(_rate(what, durability, f, peers, "6 M/s"))
        return rows

    def put_single(self) -> list[Row]:
        """`put` beside single inserts."""
        peers = [beside.sqlite(self.sizes.sqlite, 25)]
        f = self.rates(ours.put_single, self.sizes.single, beside.put_single, peers)
        return [_rate("single `put` in a loop", "process", f, peers, "1 M/s")]

    def put_group(self) -> list[Row]:
        """`put` that waits for the disk, beside SQLite, beside the disk."""
        s = self.sizes
        peers = [beside.sqlite(s.synced, synchronous="FULL")]
        bare: list[float] = []

        with self._path() as path:
            file = BareFile(path / "bare")

            def play(store: Any, bodies: list[bytes]) -> ours.Rate:
                bare.append(file.per_second(s.synced))
                return ours.put_single(store, bodies)

            f = self.rates(play, s.synced, beside.put_single, peers, durability="group")
            file.close()
        f["bare_per_second"] = rate = statistics.median(bare[1:])
        measured = beside.measured(f, peers)
        measured += f"; {f['per_second'] / rate:.2f} × a bare write with `fdatasync`: {rate:,.0f}/s"
        what = "single `put` in a loop, one thread, `group`, SQLite `FULL`"
        reached = f["per_second"] >= GROUP_REACH
        reach = f"≥ 1.5 × 9,900/s ({GROUP_REACH:,})"
        return [Row(what, reach, "", measured, reached, f)]

    def life(self) -> list[Row]:
        """Whole lives by columns."""
        s, what = self.sizes, "whole life, pulled by columns"
        rows = []
        for durability, peers in (
            ("process", [beside.sqlite(s.sqlite, 20), beside.lmdb(s.lmdb, 3)]),
            ("group", self._synced_peers()),
        ):
            f = self.rates(
                ours.whole_life,
                s.life,
                beside.whole_life,
                peers,
                durability=durability,
                limited=True,
            )
            rows.append(_rate(what, durability, f, peers, "4 M/s"))
        return rows

    def _synced_peers(self) -> list[beside.Peer]:
        sqlite = beside.sqlite(self.sizes.sqlite, synchronous="FULL")
        return [sqlite, beside.lmdb(self.sizes.lmdb, synced=True)]

    def objects(self) -> list[Row]:
        """Whole lives, an object each."""
        peers = [beside.sqlite(self.sizes.sqlite, 20)]
        count = self.sizes.objects
        f = self.rates(ours.whole_life_objects, count, beside.whole_life, peers, limited=True)
        what = "whole life through `for d in consume()` with `ack`"
        return [_rate(what, "process", f, peers, "1.5 M/s")]

    def levels(self) -> list[Row]:
        """Whole lives through a delay level, beside the same through the wheel."""
        rates: dict[bool, list[ours.Rate]] = {True: [], False: []}
        with self._path() as path, ours.open_store(path, "process") as store:
            ours.put_many(store, self.bodies(self.sizes.standing))
            disk = Limited(path / "bare", partial(ours.whole_life_waiting, level=True), "process")
            for _ in range(self.sizes.rounds + 1):
                machine.warm_memory(self.warm_bytes)
                bodies = self.bodies(self.sizes.life)
                rates[True].append(disk.play(store, bodies))
                machine.warm_memory(self.warm_bytes)
                rates[False].append(ours.whole_life_waiting(store, bodies, level=False))
        through, wheel = beside.median(rates[True]), beside.median(rates[False])
        sizes = [round(rates[level][-1].bytes_each) for level in (True, False)]
        figures = {"per_second": through, "wheel_per_second": wheel, "bytes_each": sizes}
        figures["limit"] = disk.figures()
        measured = (
            f"{through / wheel:.2f} ×: {_short(through)}/s, the wheel's {_short(wheel)}/s"
            + limit.words(disk.figures())
        )
        what = f"whole life through a delay level of {ours.WAIT_MS} ms, beside the wheel's"
        return [Row(what, "≥ 0.5 ×", "", measured, through >= wheel / 2, figures)]

    def late_log(self) -> list[Row]:
        """Lateness into the log."""
        late = self._lateness(busy=True, at_pull=False)
        what = "lateness into the log, 50,000 a second, beside a busy Python thread"
        return [_late(what, late, 2, "p99 ≤ 1 ms")]

    def late_pull(self) -> list[Row]:
        """Lateness when `pull` returns."""
        late = self._lateness(busy=False, at_pull=True)
        what = "lateness when `pull` returns, 50,000 a second"
        return [_late(what, late, 5, "p99 ≤ 2 ms")]

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

    def late_clean(self) -> list[Row]:
        """Lateness while cleaning copies all the while, beside the same without cleaning."""
        rows = []
        for at_pull, where in ((False, "into the log"), (True, "when `pull` returns")):
            played: dict[bool, list[cleaned.Played]] = {True: [], False: []}
            for _ in range(max(1, self.sizes.rounds // 2)):
                for cleaning, rounds in played.items():
                    machine.warm_memory(self.warm_bytes)
                    with self._path() as path:
                        duration_s = self.sizes.lateness_s
                        one = cleaned.play(path, duration_s, cleaning=cleaning, at_pull=at_pull)
                        rounds.append(one)
            rows.append(_late_clean(where, played))
        return rows

    def disk(self) -> list[Row]:
        """Disk beside timers that are far ahead."""
        far, short = self.sizes.disk
        with self._path() as path:
            took = space.beside_far(path / "store", far, short, 10_000)
        what = f"{_short(short)} short timers beside {_short(far)} due within 30 days"
        return _took(what, "300 MB", took, 0.05)

    def month(self) -> list[Row]:
        """Disk if some timers in each hundred are far ahead, with files small and of full size."""
        scale, days, step_s = self.sizes.month
        small = self._month(f"1/{scale} of 1,000 a second", scale, 1_000 / scale, days, step_s)
        per_second, days, step_s = self.sizes.full_month
        full = self._month(
            f"{per_second} a second, files of full size", 1, per_second, days, step_s
        )
        return [*small, *full]

    def _month(self, rate: str, scale: int, per_second: float, days: int, step_s: int) -> list[Row]:
        with self._path() as path:
            took = space.month(
                path / "store", scale=scale, per_second=per_second, days=days, step_s=step_s
            )
        what = f"one timer in a hundred within {days} days, the rest within a minute, {days} days"
        what += f" of manual time, {rate} ({_short(took.put_count)} in all)"
        return _took(what, "300 MB" + (f" / {scale}" if scale > 1 else ""), took, 0.7)

    def year(self) -> list[Row]:
        """Disk while timers hop through a year."""
        with self._path() as path:
            took = space.year(path / "store", self.sizes.year)
        return _took(f"{_short(took.put_count)} due within a year", "300 MB", took, 1)

    def rescheduled(self) -> list[Row]:
        """Disk while each timer gets another due time again and again."""
        count, times = self.sizes.rescheduled
        with self._path() as path:
            took = space.rescheduled(path / "store", count, times)
        what = f"{_short(count)} due within 30 days, each rescheduled {times} times"
        return _took(what, "300 MB", took, 0.05)

    def speed(self) -> list[Row]:
        """Disk while many timers are put, fire and are consumed."""
        far, short = self.sizes.speed
        with self._path() as path:
            most_bytes, per_second = space.at_speed(path / "store", far, short)
        what = f"disk: {_short(short)} timers due within {space.SOON_MS} ms, "
        what += f"{_short(space.FAST_PER_SECOND)} a second, beside {_short(far)} due within 30 days"
        measured = f"{most_bytes / 1e6:,.1f} MB at most, with {_short(per_second)} fired a second"
        reach = f"≤ {space.SPEED_BYTES / 1e6:,.0f} MB at any time"
        is_small = most_bytes <= space.SPEED_BYTES
        return [Row(what, reach, "", measured, is_small, {"most_bytes": most_bytes})]

    def burst(self) -> list[Row]:
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
        return [Row(what, "≥ 0.5 ×", "", measured, one >= spread / 2, figures)]

    def pending(self) -> list[Row]:
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
        memory = Row(
            f"private memory, {_short(large)} pending over {_short(small)}",
            "+ ≤ 20 MB",
            "",
            f"{more:+.1f} MB ({second['private_bytes'] / 1e6:.0f} MB in all, "
            f"{second['disk_bytes'] / 1e9:.1f} GB of files)",
            more <= 20,
            {"more_mb": more, "small": first, "large": second},
        )
        opening = Row(
            f"opening {_short(large)} pending timers, closed cleanly",
            "≤ 1 s",
            "",
            f"{open_s:.2f} s (imports {opened[-1]['import_s']:.2f} s)",
            open_s <= 1,
            {"open_s": open_s, "runs": opened},
        )
        return [memory, opening]

    def first(self) -> list[Row]:
        """Time the first timer of a new process."""
        what = "import, open, first put, fire, close"
        results = []
        with self._path() as path:
            cold = _child("first", str(path / "cold"), cache=path / "cache")
            runs = [
                _child("first", str(path / str(i)), cache=path / "cache")
                for i in range(self.sizes.first_count)
            ]
        warm = sorted(runs, key=lambda each: each["total_s"])[len(runs) // 2]
        for name, reach_s, stretch_s, figures in (
            ("kernels cached", 1.5, None, warm),
            ("cold cache", 12, 6, cold),
        ):
            total_s = figures["total_s"]
            parts = ", ".join(f"{k[:-2]} {v:.2f}" for k, v in figures.items() if k != "total_s")
            measured = f"{total_s:.2f} s ({parts})"
            reach, reached = f"≤ {reach_s} s", total_s <= reach_s
            stretch = f"≤ {stretch_s} s" if stretch_s else ""
            results.append(Row(f"{what}, {name}", reach, stretch, measured, reached, figures))
        open_s = statistics.median(each["import_s"] + each["open_s"] for each in runs)
        what, reached, shown = "import and open, kernels cached", open_s <= 0.4, f"{open_s:.2f} s"
        results.append(Row(what, "≤ 0.4 s", "", shown, reached, {"runs": runs}))
        return results

    def consumer(self) -> list[Row]:
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
                    Row(
                        what,
                        f"≥ {reach:,}/s",
                        "",
                        f"{rate:,.0f}/s",
                        rate >= reach,
                        {"per_second": rates},
                    )
                )
        return results

    def jobs(self) -> list[Row]:
        """Delayed jobs, one put each, beside huey with APScheduler."""
        s = self.sizes
        burst = self._play_jobs(s.jobs, delay_ms=100, over_ms=0)
        # So long that all have put theirs before the first one is due.
        lead_ms = 3_000 + 4 * s.steady_jobs
        steady = self._play_jobs(s.steady_jobs, delay_ms=lead_ms, over_ms=s.steady_ms)
        rates = {name: played.per_second for name, played in burst.items()}
        peers = [rate for name, rate in rates.items() if name != "timerstore"]
        ratio = rates["timerstore"] / max(peers) if peers else None
        late = {n: f"{p.median_ms:.1f} / {p.p99_ms:.1f} ms" for n, p in steady.items()}
        told = "; ".join(f"{name} {_short(rate)}/s" for name, rate in rates.items())
        if ratio is None:
            told += f"; huey, APScheduler {MISSING}"
        else:
            told = f"{ratio:.3g} ×: {told}"
        figures = {"burst": {n: asdict(p) for n, p in burst.items()}}
        figures["steady"] = {n: asdict(p) for n, p in steady.items()}
        each = round(1_000 * s.steady_jobs / s.steady_ms)
        return [
            Row(
                f"{s.jobs:,} jobs, put one by one, each due 100 ms later",
                "≥ 20 × the better peer",
                "",
                told,
                None if ratio is None else ratio >= 20,
                figures,
            ),
            Row(
                f"lateness in the handler, median / p99, {each} jobs a second",
                "",
                "",
                "; ".join(f"{name} {text}" for name, text in late.items()),
                None,
                figures,
            ),
        ]

    def _play_jobs(self, count: int, *, delay_ms: int, over_ms: int) -> dict[str, Played]:
        played = {}
        for name, runner in RUNNERS.items():
            with self._path() as path:
                try:
                    played[name] = play(
                        runner, path / "jobs", count, delay_ms=delay_ms, over_ms=over_ms
                    )
                except ModuleNotFoundError as e:
                    print(f"{name} needs {e.name}; {MISSING}", flush=True)
        return played


ROWS = (
    *("put_many", "put_single", "put_group", "life", "objects", "levels", "late_log", "late_pull"),
    *("late_clean", "burst", "disk", "month", "year", "rescheduled", "speed", "pending", "first"),
    *("consumer", "jobs"),
)

GROUP_REACH = 14_850
"""Single puts a second with `group`: half more than when blocks were allocated on the way."""


def _rate(
    what: str,
    durability: str,
    f: dict[str, Any],
    peers: Sequence[beside.Peer],
    stretch: str,
) -> Row:
    reach = beside.reach(peers)
    if durability == "group":
        what, stretch = what + ", `group` beside peers that fsync each transaction", ""
    measured = beside.measured(f, peers) + limit.words(f.get("limit"))
    return Row(what, reach, stretch, measured, beside.reached(f, peers), f)


def _took(what: str, allowed: str, took: space.Space, copied_max: float) -> list[Row]:
    """Return two rows: what a store took at most, what cleaning copied."""
    figures = asdict(took)
    disk, copied = took.told()
    reach = f"≤ {space.FACTOR} × pending + {allowed}"
    copied_what = "copied by cleaning for each byte put"
    is_little = took.copied_share <= copied_max
    return [
        Row(f"disk: {what}", reach, "", disk, took.is_small, figures),
        Row(copied_what, f"≤ {copied_max}", "", copied, is_little, figures),
    ]


def _late_clean(where: str, played: dict[bool, list[cleaned.Played]]) -> Row:
    """Return the row of rounds with cleaning, by True, beside those without."""
    words, p99 = {}, {}
    for cleaning, rounds in played.items():
        late = [each.late for each in rounds]
        p99[cleaning] = statistics.median(each.p99 for each in late)
        median = statistics.median(each.median for each in late)
        most = max(each.maximum for each in late)
        words[cleaning] = f"median {median:.2f}, p99 {p99[cleaning]:.2f}, max {most:.1f} ms"
    copied = statistics.median(each.copied_per_second for each in played[True])
    measured = f"{words[True]}, copying {copied / 1e6:.1f} MB/s; without {words[False]}"
    figures = {str(name): [asdict(each) for each in rounds] for name, rounds in played.items()}
    what = f"lateness {where}, 50,000 a second, while cleaning copies all the while"
    reach, reached = "p99 as without, to 1 ms", copied > 0 and p99[True] <= p99[False] + 1
    return Row(what, reach, "", measured, reached, figures)


def _late(what: str, late: lateness.Lateness, p99_ms: float, stretch: str) -> Row:
    measured = f"median {late.median:.2f}, p99 {late.p99:.2f}, max {late.maximum:.1f} ms"
    reached = late.median <= 1 and late.p99 <= p99_ms
    reach = f"median ≤ 1 ms, p99 ≤ {p99_ms} ms"
    return Row(what, reach, stretch, measured, reached, asdict(late))


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


def main() -> None:
    """Measure the rows that were asked for."""
    parser = report.new_parser(
        "./run bench", __doc__, "small sizes, two rounds", "--rows", ROWS, adds=True
    )
    report.add_warm(parser)
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    arguments = parser.parse_args()
    names = report.chosen(parser, arguments.rows, ROWS)
    report.check_files(parser, arguments, (FILL_BEGIN, FILL_END), report.kept)
    found = report.kept(arguments.json) if arguments.json else {}
    if not (names or found):
        parser.error("--rows names nothing, and there is no file of --json")
    report.check_whole(parser, arguments, [*names, *found], ROWS)
    sizes = report.sizes_of(arguments, FULL, QUICK)
    print(machine.headline())
    with machine.scratch_folder(arguments.folder) as folder:
        bench = Bench(folder, sizes, int(arguments.warm_gib * (1 << 30)))
        for name in names:
            load = os.getloadavg()[0]
            day = f"{machine.describe()}; {time.strftime('%Y-%m-%d')}"
            rows = getattr(bench, name)()
            report.tell(rows)
            found[name] = report.Part(day, load, rows)
            if arguments.json:
                report.keep(arguments.json, found)
    table = report.table([found[name] for name in ROWS if name in found])
    if arguments.markdown:
        print(table)
    if arguments.fill:
        report.fill(arguments.fill, table, FILL_BEGIN, FILL_END)


if __name__ == "__main__":
    main()
