"""Why a message failed: properties that it carries from its first failure to its death.

They tell people, nothing is decided by them. If a message has no room left for them, they are
shortened, or left out: it can be sent back, and die, all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.writing.frame import encode_property

KIND_BYTES_MAX: Final = 128
TEXT_BYTES_MAX: Final = 512
_SHORTENED: Final = "…"
_FIRST_FAILED: Final = fmt.PROPERTY_FIRST_FAILED.decode()
_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}\b")
FAILED: Final = frozenset(
    name.decode()
    for name in (fmt.PROPERTY_FIRST_FAILED, fmt.PROPERTY_ERROR_TYPE, fmt.PROPERTY_ERROR_TEXT)
)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a handler failed with: the exception's class, or `timeout`, `retry`; its text."""

    kind: str = ""
    text: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return what an exception says, which it may fail to say."""
        kind = type(error)
        name = kind.__qualname__
        if kind.__module__ not in ("builtins", "__main__"):
            name = f"{kind.__module__}.{name}"
        return cls(name, said_by(error, str))


def said_by(value: object, say: Callable[[Any], str]) -> str:
    """Return what a program's object says of itself; nothing if it fails to say it."""
    try:
        return say(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return ""


def failed_properties(
    known: Mapping[str, str], now_ms: int, failure: Failure | None, room_bytes: int
) -> bytes:
    """Return what a message that fails now is to carry, in `room_bytes` at most.

    `known`: the properties that it has; `failure`: the reason, if it is given up.
    """
    first_ms = known.get(_FIRST_FAILED) or str(now_ms)
    encoded = encode_property(fmt.PROPERTY_FIRST_FAILED, first_ms.encode())
    if len(encoded) > room_bytes:
        return b""
    for name, value, most in (
        (fmt.PROPERTY_ERROR_TYPE, failure.kind if failure else "", KIND_BYTES_MAX),
        (fmt.PROPERTY_ERROR_TEXT, failure.text if failure else "", TEXT_BYTES_MAX),
    ):
        left = room_bytes - len(encoded) - len(encode_property(name, b""))
        short = shortened(value, min(most, left))
        if short:
            encoded += encode_property(name, short.encode())
    return encoded


def shortened(text: str, bytes_max: int) -> str:
    """Return as much of a text as takes `bytes_max`, without what no property can hold.

    >>> shortened("no such host", 8)
    'no su…'
    """
    data = text.replace("\x01", " ").replace("\x02", " ").strip().encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return data.decode()
    kept = bytes_max - len(_SHORTENED.encode())
    return "" if kept <= 0 else data[:kept].decode("utf-8", "ignore") + _SHORTENED


def first_failed_ms(properties: Mapping[str, str]) -> int | None:
    """Return when a message failed first, if it says so."""
    value = properties.get(_FIRST_FAILED, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 16 else None


def error_of(properties: Mapping[str, str]) -> tuple[str, str]:
    """Return the type and the text of the error that a message died of."""
    names = fmt.PROPERTY_ERROR_TYPE.decode(), fmt.PROPERTY_ERROR_TEXT.decode()
    return properties.get(names[0], ""), properties.get(names[1], "")


def trace_id(properties: Mapping[str, str]) -> str | None:
    """Return the trace that a message was put in, by its `traceparent` (`timerstore.otel`)."""
    found = _TRACE_PARENT.match(properties.get("traceparent", ""))
    return None if found is None else found[1]
