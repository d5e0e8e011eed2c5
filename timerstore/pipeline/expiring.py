"""Old runs go: of each day one stays for a while, then none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from timerstore.pipeline.following import FIRED
from timerstore.pipeline.resulttables import FIRED_LATENESS
from timerstore.pipeline.tablefiles import RUNS, TableFiles, read_results
from timerstore.timelog.files.oserrors import told_of
from timerstore.values.kinds import check_int, check_place
from timerstore.values.moments import moment

KEEP_DAYS: Final = 400
DAILY_AFTER_DAYS: Final = 7


def expire(
    out: str | os.PathLike[str],
    *,
    keep_days: int = KEEP_DAYS,
    daily_after_days: int = DAILY_AFTER_DAYS,
    now_ms: int | None = None,
) -> list[str]:
    """Remove old runs from result tables; return their names.

    A run of more than `keep_days` days ago goes. Of each day of more than `daily_after_days` ago
    only the run that began last stays, the one that later runs are compared with. What `follow`
    wrote goes by `keep_days`. `now_ms`: as of when; None: now. A run's row in `runs` goes first, so
    what is removed does not count any more. O(files).

    >>> timerstore.pipeline.expire("tables/", keep_days=100)
    []
    """
    place = check_place(out)
    keep_days = check_int(keep_days, "keep_days", 1, 1_000_000)
    daily_after_days = check_int(daily_after_days, "daily_after_days", 0, 1_000_000)
    today = datetime.now(UTC) if now_ms is None else moment(now_ms)
    first, daily = (
        f"{today - timedelta(days=days):%Y-%m-%d}" for days in (keep_days, daily_after_days)
    )
    gone = []
    with told_of(place):
        for day, run in _runs_of(place, first, daily):
            TableFiles(place, run, day).remove()
            gone.append(run)
        for table in (FIRED, FIRED_LATENESS.name):
            for folder in Path(place, table).glob("day=*"):
                if folder.name.removeprefix("day=") < first:
                    shutil.rmtree(folder)
        _remove_empty(place)
    return gone


def _runs_of(place: Path, first: str, daily: str) -> Iterator[tuple[str, str]]:
    """Yield the runs that go, with their days."""
    runs = read_results(place, RUNS, columns=["day", "run", "began"])
    rows = runs.sort_by([("began", "ascending")]).to_pylist()
    last = {row["day"]: row["run"] for row in rows}
    for row in rows:
        day, run = row["day"], row["run"]
        if day < first or (day < daily and run != last[day]):
            yield day, run


def _remove_empty(place: Path) -> None:
    """Remove folders of days and stores that nothing is left in."""
    for pattern in ("*/day=*/store=*", "*/day=*"):
        for folder in place.glob(pattern):
            if not any(folder.iterdir()):
                folder.rmdir()
