"""A stream of what is appended: the messages, or the fired timers, of one store or several.

The offset of the stream is the commit log's, for each store, with what tells which log that is:
`{"timers/": {"offset": 1234, "store_tag": 77, "restores": [...]}}`. It always stands where a
message begins, so a batch that Spark asks for again is the same batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from timerstore.copies.chains import Restores, read_restores, shared_end
from timerstore.copies.destination import is_copy
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.spark.options import ReadOptions, check_schema
from timerstore.spark.partitions import SplitPartition, read_partition
from timerstore.spark.short_errors import plainly
from timerstore.tables.splits import log_end, message_from, plan_log
from timerstore.tables.view import StoreView, cut_store

STREAMED = ("messages", "fired")


class Place(TypedDict):
    """How far one store was read. `restores`: how it had been restored by then."""

    offset: int
    store_tag: int
    restores: Restores


Offsets = dict[str, Place]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is appended to commit logs."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Check that the table is one that only grows."""
        if options.table not in STREAMED:
            raise InvalidArgumentError(
                f"The table {options.table} cannot be streamed. Use {', '.join(STREAMED)}."
            )
        self.options, self.schema = options, schema
        check_schema(options.table, schema)
        self._target: Offsets | None = None

    def _views(self) -> list[StoreView]:
        """Look at the stores now."""
        options, paths = self.options, self.options.stores().paths
        for path in filter(is_copy, paths):
            raise InvalidArgumentError(
                f"{path} is a copy, to which nothing is appended. Stream the store, or read the "
                "copy without a stream."
            )
        # What is behind the checkpoint may be lost yet, and others be put in its place.
        upto, levels = options.upto or "checkpoint", options.delay_levels
        return [cut_store(path, upto=upto, delay_levels=levels) for path in paths]

    @plainly
    def initialOffset(self) -> Offsets:  # noqa: N802
        """Return where a new stream begins."""
        if self.options.starting == "latest":
            return self._ends({})
        return {view.cut.path: _place(view, view.reader.commitlog.start) for view in self._views()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much one batch takes at most."""
        limit = self.options.max_bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    @plainly
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Return how far the next batch goes."""
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        ends = {}
        for view in self._views():
            path = view.cut.path
            first = max(_offset(view, start), view.reader.commitlog.start)
            end = max(first, log_end(view, first))
            if most is not None and end - first > most:
                end = message_from(view, first + most, end)
            if self._target is not None:
                end = max(first, min(end, _offset(view, self._target)))
            ends[path] = _place(view, end)
        # A store that is gone keeps its place, because it may come back.
        return {**start, **ends}

    def _ends(self, start: Offsets) -> Offsets:
        return {
            view.cut.path: _place(view, log_end(view, _offset(view, start)))
            for view in self._views()
        }

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the logs end now: nothing behind is read."""
        self._target = self._ends({})

    @plainly
    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Plan one batch."""
        found: list[InputPartition] = []
        for view in self._views():
            log = view.reader.commitlog
            first = _offset(view, start) if view.cut.path in start else log.start
            stop = _offset(view, end)
            if stop <= first:
                continue
            if self.options.failfast and first < log.start:
                raise CorruptStoreError(
                    "commitlog",
                    first,
                    ("the messages that the stream would read next were removed"),
                )
            splits = plan_log(view, self.options.table, first, stop, self.options.split_bytes)
            found += [SplitPartition(split) for split in splits]
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a partition; runs in a task."""
        return read_partition(partition, self.options, self.schema)


def _place(view: StoreView, offset: int) -> Place:
    reader = view.reader
    restores = read_restores(reader.path, reader.steady.read)
    return {"offset": offset, "store_tag": reader.store_tag, "restores": restores}


def _offset(view: StoreView, places: Offsets) -> int:
    """Return how far the log that is there now was read.

    A store that was made anew under the path was not read at all; what was restored since has
    another log from where it was cut to.
    """
    known = places.get(view.cut.path)
    if known is None or known["store_tag"] != view.reader.store_tag:
        return 0
    end = shared_end(known["restores"], _place(view, 0)["restores"])
    return min(known["offset"], end)
