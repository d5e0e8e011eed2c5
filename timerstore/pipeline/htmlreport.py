"""A report of one run: one HTML page, with nothing beside it; what it shows of the tables."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from timerstore.audit.rule import OK, VERDICTS
from timerstore.errors import InvalidArgumentError
from timerstore.jit.record import Words
from timerstore.pipeline import charts
from timerstore.pipeline.tablefiles import read_results
from timerstore.pipeline.thresholds import DEFAULTS
from timerstore.timelog.files.oserrors import told_of
from timerstore.values.amounts import DAY_MS, HOUR_MS, MINUTE_MS, counted, moment, rough_span
from timerstore.values.kinds import check_path

TOPICS_SHOWN: Final = 6
OTHERS: Final = "others"
DAYS: Final = 7
"""Columns of a turn of the wheel, as it is drawn: days, in a wheel of seven of them."""
ROWS: Final = 24
BARS_MAX: Final = 100
_STEPS_MS: Final = (
    *(count * MINUTE_MS for count in (1, 5, 15)),
    *(count * HOUR_MS for count in (1, 6)),
    *(count * DAY_MS for count in (1, 7, 30, 365, 3_650)),
)
_INDEXES: Final = ("drift_due", "drift_lateness", "drift_load")
"""Rules whose value is an index of drift."""
LATE_QUANTILES: Final = {"p50": 0.5, "p99": 0.99, "max": 1.0}
FAR_SHARE: Final = 0.98
"""Which part of the timers a time axis must show if the others lie far behind."""
_FAR: Final = 4


@dataclass
class ShownStore:
    """One store of a report."""

    row: dict[str, Any]
    """Its row of `stores`."""
    findings: list[dict[str, Any]] = field(default_factory=list)
    """All of this run, the worst first."""
    pending: list[tuple[int, float]] = field(default_factory=list)
    """How many were pending in each run, by when it was."""
    drift: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """The values of `_INDEXES` in each run."""
    late: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Quantiles of lateness by day."""
    due: dict[int, Counter[str]] = field(default_factory=dict)
    """Timers by topic that fall due in the step of time that begins then."""
    topics: list[str] = field(default_factory=list)
    step_ms: int = DAY_MS
    beyond: int = 0
    """Timers that are due behind what is drawn."""
    wheel: Words | None = None
    """Units of both turns of the wheel from where it stands on: int64[2 * DAYS, ROWS]."""
    cell_ms: int = HOUR_MS

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.row["store"])

    @property
    def bad(self) -> list[dict[str, Any]]:
        """The findings that are not ok."""
        return [each for each in self.findings if each["verdict"] != OK]

    @property
    def is_read(self) -> bool:
        """Whether it could be read."""
        return self.row["due_profile"] is not None


@dataclass
class ReportData:
    """What a report shows; the worst stores come first."""

    run: dict[str, Any]
    stores: list[ShownStore]
    charted: int
    """So many of them with charts."""


def read_report(
    out: str | os.PathLike[str], run: str | None = None, charts_max: int = 50
) -> ReportData:
    """Read what a report shows of a run, the last one if none is named.

    Raises InvalidArgumentError if there is none.
    """
    runs = sorted(read_results(out, "runs").to_pylist(), key=lambda row: row["began"])
    names = [row["run"] for row in runs]
    if not runs or (run is not None and run not in names):
        what = "no run" if run is None else f"no finished run {run!r}"
        raise InvalidArgumentError(f"{out} has {what}. Pass the folder of a run's tables.")
    at = len(names) - 1 if run is None else names.index(run)
    chosen, shown = runs[at], set(names[: at + 1])
    rows = [row for row in read_results(out, "stores").to_pylist() if row["run"] in shown]
    findings = read_results(out, "findings", run=chosen["run"]).to_pylist()
    stores = [ShownStore(row) for row in rows if row["run"] == chosen["run"]]
    stores.sort(key=lambda each: (-VERDICTS.index(each.row["verdict"]), each.name))
    by_store = defaultdict(list)
    for finding in findings:
        by_store[finding["store"]].append(finding)
    for number, each in enumerate(stores):
        each.findings = sorted(
            by_store[each.name], key=lambda finding: -VERDICTS.index(finding["verdict"])
        )
        own = [row for row in rows if row["store"] == each.name and row["pending"] is not None]
        own.sort(key=lambda row: row["at_ms"])
        each.pending = [(row["at_ms"], float(row["pending"])) for row in own]
        if number < charts_max and each.is_read:
            _fill_charts(out, each, chosen["run"], own)
    return ReportData(chosen, stores, min(charts_max, len(stores)))


def _fill_charts(
    out: str | os.PathLike[str], store: ShownStore, run: str, own: Sequence[dict[str, Any]]
) -> None:
    _fill_due(store, read_results(out, "due", run=run, store=store.name))
    _fill_wheel(store, read_results(out, "slot_load", run=run, store=store.name))
    when = {row["run"]: row["at_ms"] for row in own}
    late = read_results(out, "lateness", store=store.name)
    store.late = late_by_day([row for row in late.to_pylist() if row["run"] in when], when)
    columns = ("run", "rule", "value")
    drift: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in read_results(out, "findings", store=store.name, columns=columns).to_pylist():
        if row["rule"] in _INDEXES and row["run"] in when:
            drift[row["rule"]].append((when[row["run"]], row["value"]))
    store.drift = {rule: sorted(values) for rule, values in drift.items()}


# --- due times


def _fill_due(store: ShownStore, table: Any) -> None:
    """Count what is due by topic, in steps that fit a chart; what lies far behind is left out."""
    minute_ms, timers = (table.column(name).to_numpy() for name in ("minute_ms", "timers"))
    if not len(timers):
        return
    of_topics = table.group_by("topic").aggregate([("timers", "sum")])
    topics = of_topics.sort_by([("timers_sum", "descending")])["topic"].to_pylist()
    store.topics = topics[:TOPICS_SHOWN] + [OTHERS] * (len(topics) > TOPICS_SHOWN)
    order = np.argsort(minute_ms, kind="stable")
    part = np.cumsum(timers[order]) / timers.sum()
    near_ms = int(minute_ms[order][np.searchsorted(part, FAR_SHARE)])
    first_ms, last_ms = int(minute_ms.min()), int(minute_ms.max())
    if last_ms - first_ms > _FAR * max(near_ms - first_ms, HOUR_MS):
        last_ms = near_ms
    store.beyond = int(timers[minute_ms > last_ms].sum())
    span_ms = last_ms - first_ms
    store.step_ms = next((ms for ms in _STEPS_MS if span_ms < BARS_MAX * ms), _STEPS_MS[-1])
    names = table.column("topic").to_pylist()
    for ms, name, count in zip(minute_ms.tolist(), names, timers.tolist(), strict=True):
        if ms <= last_ms:
            topic = name if name in store.topics else OTHERS
            store.due.setdefault(ms // store.step_ms * store.step_ms, Counter())[topic] += count


# --- the wheel


def _fill_wheel(store: ShownStore, table: Any) -> None:
    """Add up slots into the cells of two turns, from the hour in which the store stands."""
    row = store.row
    turn_ms = row["ring_slots"] // 2 * row["precision_ms"]
    store.cell_ms = max(row["precision_ms"], -(-turn_ms // (DAYS * ROWS)))
    begin_ms = row["stands_ms"] // store.cell_ms * store.cell_ms
    time_ms, live = (table.column(name).to_numpy() for name in ("time_ms", "live"))
    cell = (time_ms - begin_ms) // store.cell_ms
    kept = (cell >= 0) & (cell < 2 * DAYS * ROWS)
    counts = np.bincount(cell[kept], live[kept], 2 * DAYS * ROWS).astype(np.int64)
    store.wheel = counts.reshape(2 * DAYS, ROWS)


# --- lateness


def quantiles(counter: Counter[int], parts: Sequence[float]) -> list[int]:
    """Return quantiles of values that are counted.

    >>> quantiles(Counter({0: 98, 7: 2}), (0.5, 0.99, 1.0))
    [0, 7, 7]
    """
    values = np.array(sorted(counter), np.int64)
    ends = np.cumsum([counter[value] for value in values.tolist()])
    ranks = np.maximum(1, np.ceil(np.array(parts) * ends[-1]))
    found: list[int] = values[np.searchsorted(ends, ranks)].tolist()
    return found


def late_by_day(
    rows: Sequence[dict[str, Any]], when: dict[str, int]
) -> dict[str, list[tuple[int, float]]]:
    """Return quantiles of lateness by day, over all topics.

    An hour that several runs tell of is taken from the first run that was behind its end, whose
    log still had all of it, else from the last one. `when`: as of when each run was.
    """
    runs: dict[int, set[str]] = defaultdict(set)
    for row in rows:
        runs[row["hour_ms"]].add(row["run"])
    chosen = {}
    for hour_ms, names in runs.items():
        behind = [name for name in names if when[name] >= hour_ms + HOUR_MS]
        best = min(behind or names, key=lambda name: when[name] if behind else -when[name])
        chosen[hour_ms] = best
    days: dict[int, Counter[int]] = defaultdict(Counter)
    for row in rows:
        if chosen[row["hour_ms"]] == row["run"]:
            days[row["hour_ms"] // DAY_MS * DAY_MS][row["late_ms"]] += row["fired"]
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in LATE_QUANTILES}
    for day_ms, counter in sorted(days.items()):
        values = quantiles(counter, tuple(LATE_QUANTILES.values()))
        for name, value in zip(LATE_QUANTILES, values, strict=True):
            found[name].append((day_ms, float(value)))
    return found if days else {}


CHARTS_MAX: Final = 50
"""Stores with charts, the worst ones; the others are only in the table."""


def write_report(
    out: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    run: str | None = None,
) -> Path:
    """Write a page about a run, the last one if none is named; return where.

    `out`: the folder of result tables. `path`: the page, `report.html` in that folder if it is
    None. It needs no server and no network. Raises InvalidArgumentError if there is no such run,
    ImportError without the extra `plots`.

    >>> result = timerstore.pipeline.run("timers/", "tables/")
    >>> timerstore.pipeline.report("tables/", "report.html")
    PosixPath('report.html')
    """
    charts.import_matplotlib()
    page = _page_of(read_report(out, run, CHARTS_MAX))
    target = Path(out, "report.html") if path is None else check_path(path)
    with told_of(str(target)):
        target.write_text(page, encoding="utf-8")
    return target


def _page_of(data: ReportData) -> str:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as e:
        raise ImportError(
            "A report needs Jinja2. Install the extra: pip install 'timerstore[plots]'"
        ) from e

    templates = Environment(
        loader=PackageLoader("timerstore.pipeline"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["span"] = rough_span
    counts = Counter(each.row["verdict"] for each in data.stores)
    return templates.get_template("report.html").render(
        run=data.run,
        stores=data.stores,
        charted=data.charted,
        told=", ".join(f"{counts[each]:,} {each}" for each in reversed(VERDICTS) if counts[each]),
        drift_warns=DEFAULTS["drift_due"].warn,
        ROWS=ROWS,
        charts=charts,
        image=charts.image,
        counted=counted,
        moment=moment,
    )
