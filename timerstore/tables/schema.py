"""The tables of a store: each column with its type, its unit, what it means.

`docs/spark.md` shows the same, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
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
    of: str = ""
    """What the rows that were read have as this column: see `rows.py`. Empty: its name."""
    least: int | None = None
    """What is below is null."""
    asked: bool = False


class Table(NamedTuple):
    """One table."""

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

    def choose(self, names: Iterable[str]) -> tuple[Column, ...]:
        """Return some columns by their names."""
        return tuple(map(self.find, names))


STORE_COLUMN: Final = Column(STORE, STRING, "path of the store; only if several stores are read")
_asked: Final = partial(Column, asked=True)
_BODY_COLUMN: Final = _asked(BODY, BINARY, "the payload")


def _time(
    name: str, meaning: str, of: str, least: int | None = None, *, asked: bool = False
) -> list[Column]:
    """Make a time in UTC, with its exact milliseconds beside it."""
    exact = f"the same, ms since 1970 UTC: {meaning}"
    kinds = (name, TIMESTAMP, meaning), (f"{name}_ms", BIGINT, exact)
    return [Column(*each, of, least, asked) for each in kinds]


_MESSAGES: Final = Table(
    "messages",
    "a message of the commit log, in the order of the log",
    (
        Column("offset", BIGINT, "where it begins in the commit log, bytes"),
        Column("size", INT, "bytes of the whole message"),
        Column("topic", STRING, "the topic it is stored under: a pending timer's is the system's"),
        Column("queue_id", INT, "its queue in that topic"),
        Column("queue_offset", BIGINT, "index of its entry in that queue", "queue_index"),
        *_time("born", "when it was put", "born_ms"),
        *_time("stored", "when it was appended", "stored_ms"),
        Column("key", STRING, "the user's key (property KEYS), or null", "keys"),
        Column("tag", STRING, "the user's tag (property TAGS), or null", "tags"),
        Column("unique_key", STRING, "the id (property UNIQ_KEY), or null", "key"),
        Column("properties", MAP, "all properties; if a name stands there twice, its last value"),
        Column("crc_ok", BOOLEAN, "whether its checksum matches"),
        _asked("reconsume_times", INT, "how often a consumer sent it back", "reconsumes"),
        _asked("flag", INT, "the producer's flag"),
        _asked("system_flag", INT, "bits of RocketMQ: IPv6 hosts, transaction, ..."),
        _asked("tags_code", BIGINT, "the tags code that its queue entry must have"),
        _asked("body_size", INT, "bytes of the body", "body_bytes"),
        _asked("real_topic", STRING, "the topic under which a timer fires (property REAL_TOPIC)"),
        _asked(
            "real_queue_id", INT, "its queue in that topic (property REAL_QID)", "real_queue", 0
        ),
        _asked("out_ms", BIGINT, "property TIMER_OUT_MS, ms since 1970 UTC", "due_ms", 0),
        *_time("due", "when the timer may first be handed out", "exact_due_ms", 0, asked=True),
        _asked("roll_count", INT, "how often it was appended again", "roll_times"),
        _asked("origin", BIGINT, "commit log offset of what this is a copy of", least=0),
        _asked("is_pending", BOOLEAN, "it stands in the timer topic"),
        _asked("is_delete", BOOLEAN, "it cancels a timer"),
        _asked("is_replacement", BOOLEAN, "it replaces a timer that was moved"),
        _asked("identity_high", BIGINT, "with identity_low what tells this timer, ..."),
        _asked("identity_low", BIGINT, "... of a delete its target, over rolls"),
        _asked("level", INT, "delay level (property DELAY), or null", least=0),
        _BODY_COLUMN,
    ),
)

_FIRED: Final = Table(
    "fired",
    "a message that a timer became when it fired, in the order of the log",
    (
        Column("id", STRING, "the timer's id", "key"),
        Column("topic", STRING, "its topic"),
        Column("key", STRING, "the user's key, or null", "keys"),
        *_time("due", "when it was to fire", "exact_due_ms", 0),
        *_time("fired", "when it was appended under its topic", "stored_ms"),
        Column("lateness_ms", BIGINT, "fired_ms - due_ms, ms"),
        Column(
            "roll_count", INT, "how often its message was appended again on its way", "roll_times"
        ),
        Column("offset", BIGINT, "where it begins in the commit log, bytes"),
        _asked("size", INT, "bytes of the whole message"),
        _asked("queue_id", INT, "its queue"),
        _asked("queue_offset", BIGINT, "index of its entry in that queue", "queue_index"),
        *_time("put", "when it was put", "born_ms", asked=True),
        _asked("tag", STRING, "the user's tag, or null", "tags"),
        _asked("properties", MAP, "the user's properties", "user_properties"),
        _asked("origin", BIGINT, "offset of the message it is a copy of, or null", least=0),
        _asked("identity_high", BIGINT, "with identity_low what tells this timer, ..."),
        _asked("identity_low", BIGINT, "... over rolls"),
        _asked("crc_ok", BOOLEAN, "whether its checksum matches"),
        _BODY_COLUMN,
    ),
)

_TIMERS: Final = Table(
    "timers",
    "a pending timer, in the order of the timer log",
    (
        Column("id", STRING, "the timer's id", "key"),
        Column("topic", STRING, "the topic it will fire under", "real_topic"),
        Column("key", STRING, "the user's key, or null", "keys"),
        *_time("put", "when it was put", "born_ms"),
        *_time("due", "when it may first be handed out", "exact_due_ms"),
        Column(
            "roll_count", INT, "how often its message was appended again on its way", "roll_times"
        ),
        *_time(
            "slot_time",
            "when the slot that it waits in begins; null before it has a unit",
            "slot_ms",
            0,
        ),
        Column(
            "unit_offset",
            BIGINT,
            "its unit in the timer log, bytes; null before it has one",
            "unit",
            0,
        ),
        Column("message_offset", BIGINT, "its latest message in the commit log, bytes", "offset"),
        _asked("message_size", INT, "bytes of that message", "size"),
        _asked("queue_offset", BIGINT, "that message's index in the timer queue", "queue_index"),
        _asked("queue_id", INT, "the queue it will fire into", "real_queue", 0),
        _asked("tag", STRING, "the user's tag, or null", "tags"),
        _asked("properties", MAP, "the user's properties", "user_properties"),
        _BODY_COLUMN,
    ),
)

_UNITS: Final = Table(
    "units",
    "a unit of the timer log, in the order of the log",
    (
        Column("offset", BIGINT, "where it begins in the timer log, bytes"),
        Column(
            "prev_pos", BIGINT, "offset of its slot's previous unit; -1: it is the first", "prev"
        ),
        Column("magic", INT, "1, | 2 a roll, | 4 a delete, | 8 linked by a hop"),
        Column("is_roll", BOOLEAN, "its slot is a hop on the way"),
        Column("is_hop", BOOLEAN, "a hop linked it: an earlier unit leads to its message too"),
        Column("is_delete", BOOLEAN, "it cancels a timer"),
        *_time("written", "when it was written, rounded down to the precision", "write_ms"),
        *_time("due", "the unit's own time: when its slot takes it; of a roll the hop's", "ms"),
        Column("message_offset", BIGINT, "its message in the commit log, bytes", "message"),
        Column("message_size", INT, "bytes of that message", "size"),
        Column("topic_hash", INT, "Java's hash of the topic it will fire under"),
        Column("crc_ok", BOOLEAN, "whether it is sound; a broker's has no checksum to check"),
        _asked("slot", BIGINT, "number of its slot: due_ms / precision"),
        _asked("extra", BIGINT, "the last 4 bytes: see docs/format.md"),
        _asked("by_broker", BOOLEAN, "a broker wrote it"),
        _asked("status", INT, "0 sound, 1 no unit, 2 its checksum does not match"),
    ),
)

_SLOTS: Final = Table(
    "slots",
    "a used slot of the timer wheel, in the order of the ring",
    (
        Column("index", BIGINT, "its place in the ring, counted from 0"),
        *_time("time", "when it begins", "time_ms", 0),
        Column("first", BIGINT, "offset of its first unit in the timer log, bytes"),
        Column("last", BIGINT, "offset of its last unit, bytes: the chain's head"),
        Column("count", INT, "units - 2 x deletes"),
        _asked("slot", BIGINT, "its number: time_ms / precision", "time"),
        _asked("magic", INT, "0"),
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
    return schema_of(find_table(table).choose(columns))


def schema_of(columns: Iterable[Column]) -> Any:
    """Return the Arrow schema of columns."""
    return pa.schema([(column.name, ARROW_TYPES[column.kind]) for column in columns])


SPLIT_BYTES: Final = 64 << 20
"""Of the store's bytes, in one split: a second or two of work."""
CLOCK_SLACK_MS: Final = 86_400_000
"""How far the clock may have been set back while the log was written, for filters on its times."""
