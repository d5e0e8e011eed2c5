"""docs/pipeline.md shows what there is: tables, rules, limits."""

import re
import tomllib

from tests.markdown import ROOT
from timerstore.pipeline import VERSION, Thresholds

TEXT = (ROOT / "docs/pipeline.md").read_text()


def test_tables_and_rules_are_shown() -> None:
    assert "<!-- made: result-tables -->" in TEXT and "<!-- made: distribution-rules -->" in TEXT
    assert f"The version of the tables, {VERSION}," in TEXT


def test_the_file_of_thresholds_is_one() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    found = Thresholds.of(tomllib.loads(block))
    assert found.fire_rate_per_s == 60_000 and found.limits["skew_neighbours"].fail == 5_000
