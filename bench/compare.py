"""timerstore beside SQLite, LMDB, the disk, row by row.

Rates are taken in interleaved rounds in one process; each figure is the median of its rounds. With
`--json FILE` each row is kept as soon as it is measured, beside those that the file has from other
runs; `--fill` then puts all of them into a page. With `--rows ''` it measures nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harness
import lateness
import rates
import space
from peers.queues import QUEUES, Played, play
from peers.timers import MissingError
from results import Row, short
from sizes import Ground, Sizes


def pending(ground: Ground) -> list[Row]:
    """Memory and opening time of many pending timers."""
    small, large = ground.sizes.pending
    with ground.path() as path:
        first = _child("pending", str(path / "small"), str(small))
        second = _child("pending", str(path / "large"), str(large))
        more = (second["private_bytes"] - first["private_bytes"]) / 1e6
        opened = [_child("open", str(path / "large")) for _ in range(3)]
    assert all(one["count"] == large for one in opened)
    open_s = statistics.median(one["open_s"] for one in opened)
    what = f"private memory, {short(large)} pending over {short(small)}"
    told = f"{more:+.1f} MB ({second['private_bytes'] / 1e6:.0f} MB in all, "
    told += f"{second['disk_bytes'] / 1e9:.1f} GB of files)"
    memory = Row(what, "+ ≤ 20 MB", told, more <= 20, figures=[first, second])
    what = f"opening {short(large)} pending timers, closed cleanly"
    told = f"{open_s:.2f} s (imports {opened[-1]['import_s']:.2f} s)"
    return [memory, Row(what, "≤ 1 s", told, open_s <= 1, figures=opened)]


def first(ground: Ground) -> list[Row]:
    """Time the first timer of a new process."""
    rows, rounds = [], range(ground.sizes.first_count)
    with ground.path() as path:
        cold, *runs = (
            _child("first", str(path / str(number)), cache=path / "cache")
            for number in (-1, *rounds)
        )
    warm = sorted(runs, key=lambda each: each["total_s"])[len(runs) // 2]
    for name, reach_s, of in (("kernels cached", 1.5, warm), ("cold cache", 12, cold)):
        parts = ", ".join(f"{k[:-2]} {v:.2f}" for k, v in of.items() if k != "total_s")
        told, reached = f"{of['total_s']:.2f} s ({parts})", of["total_s"] <= reach_s
        what = f"import, open, first put, fire, close, {name}"
        rows.append(Row(what, f"≤ {reach_s} s", told, reached, of))
    open_s = statistics.median(each["import_s"] + each["open_s"] for each in runs)
    what, told = "import and open, kernels cached", f"{open_s:.2f} s"
    return [*rows, Row(what, "≤ 0.4 s", told, open_s <= 0.4, figures=runs)]


def _child(*arguments: str, cache: Path | None = None) -> dict[str, Any]:
    more = {} if cache is None else {"NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, str(Path(__file__).with_name("child.py")), *arguments]
    done = subprocess.run(
        command, env=os.environ | more, stdout=subprocess.PIPE, check=True, text=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def jobs(ground: Ground) -> list[Row]:
    """Delayed jobs, one put each, beside huey with APScheduler."""
    s = ground.sizes
    burst = _play_jobs(ground, s.jobs, delay_ms=100, over_ms=0)
    # So long that all have put theirs before the first one is due.
    lead_ms = 3_000 + 4 * s.steady_jobs
    steady = _play_jobs(ground, s.steady_jobs, delay_ms=lead_ms, over_ms=s.steady_ms)
    peers = [each.per_second for name, each in burst.items() if name != rates.OURS]
    told = "; ".join(f"{name} {short(each.per_second)}/s" for name, each in burst.items())
    told += "".join(f"; {name} {rates.MISSING}" for name in QUEUES if name not in burst)
    reached = None
    if peers:
        ratio = burst[rates.OURS].per_second / max(peers)
        told, reached = f"{ratio:.3g} ×: {told}", ratio >= 20
    late = (f"{n} {each.median_ms:.1f} / {each.p99_ms:.1f} ms" for n, each in steady.items())
    what = f"{s.jobs:,} jobs, put one by one, each due 100 ms later"
    of = [{name: asdict(each) for name, each in played.items()} for played in (burst, steady)]
    each_s = round(1_000 * s.steady_jobs / s.steady_ms)
    late_what = f"lateness in the handler, median / p99, {each_s} jobs a second"
    return [
        Row(what, "≥ 20 × the better peer", told, reached, figures=of[0]),
        Row(late_what, "", "; ".join(late), figures=of[1]),
    ]


def _play_jobs(ground: Ground, count: int, *, delay_ms: int, over_ms: int) -> dict[str, Played]:
    played = {}
    for name in QUEUES:
        with ground.path() as path:
            try:
                played[name] = play(name, path, count, delay_ms=delay_ms, over_ms=over_ms)
            except MissingError as e:
                print(f"{name} is not played: {e}", flush=True)
    return played


ROWS: dict[str, Callable[[Ground], list[Row]]] = {
    each.__name__: each
    for each in (
        *(rates.put_many, rates.put_single, rates.put_group, rates.life, rates.objects),
        *(rates.levels, lateness.late_log, lateness.late_pull, lateness.late_clean, rates.burst),
        *(space.disk, space.month, space.year, space.rescheduled, space.speed),
        *(pending, first, rates.consumer, jobs),
    )
}

if __name__ == "__main__":
    harness.main("", __doc__, Sizes, ROWS, option="--rows")
