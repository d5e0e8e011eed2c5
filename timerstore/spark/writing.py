"""Scheduling the rows of a DataFrame: into new stores, one a partition, or into one that is there.

New stores are made in a folder whose name begins with `_`, where no reader looks, and appear all at
once, when the job is done:

    PATH/load-20261121-140709-5f2a/part-00000/     one store for each partition that had rows
    PATH/load-20261121-140709-5f2a/part-00001/

Rows for a store that is there are written to files beside it first; then one process puts them.
"""

from __future__ import annotations

import shutil
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.share import opening
from timerstore.spark.batchrows import check_rows, put_rows, used
from timerstore.spark.short_errors import plainly
from timerstore.tables.stores import is_store
from timerstore.timelog.files.oserrors import told_of
from timerstore.values.config import Config
from timerstore.values.ids import format_id, parse_id
from timerstore.values.kinds import check_path, meant
from timerstore.values.write_file import sync

if TYPE_CHECKING:
    from timerstore.store.store import TimerStore


_OPTIONS: Final = ("path", "topic", "into")
LOAD: Final = "load-"
HIDDEN: Final = "_loading-"
_GOES_ON: Final = "_goes_on"
"""The mark of a job that was not ended."""
_REPLACED: Final = "_replaced-"


@dataclass(frozen=True)
class WriteOptions:
    """What was asked for; docs/spark.md tells of each."""

    path: Path
    topic: str
    into: str
    config: Config


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a DataFrameWriter; names are in lower case."""
    settings = {field.name for field in fields(Config)}
    unknown = sorted(set(options) - settings - set(_OPTIONS))
    if unknown:
        known = (*_OPTIONS, *sorted(settings))
        raise InvalidArgumentError(f"There is no option {unknown[0]!r}. {meant(unknown[0], known)}")
    if not options.get("path"):
        raise InvalidArgumentError("There is no path. Pass a folder to save().")
    into = options.get("into", "stores")
    if into not in ("stores", "store"):
        raise InvalidArgumentError(f"into is {into!r}. Use stores or store.")
    # A job is durable as a whole when it is done: closing a store flushes it.
    chosen = {"durability": "process"} | {
        name: value for name, value in options.items() if name in settings
    }
    config = Config.from_env({f"TIMERSTORE_{name.upper()}": each for name, each in chosen.items()})
    path = check_path(options["path"].removeprefix("file://").removeprefix("file:"))
    return WriteOptions(path, options.get("topic", "default"), into, config)


# --- the job


class Written(WriterCommitMessage):
    """What one task wrote: its job; the name of its store or file in it, "" if it had no rows."""

    def __init__(self, job: str, part: int, name: str) -> None:
        self.job, self.part, self.name = job, part, name


def _parts(messages: Iterable[WriterCommitMessage | None]) -> list[Written]:
    """Return what was written, in the order of the partitions."""
    parts = [each for each in messages if isinstance(each, Written) and each.name]
    return sorted(parts, key=lambda each: each.part)


class _JobWriter(DataSourceArrowWriter):
    """What both ways of writing share: a hidden folder that the tasks write into."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_rows(schema)
        self.options = options
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        self.job = f"{now}-{uuid.uuid4().hex[:8]}"
        self.staging = self._staging()

    def _staging(self) -> Path:
        path = self.options.path.absolute()
        return path.parent / f"{HIDDEN}{path.name}-{self.job}"

    @plainly
    def write(self, iterator: Iterator[Any]) -> Written:
        """Write one partition; runs in a task, may be run again, or twice at once."""
        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        attempt = context.taskAttemptId() if context is not None else 0
        target = self.staging / f"part-{part:05d}-{attempt}"
        try:
            self._check_goes_on()
            rows = (used(batch) for batch in iterator if batch.num_rows)
            count = self._write_part(rows, target)
            self._check_goes_on()
        except BaseException:
            remove(target if self._goes_on() else self.staging)  # made again behind its end
            raise
        return Written(self.job, part, target.name if count else "")

    @abstractmethod
    def _write_part(self, batches: Iterator[Any], target: Path) -> int: ...

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks wrote: nothing of it was to be seen.

        Spark does not wait for tasks that still run; they find no mark, and remove what they made.
        """
        ended = self.staging.with_name(f"{self.staging.name}-ended")
        with suppress(FileNotFoundError):
            self.staging.rename(ended)
        remove(ended)

    def _begin(self) -> None:
        """Make the folder, with the mark that the job goes on; before any task runs."""
        with told_of(self.options.path):
            self.staging.mkdir(parents=True)
            (self.staging / _GOES_ON).touch()

    def _goes_on(self) -> bool:
        return (self.staging / _GOES_ON).exists()

    def _check_goes_on(self) -> None:
        if not self._goes_on():
            raise TimerStoreError("The job was ended while this task ran. Run the job again.")


class NewStoresWriter(_JobWriter):
    """Makes a store for each partition that has rows."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Refuse a path that holds anything but loads."""
        self.overwrite = overwrite
        super().__init__(options, schema)
        check_loads(options.path)
        self._begin()

    def _staging(self) -> Path:
        path = self.options.path.absolute()
        return super()._staging() if self.overwrite else path / f"{HIDDEN}{self.job}"

    def _write_part(self, batches: Iterator[Any], target: Path) -> int:
        """Make a store; closing it makes it durable."""
        return make_store(batches, target, self.options)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Let the stores appear, all at once: with one rename."""
        path, staging = self.options.path.absolute(), self.staging
        parts = _parts(messages)
        if self.overwrite:
            _gather(staging, parts, staging / f"{LOAD}{self.job}")
            _exchange(staging, path, path.parent / f"{_REPLACED}{path.name}-{self.job}")
        elif parts:
            show_load(staging, parts, path / f"{LOAD}{self.job}")
        else:
            remove(staging)


class AppendWriter(_JobWriter):
    """Puts the rows into one store, which one process can have open at a time."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Refuse to overwrite: a store's timers are cancelled one by one, or not at all."""
        if overwrite:
            raise InvalidArgumentError("A store cannot be overwritten. Use mode append.")
        super().__init__(options, schema)
        self._begin()

    def _write_part(self, batches: Iterator[Any], target: Path) -> int:
        """Write the rows to a file beside the store."""
        first = next(batches, None)
        if first is None:
            return 0
        count = 0
        with pa.OSFile(str(target), "wb") as file, pa.ipc.new_file(file, first.schema) as writer:
            for batch in chain((first,), batches):
                writer.write_batch(batch)
                count += batch.num_rows
        return count

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Put all rows, and flush. If that fails, what was put is cancelled."""
        try:
            with opening.open(self.options.path, config=self.options.config) as store:
                start = store.core.engine.commitlog.end
                try:
                    for each in _parts(messages):
                        with pa.memory_map(str(self.staging / each.name)) as file:
                            reader = pa.ipc.open_file(file)
                            batches = map(reader.get_batch, range(reader.num_record_batches))
                            _put_all(store, batches, self.options.topic)
                except BaseException:
                    _take_back(store, start)
                    raise
        finally:
            remove(self.staging)


def make_store(batches: Iterator[Any], target: Path, options: WriteOptions) -> int:
    """Make a store of rows, if there are any; return how many. Closing it makes it durable."""
    first = next(batches, None)
    if first is None:
        return 0
    store = opening.open(target, config=options.config)
    try:
        count = _put_all(store, chain((first,), batches), options.topic)
    except BaseException:
        store.abandon()
        raise
    store.close()
    return count


def _put_all(store: TimerStore, batches: Iterable[Any], topic: str) -> int:
    return sum(len(ids) for batch in batches for ids in put_rows(store, batch, topic))


def _take_back(store: TimerStore, start: int) -> None:
    """Cancel the timers that were put at or behind a commit log offset. O(pending)."""
    pending = [parse_id(timer.id) for timer in store.pending()]
    ours = [each for each in pending if each is not None and each.offset >= start]
    store.cancel_many([format_id(*each) for each in ours])


# --- folders


def check_loads(path: Path) -> None:
    """Refuse a path that holds anything but loads."""
    if is_store(path):
        raise InvalidArgumentError(
            f'{path} is a store. Write into it with option("into", "store"), or to a folder of its '
            "own."
        )
    strange = [each.name for each in _listed(path) if not each.name.startswith((LOAD, "_"))]
    if strange:
        raise InvalidArgumentError(
            f"{path} holds {strange[0]}, which no Spark write made. Write to a folder of its own."
        )


def show_load(staging: Path, parts: Sequence[Written], target: Path) -> None:
    """Let the stores of a hidden folder appear as a load, with one rename."""
    _gather(staging, parts, staging)
    staging.rename(target)
    sync(target.parent)


def _gather(staging: Path, parts: Sequence[Written], load: Path) -> None:
    """Give the stores of a job their names in its load, and remove what else is there."""
    load.mkdir(exist_ok=True)
    kept = {load.name}
    for each in parts:
        name = f"part-{each.part:05d}"
        kept.add(name)
        remove(load / name)  # of a commit that was killed
        (staging / each.name).rename(load / name)
    for folder in (load, staging):
        for left in _listed(folder):
            if left.name not in kept:
                remove(left)  # of attempts that failed
        sync(folder)


def _listed(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else []


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _exchange(new: Path, path: Path, aside: Path) -> None:
    """Put a folder in the place of another; a crash in between leaves both beside the place."""
    there = path.exists()
    if there:
        path.rename(aside)
    try:
        new.rename(path)
    except BaseException:
        if there:
            aside.rename(path)
        raise
    sync(path.parent)
    remove(aside)


_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class StreamWriter(DataSourceStreamArrowWriter):
    """Makes a load of each batch."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Refuse what a stream cannot do once and only once."""
        check_rows(schema)
        if options.into == "store":
            raise InvalidArgumentError(
                "A stream makes new stores. Leave out the option into; to put the rows into one "
                "store, call put_table in foreachBatch."
            )
        if overwrite:
            raise InvalidArgumentError("A stream only appends. Use outputMode append.")
        check_loads(options.path)
        self.options, self.path = options, options.path.absolute()

    @plainly
    def write(self, iterator: Iterator[Any]) -> Written:
        """Write one partition of a batch; may be run again, or twice at once."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        job = f"{query}-{int(batch or 0):010d}"
        part, attempt = context.partitionId(), context.taskAttemptId()
        # Each driver counts attempts from 0: what an earlier one left is another store.
        name = f"part-{part:05d}-{attempt}-{uuid.uuid4().hex[:8]}"
        rows = (used(each) for each in iterator if each.num_rows)
        target = self.path / f"{HIDDEN}{job}" / name
        count = make_store(rows, target, self.options)
        return Written(job, part, name if count else "")

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Let the batch's stores appear, all at once: with one rename."""
        parts = _parts(messages)
        if not parts:
            return
        staging = self.path / f"{HIDDEN}{parts[0].job}"
        target = self.path / f"{LOAD}{parts[0].job}"
        if target.exists():  # this batch is there: it is done again
            remove(staging)
            return
        show_load(staging, parts, target)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what the tasks wrote."""
        for each in messages:
            if isinstance(each, Written):
                remove(self.path / f"{HIDDEN}{each.job}")
