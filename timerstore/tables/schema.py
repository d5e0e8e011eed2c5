"""The tables of a store: each column with its type, its unit, what it means.

`docs/spark.md` shows the same, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from timerstore.errors import InvalidArgumentError
from timerstore.values.kinds import meant

BIGINT: Final = "bigint"
INT: Final = "int"
STRING: Final = "string"
BOOLEAN: Final = "boolean"
BINARY: Final = "binary"
TIMESTAMP: Final = "timestamp"
MAP: Final = "map<string,string>"

ARROW_TYPES: Final[dict[str, Any]] = {
    BIGINT: pa.int64(),
    INT: pa.int32(),
    STRING: pa.string(),
    BOOLEAN: pa.bool_(),
    BINARY: pa.binary(),
    TIMESTAMP: pa.timestamp("us", tz="UTC"),
    MAP: pa.map_(pa.string(), pa.string()),
}
STORE: Final = "store"
BODY: Final = "body"
PAYLOAD: Final = ("tag", "properties", BODY)
"""What was put, beside topic, key, time."""


class Column(NamedTuple):
    """One column. `asked`: it is in the table only when its name is asked for."""

    name: str
    kind: str
    meaning: str
    asked: bool = False


class Table(NamedTuple):
    """One table; its rows come from `source`."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    def find(self, name: str) -> Column:
        """Return a column by its name."""
        for column in self.columns:
            if column.name == name:
                return column
        if name == STORE:
            return STORE_COLUMN
        names = [column.name for column in self.columns] + [STORE]
        raise InvalidArgumentError(
            f"The table {self.name} has no column {name!r}. {meant(name, names)}"
        )


STORE_COLUMN: Final = Column(STORE, STRING, "path of the store; only if several stores are read")
_BODY_COLUMN: Final = Column(BODY, BINARY, "the payload", asked=True)


def _time(name: str, meaning: str, *, asked: bool = False) -> tuple[Column, Column]:
    """Make a time in UTC, with its exact milliseconds beside it."""
    return (
        Column(name, TIMESTAMP, meaning, asked),
        Column(f"{name}_ms", BIGINT, f"the same, ms since 1970 UTC: {meaning}", asked),
    )


_MESSAGES: Final = Table(
    "messages",
    "a message of the commit log, in the order of the log",
    (
        Column("offset", BIGINT, "where it begins in the commit log, bytes"),
        Column("size", INT, "bytes of the whole message"),
        Column("topic", STRING, "the topic it is stored under: a pending timer's is the system's"),
        Column("queue_id", INT, "its queue in that topic"),
        Column("queue_offset", BIGINT, "index of its entry in that queue"),
        *_time("born", "when it was put"),
        *_time("stored", "when it was appended"),
        Column("key", STRING, "the user's key (property KEYS), or null"),
        Column("tag", STRING, "the user's tag (property TAGS), or null"),
        Column("unique_key", STRING, "the id (property UNIQ_KEY), or null"),
        Column("properties", MAP, "all properties; if a name stands there twice, its last value"),
        Column("crc_ok", BOOLEAN, "whether its checksum matches"),
        Column("reconsume_times", INT, "how often a consumer sent it back", asked=True),
        Column("flag", INT, "the producer's flag", asked=True),
        Column("system_flag", INT, "bits of RocketMQ: IPv6 hosts, transaction, ...", asked=True),
        Column("tags_code", BIGINT, "the tags code that its queue entry must have", asked=True),
        Column("body_size", INT, "bytes of the body", asked=True),
        Column(
            "real_topic",
            STRING,
            ("the topic under which a timer fires (property REAL_TOPIC)"),
            asked=True,
        ),
        Column("real_queue_id", INT, "its queue in that topic (property REAL_QID)", asked=True),
        Column("out_ms", BIGINT, "property TIMER_OUT_MS, ms since 1970 UTC", asked=True),
        *_time("due", "when the timer may first be handed out", asked=True),
        Column("roll_count", INT, "how often it was appended again", asked=True),
        Column("origin", BIGINT, "commit log offset of what this is a copy of", asked=True),
        Column("is_pending", BOOLEAN, "it stands in the timer topic", asked=True),
        Column("is_delete", BOOLEAN, "it cancels a timer", asked=True),
        Column("is_replacement", BOOLEAN, "it replaces a timer that was moved", asked=True),
        Column("identity_high", BIGINT, "with identity_low what tells this timer, ...", asked=True),
        Column("identity_low", BIGINT, "... of a delete its target, over rolls", asked=True),
        Column("level", INT, "delay level (property DELAY), or null", asked=True),
        _BODY_COLUMN,
    ),
)

_FIRED: Final = Table(
    "fired",
    "a message that a timer became when it fired, in the order of the log",
    (
        Column("id", STRING, "the timer's id"),
        Column("topic", STRING, "its topic"),
        Column("key", STRING, "the user's key, or null"),
        *_time("due", "when it was to fire"),
        *_time("fired", "when it was appended under its topic"),
        Column("lateness_ms", BIGINT, "fired_ms - due_ms, ms"),
        Column("roll_count", INT, "how often its message was appended again on its way"),
        Column("offset", BIGINT, "where it begins in the commit log, bytes"),
        Column("size", INT, "bytes of the whole message", asked=True),
        Column("queue_id", INT, "its queue", asked=True),
        Column("queue_offset", BIGINT, "index of its entry in that queue", asked=True),
        *_time("put", "when it was put", asked=True),
        Column("tag", STRING, "the user's tag, or null", asked=True),
        Column("properties", MAP, "the user's properties", asked=True),
        Column("origin", BIGINT, "offset of the message it is a copy of, or null", asked=True),
        Column("identity_high", BIGINT, "with identity_low what tells this timer, ...", asked=True),
        Column("identity_low", BIGINT, "... over rolls", asked=True),
        Column("crc_ok", BOOLEAN, "whether its checksum matches", asked=True),
        _BODY_COLUMN,
    ),
)

_TIMERS: Final = Table(
    "timers",
    "a pending timer, in the order of the timer log",
    (
        Column("id", STRING, "the timer's id"),
        Column("topic", STRING, "the topic it will fire under"),
        Column("key", STRING, "the user's key, or null"),
        *_time("put", "when it was put"),
        *_time("due", "when it may first be handed out"),
        Column("roll_count", INT, "how often its message was appended again on its way"),
        *_time("slot_time", "when the slot that it waits in begins; null before it has a unit"),
        Column("unit_offset", BIGINT, "its unit in the timer log, bytes; null before it has one"),
        Column("message_offset", BIGINT, "its latest message in the commit log, bytes"),
        Column("message_size", INT, "bytes of that message", asked=True),
        Column("queue_offset", BIGINT, "that message's index in the timer queue", asked=True),
        Column("queue_id", INT, "the queue it will fire into", asked=True),
        Column("tag", STRING, "the user's tag, or null", asked=True),
        Column("properties", MAP, "the user's properties", asked=True),
        _BODY_COLUMN,
    ),
)

_UNITS: Final = Table(
    "units",
    "a unit of the timer log, in the order of the log",
    (
        Column("offset", BIGINT, "where it begins in the timer log, bytes"),
        Column("prev_pos", BIGINT, "offset of its slot's previous unit; -1: it is the first"),
        Column("magic", INT, "1, | 2 a roll, | 4 a delete, | 8 linked by a hop"),
        Column("is_roll", BOOLEAN, "its slot is a hop on the way"),
        Column("is_hop", BOOLEAN, "a hop linked it: an earlier unit leads to its message too"),
        Column("is_delete", BOOLEAN, "it cancels a timer"),
        *_time("written", "when it was written, rounded down to the precision"),
        *_time("due", "the unit's own time: when its slot takes it; of a roll the hop's"),
        Column("message_offset", BIGINT, "its message in the commit log, bytes"),
        Column("message_size", INT, "bytes of that message"),
        Column("topic_hash", INT, "Java's hash of the topic it will fire under"),
        Column("crc_ok", BOOLEAN, "whether it is sound; a broker's has no checksum to check"),
        Column("slot", BIGINT, "number of its slot: due_ms / precision", asked=True),
        Column("extra", BIGINT, "the last 4 bytes: see docs/format.md", asked=True),
        Column("by_broker", BOOLEAN, "a broker wrote it", asked=True),
        Column("status", INT, "0 sound, 1 no unit, 2 its checksum does not match", asked=True),
    ),
)

_SLOTS: Final = Table(
    "slots",
    "a used slot of the timer wheel, in the order of the ring",
    (
        Column("index", BIGINT, "its place in the ring, counted from 0"),
        *_time("time", "when it begins"),
        Column("first", BIGINT, "offset of its first unit in the timer log, bytes"),
        Column("last", BIGINT, "offset of its last unit, bytes: the chain's head"),
        Column("count", INT, "units - 2 x deletes"),
        Column("slot", BIGINT, "its number: time_ms / precision", asked=True),
        Column("magic", INT, "0", asked=True),
    ),
)

_QUEUES: Final = Table(
    "queues",
    "an entry of a consume queue, queue by queue",
    (
        Column("topic", STRING, "the queue's topic"),
        Column("queue_id", INT, "the queue"),
        Column("index", BIGINT, "the entry's place in the queue, counted from 0"),
        Column("offset", BIGINT, "its message in the commit log, bytes"),
        Column("size", INT, "bytes of that message"),
        Column("tags_code", BIGINT, "Java's hash of the tag; of a delay level the due time, ms"),
    ),
)

_CHECKPOINT: Final = Table(
    "checkpoint",
    "a cursor of the last checkpoint",
    (
        Column("name", STRING, "see the list of cursors in docs/spark.md"),
        Column("value", BIGINT, "its value"),
    ),
)

_PROBLEMS: Final = Table(
    "problems",
    "a place that could not be read, or whose bytes are not what was written there",
    (
        Column("file", STRING, "the file, or the folder of segments"),
        Column("offset", BIGINT, "where in it, bytes over all segments"),
        Column("reason", STRING, "what is wrong"),
    ),
)

TABLES: Final[dict[str, Table]] = {
    table.name: table
    for table in (*(_MESSAGES, _QUEUES, _UNITS, _SLOTS, _TIMERS, _FIRED, _CHECKPOINT, _PROBLEMS),)
}


def find_table(name: str) -> Table:
    """Return a table by its name."""
    if not isinstance(name, str) or name not in TABLES:
        raise InvalidArgumentError(f"There is no table {name!r}. {meant(name, TABLES)}")
    return TABLES[name]


def default_columns(table: str, *, several: bool = False, body: bool = False) -> tuple[str, ...]:
    """Return the columns of a table if none are named.

    `several`: with the store's path. `body`: with all that was put.
    """
    payload = PAYLOAD if body else ()
    columns = find_table(table).columns
    names = [each.name for each in columns if not each.asked or each.name in payload]
    return (STORE, *names) if several or table == "problems" else tuple(names)


def arrow_schema(table: str, columns: Sequence[str]) -> Any:
    """Return the Arrow schema of some columns of a table."""
    found = [find_table(table).find(name) for name in columns]
    return pa.schema([(column.name, ARROW_TYPES[column.kind]) for column in found])


SPLIT_BYTES: Final = 64 << 20
"""Of the store's bytes, in one split: a second or two of work."""
CLOCK_SLACK_MS: Final = 86_400_000
"""How far the clock may have been set back while the log was written, for filters on its times."""
