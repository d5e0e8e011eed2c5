"""docs/validate.md tells of each rule what `rules.py` says."""

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
