"""docs/spark.md shows what there is: tables, options, cursors."""

import re

import pytest

from tests.markdown import ROOT
from timerstore.tables import TABLES
from timerstore.tables.schema import Table

TEXT = (ROOT / "docs/spark.md").read_text()


def section(table: Table) -> str:
    lines = [f"### {table.name}", "", f"A row is {table.meaning}.", ""]
    lines += ["| column | type | meaning |", "|---|---|---|"]
    twins = {f"{column.name}_ms" for column in table.columns if column.kind == "timestamp"}
    for column in table.columns:
        if column.name in twins:
            continue
        twin = f"{column.name}_ms" in twins
        name = f"`{column.name}`, `{column.name}_ms`" if twin else f"`{column.name}`"
        kind = f"{column.kind}, bigint" if twin else column.kind
        kind = f"{kind}; on request" if column.asked else kind
        lines.append(f"| {name} | {kind} | {column.meaning} |")
    return "\n".join(lines) + "\n\n"


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_shown(name: str) -> None:
    assert section(TABLES[name]) in TEXT


def test_no_other_table_is_shown() -> None:
    assert re.findall(r"^### (\w+)$", TEXT, re.MULTILINE) == list(TABLES)


@pytest.mark.slow
def test_options_are_shown() -> None:
    from timerstore.spark.options import _KNOWN

    shown = set(re.findall(r"`(\w+)`", TEXT))
    assert shown >= _KNOWN - {"path", "paths"}


def test_cursors_are_shown() -> None:
    from timerstore.tables.cursortable import _OF_RIP_43, _OURS

    shown = set(re.findall(r"`(\w+)`", TEXT))
    assert shown >= {*_OF_RIP_43, *_OURS, "by_broker"}
