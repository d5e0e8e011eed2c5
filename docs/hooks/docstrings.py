"""Examples in docstrings, `>>> ...`, as blocks of code, for the pages of the reference."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"(?m)^>>> .*(?:\n(?!\s*$).*)*")


class Examples(Extension):
    """Fences each example, which Markdown takes for a quotation."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Change the text of what was read, not of what runs."""
        if obj.docstring:
            text = _EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value)
            obj.docstring.value = text
