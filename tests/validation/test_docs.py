"""docs/validate.md tells of each rule what `rules.py` says."""

import re
from pathlib import Path

from timerstore.validation import RULES

DOC = Path(__file__).resolve().parents[2] / "docs" / "validate.md"


def test_the_document_has_every_rule() -> None:
    lines = DOC.read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    expected = [
        f"| `{rule.name}` | {rule.counts} | {rule.says} | {rule.means}"
        + (" (a warning) |" if rule.severity == "warning" else " |")
        for rule in RULES
    ]
    assert rows == expected


def test_the_fire_rate_is_the_benchmarks() -> None:
    from timerstore.validation.spread import FIRE_RATE_PER_S

    table = (DOC.parent / "benchmarks.md").read_text("utf-8")
    (row,) = [
        line for line in table.splitlines() if line.startswith("| whole life, pulled by col")
    ][:1]
    rate = re.search(r"([0-9.]+) (k|M)/s with", row)
    assert rate is not None
    assert FIRE_RATE_PER_S == round(float(rate[1]) * {"k": 1e3, "M": 1e6}[rate[2]])
    assert f"{FIRE_RATE_PER_S:,} a second by the benchmark" in DOC.read_text("utf-8")
