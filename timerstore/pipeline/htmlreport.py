"""A report of one run: one HTML page, with nothing beside it; what it shows of the tables."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
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
    """The values of the rules of drift in each run."""
    late: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Quantiles of lateness by day."""
    due: dict[int, dict[str, int]] = field(default_factory=dict)
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
        if row["rule"].startswith("drift_") and row["run"] in when:
            drift[row["rule"]].append((when[row["run"]], row["value"]))
    store.drift = {rule: sorted(values) for rule, values in drift.items()}


# --- due times


def _fill_due(store: ShownStore, table: Any) -> None:
    """Count what is due by topic, in steps that fit a chart; what lies far behind is left out."""
    minute_ms, timers = (table.column(name).to_numpy() for name in ("minute_ms", "timers"))
    if not len(timers):
        return
    topics: Counter[str] = Counter()
    names = np.array(table.column("topic").to_pylist(), object)
    for name, count in zip(names.tolist(), timers.tolist(), strict=True):
        topics[name] += count
    store.topics = [name for name, _ in topics.most_common(TOPICS_SHOWN)]
    if len(topics) > TOPICS_SHOWN:
        store.topics.append(OTHERS)
    order = np.argsort(minute_ms, kind="stable")
    part = np.cumsum(timers[order]) / timers.sum()
    near_ms = int(minute_ms[order][np.searchsorted(part, FAR_SHARE)])
    first_ms, last_ms = int(minute_ms.min()), int(minute_ms.max())
    if last_ms - first_ms > _FAR * max(near_ms - first_ms, HOUR_MS):
        last_ms = near_ms
    store.beyond = int(timers[minute_ms > last_ms].sum())
    span_ms = last_ms - first_ms
    store.step_ms = next((ms for ms in _STEPS_MS if span_ms < BARS_MAX * ms), _STEPS_MS[-1])
    due: dict[int, dict[str, int]] = defaultdict(Counter)
    for ms, name, count in zip(minute_ms.tolist(), names.tolist(), timers.tolist(), strict=True):
        if ms <= last_ms:
            due[ms // store.step_ms * store.step_ms][name if name in store.topics else OTHERS] += (
                count
            )
    store.due = dict(due)


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
PLACES_SHOWN: Final = 3
_INDEXES: Final = ("drift_due", "drift_lateness", "drift_load")
_TITLE: Final = "timerstore pipeline"
_STYLE: Final = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto;
       max-width: 960px; padding: 24px; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 20px; margin: 44px 0 4px; padding-top: 12px; border-top: 1px solid #ddd; }
h3 { font-size: 15px; margin: 26px 0 2px; }
p { margin: 4px 0 10px; } .dim, small { color: #666; } a { color: #0b5394; }
table { border-collapse: collapse; width: 100%; margin: 10px 0; font-size: 14px; }
th, td { text-align: left; padding: 5px 8px; border-bottom: 1px solid #e5e5e5;
         vertical-align: top; overflow-wrap: anywhere; }
th { color: #666; font-weight: 600; } th, td:first-child, .n { white-space: nowrap; }
.n { text-align: right; }
.badge { display: inline-block; min-width: 36px; text-align: center; border-radius: 4px;
         padding: 0 8px; font-size: 13px; font-weight: 600; color: #fff; }
.ok { background: #2a7f3f; } .warn { background: #b25e00; } .fail { background: #b3261e; }
.finding { border-left: 4px solid; padding: 2px 12px; margin: 10px 0; background: none; }
.finding.warn { border-color: #b25e00; } .finding.fail { border-color: #b3261e; }
.finding p { margin: 2px 0; } code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
.charts { display: grid; gap: 0 24px;
          grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); }
img { width: 100%; height: auto; display: block; }
summary { cursor: pointer; color: #0b5394; margin: 14px 0 4px; }
@media (max-width: 600px) {
  body { padding: 12px; } th { display: none; }
  tr { display: block; border-bottom: 1px solid #e5e5e5; padding: 6px 0; }
  td { display: inline-block; border: 0; padding: 2px 6px 2px 0; } td:last-child { display: block; }
  td[data-name]:not(:empty)::before { content: attr(data-name) " "; color: #666; }
}
"""


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
    page = page_of(read_report(out, run, CHARTS_MAX))
    target = Path(out, "report.html") if path is None else check_path(path)
    with told_of(str(target)):
        target.write_text(page, encoding="utf-8")
    return target


def page_of(data: ReportData) -> str:
    """Return the page."""
    run = data.run["run"]
    body = "\n".join([*_head(data), *_overview(data), *_stores(data)])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n<title>{escape(run)} – '
        f'{_TITLE}</title>\n<meta name="viewport" content="width=device-width">\n'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _badge(verdict: str) -> str:
    return f'<span class="badge {verdict}">{verdict}</span>'


def _head(data: ReportData) -> Iterator[str]:
    run = data.run
    counts = Counter(each.row["verdict"] for each in data.stores)
    told = ", ".join(f"{counts[each]:,} {each}" for each in reversed(VERDICTS) if counts[each])
    began = run["began"].strftime("%-d %b %Y %H:%M:%S")
    yield f"<h1>{escape(run['run'])} {_badge(run['verdict'])}</h1>"
    yield (
        f'<p class="dim">{counted(len(data.stores), "store")}: {told}. Began {began} UTC, took '
        f"{rough_span(1_000 * run['seconds'])}; {counted(run['messages'], 'message')}, "
        f"{counted(run['units'], 'timer unit')}. timerstore {escape(run['timerstore'])}. "
        "All times are UTC.</p>"
    )


def _overview(data: ReportData) -> Iterator[str]:
    yield (
        '<table><tr><th>store</th><th>verdict</th><th class="n">pending</th><th class="n">fired'
        "</th><th>what</th></tr>"
    )
    for number, store in enumerate(data.stores):
        name = escape(store.name)
        if number < data.charted:
            name = f'<a href="#store-{number}">{name}</a>'
        numbers = "".join(
            f'<td class="n" data-name="{each}">'
            f"{'' if store.row[each] is None else f'{store.row[each]:,}'}</td>"
            for each in ("pending", "fired")
        )
        yield f"<tr><td>{name}</td><td>{_badge(store.row['verdict'])}</td>{numbers}"
        yield f"<td>{escape(_first(store))}</td></tr>"
    yield "</table>"
    if len(data.stores) > data.charted:
        yield f"<p><small>The {data.charted} worst are shown below.</small></p>"


def _first(store: ShownStore) -> str:
    if store.row["error"] is not None:
        return str(store.row["error"])
    bad = [each for each in store.findings if each["verdict"] != OK]
    if not bad:
        return ""
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return f"{bad[0]['rule']}: {bad[0]['says']}{more}"


# --- a store


def _stores(data: ReportData) -> Iterator[str]:
    for number, store in enumerate(data.stores[: data.charted]):
        row = store.row
        yield f'<h2 id="store-{number}">{escape(store.name)} {_badge(row["verdict"])}</h2>'
        yield f'<p class="dim"><code>{escape(row["path"])}</code></p>'
        if row["error"] is not None:
            yield f'<div class="finding fail"><p>{escape(row["error"])}</p></div>'
        if not store.is_read:
            continue
        yield f'<p class="dim">{escape(_about(row))}</p>'
        yield from _findings(store)
        yield from _charts(store)
        yield from _all_findings(store)


def _about(row: dict[str, Any]) -> str:
    kind = "A broker's store" if row["by_broker"] else "A store"
    state = "open, or was not closed" if row["was_open"] else "closed"
    stands = f"{moment(row['stands_ms']):%-d %b %Y %H:%M:%S}"
    return (
        f"{kind}, {state}; it stands at {stands}. {counted(row['pending'], 'timer')} pending, "
        f"{row['rolling']:,} of them beyond the roll window; {row['fired']:,} fired."
    )


def _findings(store: ShownStore) -> Iterator[str]:
    for each in store.findings:
        if each["verdict"] == OK:
            continue
        yield f'<div class="finding {each["verdict"]}"><p>{_badge(each["verdict"])} '
        yield f"<b>{escape(each['rule'])}</b>: {escape(each['says'])}</p>"
        yield f"<p>{escape(each['advice'])}</p>"
        for place in (each["places"] or [])[:PLACES_SHOWN]:
            where = f"{place['file']} at {place['offset']:,}"
            yield f"<p><small><code>{escape(where)}</code> {escape(place['reason'])}</small></p>"
        yield "</div>"


def _charts(store: ShownStore) -> Iterator[str]:
    yield '<div class="charts">'
    if store.due:
        figure = charts.due_bars(store.due, store.topics, store.step_ms)
        note = f"{counted(store.beyond, 'timer')} due later still." if store.beyond else ""
        yield _chart("When timers fall due", figure, note)
    if store.wheel is not None and store.wheel.any():
        begin_ms = store.row["stands_ms"] // store.cell_ms * store.cell_ms
        figure = charts.wheel(store.wheel, begin_ms, store.cell_ms)
        note = f"A column is {rough_span(store.cell_ms * ROWS)}, a cell {rough_span(store.cell_ms)}"
        if store.row["window_slots"]:
            window = rough_span(store.row["window_slots"] * store.row["precision_ms"])
            note += f"; what is due behind the roll window, {window}, waits within it"
        yield _chart("Units in the wheel, both turns from where it stands", figure, f"{note}.")
    if store.late:
        figure = charts.lines(store.late, is_lateness=True)
        yield _chart("How late they fired, day by day", figure)
    if len(store.pending) > 1:
        yield _chart("Pending, run by run", charts.lines({"pending": store.pending}))
        indexes = {name: each for name, each in store.drift.items() if name in _INDEXES}
        if indexes:
            figure = charts.lines(indexes, limits={"warn": DEFAULTS["drift_due"].warn})
            yield _chart("Drift: the population stability index, run by run", figure)
    yield "</div>"


def _chart(title: str, figure: Any, note: str = "") -> str:
    told = f"<p><small>{escape(note)}</small></p>" if note else ""
    return f"<div><h3>{escape(title)}</h3>{told}{charts.image(figure, title)}</div>"


def _all_findings(store: ShownStore) -> Iterator[str]:
    yield f"<details><summary>All {len(store.findings)} rules</summary><table>"
    yield (
        '<tr><th>rule</th><th>verdict</th><th class="n">value</th><th class="n">warns above</th>'
        '<th class="n">fails above</th><th>says</th></tr>'
    )
    for each in store.findings:
        cells = "".join(
            f'<td class="n" data-name="{name}">'
            f"{'' if each[name] is None else f'{each[name]:,.6g}'}</td>"
            for name in ("value", "warn", "fail")
        )
        yield f"<tr><td>{escape(each['rule'])}</td><td>{_badge(each['verdict'])}</td>{cells}"
        yield f"<td>{escape(each['says'])}</td></tr>"
    yield "</table></details>"
