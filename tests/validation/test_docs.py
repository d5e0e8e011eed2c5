"""docs/validate.md shows the rules of `rules.py`."""

from pathlib import Path

from timerstore.validation.rules import ABOUT_BYTES, RULES

DOC = Path(__file__).resolve().parents[2] / "docs" / "validate.md"


def test_the_document_has_every_rule() -> None:
    text = DOC.read_text("utf-8")
    assert "<!-- made: validation-rules -->" in text
    others = [f"`{rule.name}`" for rule in RULES if rule.name not in ABOUT_BYTES]
    assert f"all: also {', '.join(others)}" in text
