"""What a notebook shows of an object: a small table, in the notebook's own colours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_CHARACTERS_MAX: Final = 500
"""Of one cell; a body may have megabytes."""
_INHERITED: Final = "background:none;color:inherit"
_CELL: Final = f"text-align:left;vertical-align:top;{_INHERITED}"


def html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values, escaped.

    >>> "a&lt;b" in html_table("Timer", [("topic", "a<b")])
    True
    """
    lines = "".join(
        f'<tr><th style="{_CELL}">{_cell(name)}</th><td style="{_CELL}">{_cell(value)}</td></tr>'
        for name, value in rows
    )
    return f'<table style="{_INHERITED}"><caption>{_cell(title)}</caption>{lines}</table>'


def html_text(text: str) -> str:
    """Return a text whose lines and columns stay as they are, escaped."""
    return f'<pre style="{_INHERITED}">{_escaped(text)}</pre>'


def _cell(text: str) -> str:
    if len(text) > _CHARACTERS_MAX:
        text = text[:_CHARACTERS_MAX] + "…"
    return _escaped(text)


def _escaped(text: str) -> str:
    from html import escape  # which brings the names of all of HTML's characters

    return escape(text)
