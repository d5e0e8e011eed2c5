"""Fills in the tables of pages that the code itself declares, for MkDocs.

A line `<!-- made: NAME -->` of a page stands for one of MAKERS; a word behind the name is its
argument. So what is declared once is written once. `python -P docs/hooks/made.py NAME` shows it,
or a page whose file is named.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import commands

from timerstore.metrics.table import GROUP_METRICS, STORE_METRICS, TOPIC_METRICS
from timerstore.pipeline import DISTRIBUTION_RULES, TABLES
from timerstore.pipeline.thresholds import DEFAULTS, NEVER
from timerstore.tables import TABLES as STORE_TABLES
from timerstore.timelog.files.checkpoint import SIZES
from timerstore.validation import RULES
from timerstore.values.config import Config, Tuning

MARK = re.compile(r"^<!-- made: (?P<name>[a-z-]+)(?: (?P<of>\w+))? -->$", re.MULTILINE)


def validation_rules() -> str:
    """Write a table of the rules of a sound store for each group of them."""
    parts: list[str] = []
    group = ""
    for rule in RULES:
        if group != rule.group:
            group = rule.group
            parts.append(f"\n### {group.capitalize()}\n")
            parts.append("| rule | looks at | says | if it fails |\n|---|---|---|---|")
        warning = " (a warning)" if rule.severity == "warning" else ""
        parts.append(f"| `{rule.name}` | {rule.measures} | {rule.says} | {rule.means}{warning} |")
    return "\n".join(parts)


def distribution_rules() -> str:
    """Write a table of the pipeline's rules, with their limits."""
    rows = ["| rule | measures | warns above | fails above | judged from | it means; what to do |"]
    rows.append("|---|---|---|---|---|---|")
    for rule in DISTRIBUTION_RULES:
        limits = DEFAULTS[rule.name]
        least = _number(limits.least) if limits.least else ""
        cells = (f"`{rule.name}`", rule.measures, _number(limits.warn), _number(limits.fail), least)
        told = f"{rule.means} {rule.do}"
        rows.append(f"| {' | '.join((*cells, told))} |")
    return "\n".join(rows)


def result_tables() -> str:
    """Write the columns of each table that the pipeline makes."""
    parts = []
    for name, table in TABLES.items():
        parts.append(f"### {name}\n\nA row is {table.meaning}.\n")
        parts.append("| column | type | meaning |\n|---|---|---|")
        columns = table.columns
        parts += [f"| `{each.name}` | {each.kind} | {each.meaning} |" for each in columns]
        parts.append("")
    return "\n".join(parts)


def columns(name: str) -> str:
    """Write the columns of one table that a store is read as."""
    table = STORE_TABLES[name]
    lines = [f"A row is {table.meaning}.", "", "| column | type | meaning |", "|---|---|---|"]
    twins = {f"{column.name}_ms" for column in table.columns if column.kind == "timestamp"}
    for column in table.columns:
        if column.name in twins:
            continue
        twin = f"{column.name}_ms" in twins
        name = f"`{column.name}`, `{column.name}_ms`" if twin else f"`{column.name}`"
        kind = f"{column.kind}, bigint" if twin else column.kind
        kind = f"{kind}; on request" if column.asked else kind
        lines.append(f"| {name} | {kind} | {column.meaning} |")
    return "\n".join(lines)


def settings() -> str:
    """Write a section for each setting of `Tuning`; those that a store keeps come last."""
    names = sorted((each.name for each in dataclasses.fields(Tuning)), key=SIZES.__contains__)
    return "\n".join(f"### `{name}`\n\n{setting(name)}\n" for name in names)


def setting(name: str) -> str:
    """Write what stands at one setting, with its default."""
    field = {each.name: each for each in dataclasses.fields(Config)}[name]
    fixed = " *Fixed.*" if name in SIZES else ""
    return f"Default `{field.default!r}`.{fixed} {_said(Config)[name]}"


@cache
def _said(of: type) -> dict[str, str]:
    """Read what stands at each field of a class, and of those above it."""
    (declared,) = ast.parse(inspect.getsource(of)).body
    said = {} if of.__base__ is object else _said(of.__base__)
    return said | {
        ast.unparse(each.target): inspect.cleandoc(ast.literal_eval(behind.value))
        for each, behind in pairwise(declared.body)  # type: ignore[attr-defined]
        if isinstance(each, ast.AnnAssign)
    }


def metrics(of: str) -> str:
    """Write a table of the metrics of a store, of its topics, or of its groups."""
    rows = ["| metric | type | labels | meaning |\n|---|---|---|---|"]
    for each in {"store": STORE_METRICS, "topic": TOPIC_METRICS, "group": GROUP_METRICS}[of]:
        name = f"timerstore_{each.name}" + ("_total" if each.kind == "counter" else "")
        rows.append(f"| `{name}` | {each.kind} | {', '.join(each.labels)} | {each.text} |")
    return "\n".join(rows)


def _number(value: float) -> str:
    return "never" if value == NEVER else f"{value:,g}"


MAKERS: dict[str, Callable[..., str]] = {
    "columns": columns,
    "commands": commands.sections,
    "metrics": metrics,
    "setting": setting,
    "settings": settings,
    "validation-rules": validation_rules,
    "distribution-rules": distribution_rules,
    "result-tables": result_tables,
}


def filled(markdown: str) -> str:
    """Put what each mark stands for in its place."""
    return MARK.sub(lambda match: MAKERS[match["name"]](*filter(None, [match["of"]])), markdown)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fill in a page before its links are looked at."""
    return filled(markdown)


if __name__ == "__main__":
    what, *of = sys.argv[1:]
    print(filled(Path(what).read_text()) if what.endswith(".md") else MAKERS[what](*of))
