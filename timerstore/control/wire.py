"""How the calls' values, or errors, are written in JSON.

Bytes are `{"base64": "…"}`; an object that happens to have that one name, or "object", is written
as `{"object": {…}}`. So each value has one spelling, and whoever reads it gets what was meant.
"""

from __future__ import annotations

import base64
from dataclasses import fields, is_dataclass
from typing import Any, Final

from timerstore import errors
from timerstore.errors import InvalidArgumentError, TimerStoreError

SOCKET_NAME: Final = "control.sock"
_BYTES: Final = "base64"
_OBJECT: Final = "object"
CONTENT_BYTES_MAX: Final = 64 << 20
"""Of one question, and of its answer."""


def to_json(value: Any) -> Any:
    """Return what JSON can say: bytes in base64, a dataclass as an object, an array as a list."""
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if hasattr(value, "tolist"):  # an array of NumPy's, or a number
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        said = {str(name): to_json(each) for name, each in value.items()}
        return {_OBJECT: said} if said.keys() in ({_BYTES}, {_OBJECT}) else said
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    return value


def from_json(value: Any) -> Any:
    """Return the value, with its bytes; raises InvalidArgumentError where these are none."""
    if isinstance(value, dict):
        if value.keys() == {_BYTES}:
            return _from_base64(value[_BYTES])
        if value.keys() == {_OBJECT} and isinstance(value[_OBJECT], dict):
            value = value[_OBJECT]
        return {name: from_json(each) for name, each in value.items()}
    return [from_json(each) for each in value] if isinstance(value, list) else value


def _from_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (AttributeError, ValueError) as e:
        raise InvalidArgumentError(
            f"{text!r:.80} is no base64 ({e}). Bytes are sent as {{{_BYTES!r}: ...}}, an object of "
            f"that name as {{{_OBJECT!r}: ...}}."
        ) from e


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
