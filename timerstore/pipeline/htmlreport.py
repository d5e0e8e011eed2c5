"""A report of one run: one HTML page, with nothing beside it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, Final

from timerstore.audit.verdicts import OK, VERDICTS
from timerstore.pipeline import charts
from timerstore.pipeline.reportdata import ROWS, ReportData, ShownStore, read_report
from timerstore.pipeline.thresholds import DEFAULTS
from timerstore.timelog.files.oserrors import told_of
from timerstore.values.amounts import counted, moment, rough_span
from timerstore.values.kinds import check_path

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
