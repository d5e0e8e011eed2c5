"""docs/spark.md shows what there is: tables, options, cursors."""

import re

import pytest

from tests.markdown import ROOT
from timerstore.tables import TABLES

TEXT = (ROOT / "docs/spark.md").read_text()


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_shown(name: str) -> None:
    assert f"### {name}\n\n<!-- made: columns {name} -->\n" in TEXT


def test_no_other_table_is_shown() -> None:
    assert re.findall(r"^### (\w+)$", TEXT, re.MULTILINE) == list(TABLES)


@pytest.mark.slow
def test_options_are_shown() -> None:
    from timerstore.spark.options import _KNOWN

    shown = set(re.findall(r"`(\w+)`", TEXT))
    assert shown >= _KNOWN - {"path", "paths"}


def test_cursors_are_shown() -> None:
    from timerstore.tables.reading import _OF_RIP_43, _OURS

    shown = set(re.findall(r"`(\w+)`", TEXT))
    assert shown >= {*_OF_RIP_43, *_OURS, "by_broker"}
