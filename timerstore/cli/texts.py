"""Values as text for people: times as they are here and now, bodies."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def shown_here(ms: int) -> str:
    """Return UTC epoch milliseconds as this machine's clock shows them, with its zone."""
    try:
        time = (_EPOCH + timedelta(milliseconds=ms)).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return time.isoformat(timespec="milliseconds" if ms % 1000 else "seconds")


def body_field(body: bytes) -> dict[str, str]:
    """Return a body for JSON: as text if it is UTF-8, else in base64 under another name."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def shown_body(body: bytes, length_max: int = 60) -> str:
    """Return the beginning of a body for a person; "…" says that it goes on."""
    text = whole_text(body[: 4 * length_max])
    is_whole = len(body) <= 4 * length_max and len(text) <= length_max
    return text if is_whole else text[: length_max - 1] + "…"


def whole_text(body: bytes) -> str:
    """Return a body for a program that reads lines: all of it, else a quote is never closed."""
    return body.decode("utf-8", "backslashreplace")
