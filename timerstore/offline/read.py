"""A table of a store as one Arrow table, for pandas, Polars or DuckDB."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Literal

import pyarrow as pa

from timerstore.copies.lookat import look_at
from timerstore.errors import InvalidArgumentError
from timerstore.tables.bounds import parse_where
from timerstore.tables.reading import read_table
from timerstore.tables.schema import find_table
from timerstore.tables.view import UpTo
from timerstore.values.config import DELAY_LEVELS
from timerstore.values.kinds import check_bool, check_choice, check_kind, check_names


def read(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    table: str = "timers",
    columns: Sequence[str] | None = None,
    where: str | None = None,
    *,
    body: bool = False,
    mode: Literal["permissive", "failfast"] = "permissive",
    upto: UpTo | None = None,
    delay_levels: str = DELAY_LEVELS,
) -> pa.Table:
    """Return a table of a store as a `pyarrow.Table`, without opening the store.

    Nothing is changed, no lock is taken: the store may be in use, here or elsewhere, be a copy, or
    a RocketMQ broker's. Of one in use it shows the last checkpoint, at most half a second old;
    after `store.flush()` all that was put before.

    A backup, by its folder or its address, and a standby are read as the store that they would
    become, which takes as much room below TMPDIR as the log has bytes.

    `path`: a store; or a list of stores, a folder of them, or a pattern such as "nightly/*", and
    then the column `store` says which a row is of. `table`: "timers" is what is pending, "fired"
    what has fired; also "messages", "queues", "units", "slots", "checkpoint", "problems". The page
    "Spark: a store as tables" shows their columns. `columns`: those that are wanted, none else is
    read. `body`: if no columns are named, those with the payload too (`tag`, `properties`,
    `body`). `where`: rows that are wanted, such as "due < '2026-11-22' and topic = 'mail'"; times
    are UTC. `mode`: what cannot be read is left out, and is in the table "problems"; "failfast"
    raises CorruptStoreError. Of timers, columns that units say (`unit_offset`, `slot_time`, `due`,
    …) read no message, so only "failfast" sees one that is damaged. `upto`: "end" to read
    beyond the last checkpoint, "checkpoint" not to. `delay_levels`: those of the store's
    configuration, if it has its own.

    Raises NotAStoreError, InvalidArgumentError, CorruptStoreError. O(what is read); the table is
    in memory as a whole.

    >>> timerstore.read("timers/", columns=["due", "topic"], where="topic = 'mail'").num_rows
    0
    """
    name = find_table(table).name
    if columns is not None:
        columns = check_names(columns, "columns")
        if not columns:
            raise InvalidArgumentError(
                "columns is empty. Name a column, or leave columns out to get all."
            )
        twice = [each for i, each in enumerate(columns) if each in columns[:i]]
        if twice:
            raise InvalidArgumentError(f"columns names {twice[0]!r} twice. Name each column once.")
    if where is not None:
        check_kind(where, str, "where")
    check_bool(body, "body")
    check_choice(mode, "mode", ("permissive", "failfast"))
    check_kind(delay_levels, str, "delay_levels")
    return read_table(
        path,
        name,
        columns,
        None if where is None else parse_where(where, name),
        body=body,
        failfast=mode == "failfast",
        upto=upto,
        delay_levels=delay_levels,
        look=look_at,
    )
