"""A rule's sentences, filled with the numbers of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any, Final

from timerstore.values.amounts import SECOND_MS, counted, rough_span, share, shown_bytes
from timerstore.values.moments import moment

_FORMS: Final[Mapping[str, Callable[[Any], str]]] = {
    "bytes": lambda count: shown_bytes(int(count)),
    "minute": lambda ms: f"{moment(ms):%-d %b %Y %H:%M}",
    "second": lambda ms: _second(int(ms)),
    "share": share,
    "slot": lambda ms: "second" if ms == SECOND_MS else rough_span(ms),
    "span": rough_span,
}


def _second(ms: int) -> str:
    text = f"{moment(ms):%-d %b %Y %H:%M:%S}"
    return f"{text}.{ms % SECOND_MS:03d}" if ms % SECOND_MS else text


def readable(text: str) -> str:
    """Return a text, of a damaged topic say, with a mark for each byte that is no UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _Filler(Formatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        if format_spec in _FORMS:
            return _FORMS[format_spec](value)
        if len(format_spec) > 1 and format_spec[0].isalpha():
            return counted(value, format_spec)
        return super().format_field(value, format_spec)


def filled(sentence: str, row: Mapping[str, Any]) -> str:
    """Return a sentence with the values of a row in it.

    After the colon stands how a value is shown: `bytes`, `share`, `span` of ms, `minute` or
    `second` of a time in ms, `slot` of its length in ms, a form of Python's, or the name of what
    is counted.

    >>> filled("{count:timer} in {ms:span}, {part:share}", {"count": 2, "ms": 1500, "part": 0.5})
    '2 timers in 1.5 s, 50 %'
    """
    return _Filler().vformat(sentence, (), row)
