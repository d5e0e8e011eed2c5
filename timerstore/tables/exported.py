"""The columns of what is exported; an open store lists its pending timers by the same."""

from __future__ import annotations

from typing import Any, Final, Literal

import pyarrow as pa

from timerstore.tables.commitlog import Maker, MessageRows
from timerstore.tables.schema import BINARY, INT

Table = Literal["pending", "fired", "messages"]
_PROPERTIES = pa.map_(pa.string(), pa.string())
_COMMON: Final = [("key", pa.string()), ("tag", pa.string()), ("properties", _PROPERTIES)]
_BODY: Final = ("body", pa.binary())
SCHEMAS: Final[dict[str, Any]] = {
    "pending": pa.schema(
        [
            ("id", pa.string()),
            ("topic", pa.string()),
            ("due_ms", pa.int64()),
            ("put_ms", pa.int64()),
            ("roll_count", pa.int32()),
            ("offset", pa.int64()),
            *_COMMON,
            _BODY,
        ]
    ),
    "fired": pa.schema(
        [
            ("id", pa.string()),
            ("topic", pa.string()),
            ("due_ms", pa.int64()),
            ("fired_ms", pa.int64()),
            ("lateness_ms", pa.int64()),
            ("put_ms", pa.int64()),
            ("roll_count", pa.int32()),
            ("offset", pa.int64()),
            *_COMMON,
            _BODY,
        ]
    ),
    "messages": pa.schema(
        [
            ("offset", pa.int64()),
            ("size", pa.int32()),
            ("topic", pa.string()),
            ("queue_id", pa.int32()),
            ("queue_offset", pa.int64()),
            ("born_ms", pa.int64()),
            ("stored_ms", pa.int64()),
            ("reconsume_times", pa.int32()),
            ("unique_key", pa.string()),
            *_COMMON,
            _BODY,
        ]
    ),
}


def _id(messages: MessageRows) -> Any:
    ids = messages.text("key")
    return ids.fill_null("") if ids.null_count else ids


_COMMON_MAKERS: Final[dict[str, Maker]] = {
    "offset": lambda m: m.number("offset"),
    "topic": lambda m: m.topics,
    "key": lambda m: m.part("keys"),
    "tag": lambda m: m.part("tags"),
    "body": lambda m: m.part("body", BINARY),
}
_TIMER_MAKERS: Final[dict[str, Maker]] = {
    **_COMMON_MAKERS,
    "id": _id,
    "due_ms": lambda m: m.number("exact_due_ms"),
    "put_ms": lambda m: m.number("born_ms"),
    "roll_count": lambda m: m.number("roll_times", INT),
    "properties": lambda m: m.user_properties(),
}
MAKERS: Final[dict[str, dict[str, Maker]]] = {
    "pending": {**_TIMER_MAKERS, "topic": lambda m: m.text("real_topic")},
    "fired": {
        **_TIMER_MAKERS,
        "fired_ms": lambda m: m.number("stored_ms"),
        "lateness_ms": lambda m: m.lateness(),
    },
    "messages": {
        **_COMMON_MAKERS,
        "size": lambda m: m.number("size", INT),
        "queue_id": lambda m: m.number("queue_id", INT),
        "queue_offset": lambda m: m.number("queue_index"),
        "born_ms": lambda m: m.number("born_ms"),
        "stored_ms": lambda m: m.number("stored_ms"),
        "reconsume_times": lambda m: m.part_number("reconsumes"),
        "unique_key": lambda m: m.text("key"),
        "properties": lambda m: m.properties(),
    },
}
"""How each column of `SCHEMAS` is made."""
