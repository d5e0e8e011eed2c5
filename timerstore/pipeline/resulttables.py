"""The result tables: each column with its type, what it means.

`docs/pipeline.md` shows the same, and a test compares the two. `VERSION` grows by one when a column
goes, or comes to mean something else; a new column does not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from timerstore.audit.sentences import readable
from timerstore.errors import InvalidArgumentError
from timerstore.values.kinds import meant
from timerstore.values.moments import LAST_MS

VERSION: Final = 1
_ORDERED: Final = 3
"""Columns of a query by which its rows are sorted; together they differ."""

_TEXT, _LONG, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_TIME, _LONGS = pa.timestamp("us", tz="UTC"), pa.list_(pa.int64())
_PLACES = pa.list_(pa.struct([("file", _TEXT), ("offset", _LONG), ("reason", _TEXT)]))


_NAMES: Final[dict[Any, str]] = {
    _TEXT: "string",
    _LONG: "bigint",
    _REAL: "double",
    _FLAG: "boolean",
    _TIME: "timestamp",
    _LONGS: "array<bigint>",
    _PLACES: "array<struct<file:string,offset:bigint,reason:string>>",
}


class ResultColumn(NamedTuple):
    """One column. Times are UTC; beside each timestamp stands the same in ms since 1970."""

    name: str
    kind: Any
    meaning: str

    @property
    def kind_name(self) -> str:
        """Its type as Spark names it."""
        return _NAMES[self.kind]


class ResultTable(NamedTuple):
    """One table; a row is what `meaning` says."""

    name: str
    meaning: str
    columns: tuple[ResultColumn, ...]
    by_store: bool = True
    """Each store has files of its own; else a run has one."""

    @property
    def schema(self) -> Any:
        """The Arrow schema, without the columns `day` and `store`, which folders say."""
        return pa.schema([(each.name, each.kind) for each in self.columns])

    def completed(self, rows: Any) -> Any:
        """Return what a query returned as this table has it: with timestamps, and in an order."""
        names = rows.column_names
        rows = rows.sort_by([(name, "ascending") for name in names[:_ORDERED]])
        none = pa.nulls(len(rows))
        made = [
            (rows.column(each.name) if each.name in names else none).cast(each.kind)
            for each in self.columns
        ]
        return self._timed(pa.table(made, schema=self.schema))

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Return an Arrow table of dicts; timestamps whose ms they have are added."""
        try:
            made = pa.Table.from_pylist([dict(row) for row in rows], schema=self.schema)
        except UnicodeEncodeError:
            plain = [_readable(dict(row)) for row in rows]
            made = pa.Table.from_pylist(plain, schema=self.schema)
        return self._timed(made)

    def _timed(self, rows: Any) -> Any:
        """Fill in the timestamps; what none can show is the last that is."""
        names = self.schema.names
        for at, each in enumerate(self.columns):
            if f"{each.name}_ms" in names:
                ms = pc.min_element_wise(rows.column(f"{each.name}_ms"), LAST_MS, skip_nulls=False)
                times = pc.multiply(ms, 1_000).cast(pa.timestamp("us")).cast(each.kind)
                rows = rows.set_column(at, self.schema.field(at), times)
        return rows


def _readable(value: Any) -> Any:
    """Return a value in which all texts are readable, however deep they stand."""
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, Mapping):
        return {name: _readable(each) for name, each in value.items()}
    return [_readable(each) for each in value] if isinstance(value, list | tuple) else value


def _columns(*columns: tuple[str, Any, str]) -> tuple[ResultColumn, ...]:
    return tuple(ResultColumn(*each) for each in columns)


_RUN = ("run", _TEXT, "the run that wrote the row")
_AT = (
    "at",
    _TIME,
    ("as of when the rows are true: when an open store was read, else the read cursor"),
)
_TABLES: Final = (
    ResultTable(
        "runs",
        "a run that has ended; rows of other tables count only if their run is here",
        _columns(
            ("run", _TEXT, "its name"),
            ("version", _LONG, "of these tables"),
            ("timerstore", _TEXT, "the version that wrote it"),
            ("began", _TIME, "when it began"),
            ("ended", _TIME, "when it ended"),
            ("seconds", _REAL, "how long it took"),
            ("verdict", _TEXT, "the worst of its stores: ok, warn or fail"),
            ("stores", _LONG, "how many it was asked for"),
            ("unreadable", _LONG, "how many of them could not be read"),
            ("messages", _LONG, "how many it looked at"),
            ("units", _LONG, "how many it looked at"),
            ("thresholds", _TEXT, "the limits of its rules, as JSON"),
        ),
        by_store=False,
    ),
    ResultTable(
        "metrics",
        "what a part of a run took",
        _columns(
            _RUN,
            (
                "part",
                _TEXT,
                "store: all of it but the rules; query: one that joins what the parts of stores "
                "say, of all stores; rule: asking it of all stores",
            ),
            ("name", _TEXT, "the store's, the query's or the rule's"),
            ("rows", _LONG, "messages, units, entries of a store; what a rule returned; else null"),
            ("bytes", _LONG, "of a store that were looked at, else null"),
            ("seconds", _REAL, "how long it took; on Spark several stores may be read at once"),
        ),
        by_store=False,
    ),
    ResultTable(
        "stores",
        "a store in a run, also one that could not be read",
        _columns(
            _RUN,
            _AT,
            ("at_ms", _LONG, "the same, ms"),
            ("path", _TEXT, "where it lies"),
            ("state", _TEXT, "sound, damaged or unreadable"),
            ("error", _TEXT, "why it could not be read, else null"),
            ("verdict", _TEXT, "the worst of its findings: ok, warn or fail"),
            ("by_broker", _FLAG, "RocketMQ wrote last"),
            ("was_open", _FLAG, "it is open, or was not closed"),
            (
                "is_copy",
                _FLAG,
                "it is a backup or a standby, read as the store that it would become",
            ),
            ("stands_ms", _LONG, "up to where it has fired, the read cursor, ms"),
            ("precision_ms", _LONG, "how long a slot is"),
            ("ring_slots", _LONG, "slots of the ring, twice those of the wheel"),
            ("window_slots", _LONG, "the roll window; null in a broker's store"),
            ("log_bytes", _LONG, "of the commit log that were looked at"),
            ("unit_bytes", _LONG, "of the timer log"),
            ("messages", _LONG, "in the commit log"),
            ("entries", _LONG, "of queues"),
            ("units", _LONG, "in the timer log"),
            ("slots", _LONG, "used slots of the wheel"),
            ("timers", _LONG, "put, of those whose message is there"),
            ("pending", _LONG, "timers that wait, those in delay levels too"),
            ("in_levels", _LONG, "of them in delay levels"),
            ("fired", _LONG, "messages that timers became"),
            ("rolls", _LONG, "copies for a later slot"),
            ("deletes", _LONG, "messages that cancel a timer"),
            ("rolling", _LONG, "timers that wait for their next roll"),
            (
                "hops",
                _LONG,
                ("how many rolls they still need together; of a broker's store at least so many"),
            ),
            ("hop_bytes", _LONG, "the bytes that these rolls will write"),
            (
                "due_profile",
                _LONGS,
                "pending: within a day by UTC hour, then by days ahead up to 30, later, overdue",
            ),
            ("late_profile", _LONGS, "fired within a day, by lateness: 0 ms, 1, 2–3, 4–7, …"),
            ("load_profile", _LONGS, "slots ahead by the timers that fire in them: 1, 2–3, 4–7, …"),
        ),
    ),
    ResultTable(
        "findings",
        "a rule's verdict on a store",
        _columns(
            _RUN,
            ("rule", _TEXT, "its name"),
            ("kind", _TEXT, "consistency (docs/validate.md), distribution, or own: your rules"),
            ("verdict", _TEXT, "ok, warn or fail"),
            ("value", _REAL, "what was measured; of consistency how many places failed"),
            ("warn", _REAL, "above this it warns; null of consistency"),
            ("fail", _REAL, "above this it fails; null of consistency"),
            ("checked", _LONG, "how many places were looked at"),
            ("mended", _LONG, "places that the next opening mends"),
            ("says", _TEXT, "a sentence with the numbers"),
            ("advice", _TEXT, "what to do if the verdict is not ok"),
            ("places", _PLACES, "the first places"),
        ),
    ),
    ResultTable(
        "slot_load",
        "a slot that is not passed, and has units or should have some",
        _columns(
            _RUN,
            ("slot", _LONG, "its number: time_ms / precision"),
            ("index", _LONG, "its place in the ring; null if the wheel does not have the slot"),
            ("time", _TIME, "when it begins"),
            ("time_ms", _LONG, "the same, ms"),
            ("units", _LONG, "of the slot in the timer log, dead ones too"),
            ("live", _LONG, "of them neither deletes nor superseded"),
            ("fires", _LONG, "timers that are due in it, those that are cancelled left out"),
            ("deletes", _LONG, "of them deletes; each has a dead unit beside it"),
            ("superseded", _LONG, "of them those that moved elsewhere, by cleaning or by a hop"),
            (
                "rolls",
                _LONG,
                "timers on the way to a later slot, those that are cancelled left out",
            ),
            (
                "late",
                _LONG,
                "of the live ones: those put when their own slot was passed or claimed",
            ),
            (
                "expected",
                _LONG,
                ("live units that belong in this slot by the due times of their messages"),
            ),
            ("depth", _LONG, "units that the slot's chain leads to"),
            ("bytes", _LONG, "of the live ones' messages"),
            ("read_bytes", _LONG, "of the commit log's pages that firing them reads"),
            ("top_topic", _TEXT, "the topic that most of the live ones have"),
            ("top_units", _LONG, "how many have it"),
        ),
    ),
    ResultTable(
        "due",
        "the pending timers of a topic that fall due within a minute",
        _columns(
            _RUN,
            ("topic", _TEXT, "the topic"),
            ("minute", _TIME, "when the minute begins"),
            ("minute_ms", _LONG, "the same, ms"),
            ("hour_ms", _LONG, "the begin of its hour, ms"),
            ("day_ms", _LONG, "the begin of its day, ms"),
            ("timers", _LONG, "how many"),
        ),
    ),
    ResultTable(
        "lateness",
        "how many timers a topic fired within an hour with this lateness; rows can be added over "
        "hours, topics and stores",
        _columns(
            _RUN,
            ("topic", _TEXT, "the topic"),
            ("hour", _TIME, "when the hour begins in which it fired"),
            ("hour_ms", _LONG, "the same, ms"),
            ("late_ms", _LONG, "exact up to 1,023 ms, above rounded down by less than 0.2 %"),
            ("fired", _LONG, "how many"),
        ),
    ),
    ResultTable(
        "groups",
        "a group and a queue that it reads",
        _columns(
            _RUN,
            ("group", _TEXT, "the group"),
            ("topic", _TEXT, "the topic; of retries and dead letters the group's own"),
            ("queue_id", _LONG, "the queue"),
            ("kind", _TEXT, "topic, retry or dead"),
            ("committed", _LONG, "index of the first message that it has not read"),
            ("end", _LONG, "index behind the last message"),
            ("lag", _LONG, "messages that it has not read"),
            ("oldest", _TIME, "when the first of them was stored; null if there is none"),
            ("oldest_ms", _LONG, "the same, ms"),
        ),
    ),
    ResultTable(
        "growth",
        "messages of one kind that were appended within an hour, as far as the log still has them",
        _columns(
            _RUN,
            ("hour", _TIME, "when the hour begins"),
            ("hour_ms", _LONG, "the same, ms"),
            ("kind", _TEXT, "put, fired, moved (rolled or cleaned), cancelled or other"),
            ("messages", _LONG, "how many"),
            ("bytes", _LONG, "of them in the commit log"),
        ),
    ),
)
TABLES: Final = {table.name: table for table in _TABLES}
"""By name, in the order in which they are shown."""
FIRED_LATENESS: Final = ResultTable(
    "fired_lateness",
    "how many timers a topic fired within an hour with this lateness, in one batch of a stream; "
    "rows can be added",
    TABLES["lateness"].columns[1:],
)
"""Beside `fired`, which has the columns of that table in docs/spark.md."""


def find_result_table(name: Any) -> ResultTable:
    """Return a table by its name. Raises InvalidArgumentError."""
    if name not in TABLES:
        raise InvalidArgumentError(f"There is no result table {name!r}. {meant(name, TABLES)}")
    return TABLES[name]
