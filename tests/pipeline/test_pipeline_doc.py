"""docs/pipeline.md shows what there is: tables, rules, limits."""

import re
import tomllib

import pytest

from tests.markdown import ROOT
from timerstore.pipeline import DISTRIBUTION_RULES, TABLES, VERSION, Thresholds
from timerstore.pipeline.finding import DistributionRule
from timerstore.pipeline.thresholds import DEFAULTS, NEVER

TEXT = (ROOT / "docs/pipeline.md").read_text()


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_shown(name: str) -> None:
    table = TABLES[name]
    lines = [f"### {name}", "", f"A row is {table.meaning}.", ""]
    lines += ["| column | type | meaning |", "|---|---|---|"]
    lines += [f"| `{each.name}` | {each.kind_name} | {each.meaning} |" for each in table.columns]
    assert "\n".join(lines) + "\n\n" in TEXT


def test_no_other_table_is_shown() -> None:
    shown = re.findall(r"^### ([a-z_]+)$", TEXT, re.MULTILINE)
    assert shown == list(TABLES) and f"The version of the tables, {VERSION}," in TEXT


def _number(value: float) -> str:
    return "never" if value == NEVER else f"{value:,g}"


@pytest.mark.parametrize("rule", DISTRIBUTION_RULES, ids=lambda rule: rule.name)
def test_rules_are_shown_with_their_limits(rule: DistributionRule) -> None:
    limits = DEFAULTS[rule.name]
    least = _number(limits.least) if limits.least else ""
    cells = (f"`{rule.name}`", rule.measures, _number(limits.warn), _number(limits.fail), least)
    assert f"| {' | '.join((*cells, rule.advice))} |" in TEXT


def test_the_file_of_thresholds_is_one() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    found = Thresholds.from_mapping(tomllib.loads(block))
    assert found.fire_rate_per_s == 60_000 and found.limits["skew_neighbours"].fail == 5_000
