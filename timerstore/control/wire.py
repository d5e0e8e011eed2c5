"""How the calls' values, or errors, are written in JSON."""

from __future__ import annotations

import base64
from dataclasses import fields, is_dataclass
from typing import Any, Final

from timerstore import errors
from timerstore.errors import TimerStoreError

SOCKET_NAME: Final = "control.sock"
CONTENT_BYTES_MAX: Final = 64 << 20
"""Of one question, and of its answer."""


def to_json(value: Any) -> Any:
    """Return what JSON can say: bytes in base64, a dataclass as an object, an array as a list."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if hasattr(value, "tolist"):  # an array of NumPy's, or a number
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {str(name): to_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    return value


def from_json(value: Any) -> Any:
    """Return the value, with its bytes."""
    if isinstance(value, dict):
        if value.keys() == {"base64"} and isinstance(value["base64"], str):
            return base64.b64decode(value["base64"])
        return {name: from_json(each) for name, each in value.items()}
    return [from_json(each) for each in value] if isinstance(value, list) else value


def error_to_json(error: BaseException) -> dict[str, Any]:
    """Return an error's kind and text."""
    return {"error": type(error).__name__, "message": str(error)}


def error_from_json(answer: dict[str, Any]) -> TimerStoreError:
    """Return the same error here; one that is none of ours as a TimerStoreError."""
    kind, text = getattr(errors, str(answer.get("error")), None), str(answer.get("message"))
    if kind is errors.CorruptStoreError or not isinstance(kind, type):
        kind = TimerStoreError
    if not issubclass(kind, TimerStoreError):
        kind = TimerStoreError
    error: TimerStoreError = kind(text)
    return error
