"""A report of one run: one HTML page, with nothing beside it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, Final

from timerstore.ground.kinds import check_path
from timerstore.pipeline.finding import OK, VERDICTS
from timerstore.pipeline.reportdata import DAYS, ROWS, ReportData, ShownStore, read_report
from timerstore.pipeline.svgcharts import (
    heat_legend,
    heat_map,
    legend,
    lines,
    stacked_bars,
)
from timerstore.pipeline.thresholds import DEFAULTS
from timerstore.timelog.files.oserrors import told_of
from timerstore.validation.timeaxis import HOUR_MS, shown
from timerstore.validation.words import counted, duration

CHARTS_MAX: Final = 50
"""Stores with charts, the worst ones; the others are only in the table."""
PLACES_SHOWN: Final = 3
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
svg { width: 100%; height: auto; display: block; }
.legend { font-size: 13px; color: #444; } .legend span { margin-right: 14px; white-space: nowrap; }
.legend i { display: inline-block; width: 11px; height: 11px; margin-right: 5px; border-radius: 2px;
            border: 1px solid #ccc; }
summary { cursor: pointer; color: #0b5394; margin: 14px 0 4px; }
"""


def write_report(
    out: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    run: str | None = None,
) -> Path:
    """Write a page about a run, the last one if none is named; return where.

    `out`: the folder of result tables. `path`: the page, `report.html` in that folder if it is
    None. It needs no server and no network. Raises InvalidArgumentError if there is no such run.

    >>> result = timerstore.pipeline.run("timers/", "tables/")
    >>> timerstore.pipeline.report("tables/", "report.html")
    PosixPath('report.html')
    """
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
        f"{duration(1_000 * run['seconds'])}; {counted(run['messages'], 'message')}, "
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
            f'<td class="n">{"" if store.row[each] is None else f"{store.row[each]:,}"}</td>'
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
    stands = shown(row["stands_ms"], "%-d %b %Y %H:%M:%S")
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
    if store.due:
        yield "<h3>When timers fall due</h3>"
        if store.beyond:
            yield f"<p><small>{counted(store.beyond, 'timer')} due later still.</small></p>"
        yield stacked_bars(store.due, store.topics, store.step_ms, "Due times by topic")
        yield legend(store.topics)
        yield from _wheel(store)
    if store.late:
        yield "<h3>How late they fired, day by day</h3>"
        yield lines(store.late, "Lateness over days", is_lateness=True)
        yield legend(list(store.late))
    if len(store.pending) > 1:
        yield "<h3>Pending, run by run</h3>"
        yield lines({"pending": store.pending}, "Pending timers over runs")
        indexes = {name: each for name, each in store.drift.items() if name != "drift_pending"}
        if indexes:
            limits = DEFAULTS["drift_due"]
            yield "<h3>Drift: the population stability index, run by run</h3>"
            yield lines(indexes, "Drift over runs", limits={"warn": limits.warn})
            yield legend(list(indexes))


def _wheel(store: ShownStore) -> Iterator[str]:
    """Draw both turns of the wheel, a column for each of its days."""
    high = max(int(turn.max()) for turn in store.turns)
    if not high:
        return
    cell = duration(store.cell_ms)
    yield "<h3>Units in the wheel, both turns from where it stands</h3>"
    told = f"A column is {duration(store.cell_ms * ROWS)}, a cell {cell}."
    if store.row["window_slots"]:
        window = duration(store.row["window_slots"] * store.row["precision_ms"])
        told += f" What is due behind the roll window, {window}, waits within it to be passed on."
    yield f"<p><small>{told}</small></p>"
    begin_ms = store.row["stands_ms"] // store.cell_ms * store.cell_ms
    form = "%-d %b %H:%M" if store.cell_ms >= HOUR_MS // 2 else "%H:%M:%S"
    columns, names, texts = list[list[int]](), list[str](), list[list[str]]()
    for turn in store.turns:
        for counts in turn.tolist():
            first = begin_ms + len(columns) * ROWS * store.cell_ms
            names.append(shown(first, form))
            begins = [first + i * store.cell_ms for i in range(ROWS)]
            texts.append(
                [
                    f"{shown(ms, '%-d %b %Y %H:%M:%S')}: {counted(count, 'unit')}"
                    for ms, count in zip(begins, counts, strict=True)
                ]
            )
            columns.append(counts)
    rows = [f"+{duration(i * store.cell_ms)}" if i and i % 6 == 0 else "" for i in range(ROWS)]
    for turn_number in range(2):
        part = slice(turn_number * DAYS, (turn_number + 1) * DAYS)
        label = f"Turn {turn_number + 1} of the wheel"
        yield heat_map(columns[part], names[part], rows, texts[part], high=high, label=label)
    yield heat_legend(high)


def _all_findings(store: ShownStore) -> Iterator[str]:
    yield f"<details><summary>All {len(store.findings)} rules</summary><table>"
    yield (
        '<tr><th>rule</th><th>verdict</th><th class="n">value</th><th class="n">warns above</th>'
        '<th class="n">fails above</th><th>says</th></tr>'
    )
    for each in store.findings:
        cells = "".join(
            f'<td class="n">{"" if each[name] is None else f"{each[name]:,.6g}"}</td>'
            for name in ("value", "warn", "fail")
        )
        yield f"<tr><td>{escape(each['rule'])}</td><td>{_badge(each['verdict'])}</td>{cells}"
        yield f"<td>{escape(each['says'])}</td></tr>"
    yield "</table></details>"
