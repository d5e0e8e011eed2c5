"""docs/validate.md shows all rules of consistency."""

from pathlib import Path

from timerstore.audit.rule import ABOUT_BYTES
from timerstore.validation import RULES

DOC = Path(__file__).resolve().parents[2] / "docs" / "validate.md"


def test_the_document_has_every_rule() -> None:
    text = DOC.read_text("utf-8")
    assert "<!-- made: validation-rules -->" in text
    others = [f"`{rule.name}`" for rule in RULES if rule.name not in ABOUT_BYTES]
    assert f"all: also {', '.join(others)}" in text
