"""The columns of what is exported; an open store lists its pending timers by the same."""

from __future__ import annotations

from typing import Any, Final, Literal

from timerstore.tables import commitlog
from timerstore.tables.commitlog import Maker, MessageRows
from timerstore.tables.schema import PAYLOAD, arrow_schema

Table = Literal["pending", "fired", "messages"]
_TIMES: Final = ("fired_ms", "lateness_ms")
_TIMER: Final = ("put_ms", "roll_count", "offset", "key", *PAYLOAD)
_PLACE: Final = ("offset", "size", "topic", "queue_id", "queue_offset", "born_ms", "stored_ms")
SCHEMAS: Final[dict[str, Any]] = {
    "pending": arrow_schema("fired", ("id", "topic", "due_ms", *_TIMER)),
    "fired": arrow_schema("fired", ("id", "topic", "due_ms", *_TIMES, *_TIMER)),
    "messages": arrow_schema(
        "messages", (*_PLACE, "reconsume_times", "unique_key", "key", *PAYLOAD)
    ),
}


def _id(messages: MessageRows) -> Any:
    ids = messages.text("key")
    return ids.fill_null("") if ids.null_count else ids


_FIRED: Final[dict[str, Maker]] = {**commitlog.MAKERS["fired"], "id": _id}
MAKERS: Final[dict[str, dict[str, Maker]]] = {
    "pending": {**_FIRED, "topic": lambda m: m.text("real_topic")},
    "fired": _FIRED,
    "messages": commitlog.MAKERS["messages"],
}
"""How each column of `SCHEMAS` is made."""
