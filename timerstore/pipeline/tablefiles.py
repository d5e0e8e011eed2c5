"""Where the result tables lie, how a run replaces what it wrote before.

    out/slot_load/day=2027-01-04/store=shop/nightly.parquet
    out/runs/day=2027-01-04/nightly.parquet

A file holds the rows of one table, store and run (of `runs` and `metrics` those of all stores), and
its name is the run's. It is written in `out/_unfinished` and then renamed, so that a task that is
run twice, or a run that is repeated, puts the same file in the same place. Files of a run that was
killed are left there; the next run removes them. The row in `runs` goes first when a run begins
anew, and comes last.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from timerstore.audit.engines import write_rows
from timerstore.errors import InvalidArgumentError
from timerstore.jit import host
from timerstore.pipeline.resulttables import (
    FIRED,
    FIRED_LATENESS,
    TABLES,
    VERSION,
    ResultTable,
    find_result_table,
)
from timerstore.timelog.files.oserrors import telling, told_of
from timerstore.values.amounts import DAY_MS, moment
from timerstore.values.kinds import check_int, check_kind, check_names, check_path, check_place
from timerstore.values.write_file import sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


RUNS: Final = "runs"
FIRST: Final = "slot_load"
"""The table of a store that is written before its others: see `find_day`."""
_UNFINISHED: Final = "_unfinished"
_UNFINISHED_S: Final = 3_600
"""A file is written within seconds; what is older was left by a killed process."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SUFFIX: Final = ".parquet"
_VERSION_KEY: Final = b"timerstore.pipeline.version"
HISTORY_DAYS: Final = 35


def check_run(run: str, what: str = "run") -> str:
    """Return the name of a run, if it can be that of a file. Raises InvalidArgumentError."""
    if not isinstance(run, str) or not _NAME.fullmatch(run):
        raise InvalidArgumentError(
            f"{what} is {run!r}. Use up to 100 letters and digits, with . _ - between them."
        )
    return run


def quote_store(store: str) -> str:
    """Return the name of a store as part of a folder's name.

    Only ASCII is escaped, byte for byte as in a URI. Letters beyond ASCII stay as they are, because
    Spark reads each escaped byte as a letter of its own.
    """
    return "".join(each if ord(each) > 0x7F else quote(each, safe="") for each in store)


class TableFiles:
    """The files of one run on one day, below one folder; any process can write its share."""

    def __init__(self, out: str | os.PathLike[str], run: str, day: str) -> None:
        """`day`: as 2027-01-04."""
        self.out, self.run, self.day = os.path.abspath(os.fspath(out)), run, day

    def path(self, table: str, store: str | None = None) -> Path:
        """Return where the rows of a table lie."""
        folder = Path(self.out) / table / f"day={self.day}"
        if store is not None:
            folder /= f"store={quote_store(store)}"
        return folder / (self.run + _SUFFIX)

    def write(self, table: str, rows: Any, store: str | None = None) -> str:
        """Write the rows of a table of this run, all at once or not at all; return where."""
        at = rows.schema.get_field_index("run")
        names = pa.repeat(pa.scalar(self.run, pa.string()), len(rows))
        return self.write_plainly(table, rows.set_column(at, rows.schema.field(at), names), store)

    def write_plainly(self, table: str, rows: Any, store: str | None = None) -> str:
        """Write rows as they are, all at once or not at all; return where."""
        path = self.path(table, store)
        rows = rows.replace_schema_metadata({_VERSION_KEY: str(VERSION).encode()})
        with told_of(str(path)):
            write_rows(rows, str(path), os.path.join(self.out, _UNFINISHED))
        return str(path)

    def make_unfinished(self) -> str:
        """Make the folder for what is no table yet; return its path."""
        folder = os.path.join(self.out, _UNFINISHED)
        os.makedirs(folder, exist_ok=True)
        return folder

    def dataset(self, table: str, written: Collection[str]) -> Any:
        """Return the rows of a table among files that this run wrote, as an Arrow data set."""
        folder = Path(self.out, table)
        mine = [path for path in written if Path(path).is_relative_to(folder)]
        return _dataset(folder / f"day={self.day}", mine, TABLES[table].schema, ["store"])

    def begin(self) -> None:
        """Take the run's row away: what it wrote before does not count any more."""
        self.path(RUNS).unlink(missing_ok=True)
        remove_unfinished(self.out)

    def remove_others(self, written: Collection[str]) -> None:
        """Remove what an earlier attempt of this run wrote, and this one has not."""
        kept = set(written)
        for name, table in TABLES.items():
            if table.by_store:
                for path in files_of(self.out, name, self.run, day=self.day):
                    if str(path) not in kept:
                        path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the run. Its row goes first, so the rest does not count any more."""
        self.path(RUNS).unlink(missing_ok=True)
        self.remove_others(())
        for name, table in TABLES.items():
            if not table.by_store:
                self.path(name).unlink(missing_ok=True)


def remove_unfinished(out: str | os.PathLike[str]) -> None:
    """Remove what killed processes were writing."""
    before_s = time.time() - _UNFINISHED_S
    for path in Path(out, _UNFINISHED).glob("*"):
        with suppress(FileNotFoundError):  # its writer is done, or another run removed it
            if path.is_dir() and path.stat().st_mtime < before_s - DAY_MS / 1_000:
                shutil.rmtree(path)  # facts of a store
            elif not path.is_dir() and path.stat().st_mtime < before_s:
                path.unlink()


def find_day(out: str | os.PathLike[str], run: str) -> str | None:
    """Return the day under which a run has written, None if it has not."""
    for table in (RUNS, "metrics", "stores", FIRST):
        for path in files_of(out, table, run):
            return _day(path)
    return None


@telling
def history_of(out: str, store: str, run: str, before_day: str) -> list[dict[str, Any]]:
    """Return the rows of `stores` of a store's earlier runs, the newest first; of a day its last.

    Runs up to the day itself count, this one does not, nor those in which it could not be read,
    nor a file that this cannot read.
    """
    found: list[dict[str, Any]] = []
    days = sorted((_day(path) for path in Path(out, "stores").glob("day=*")), reverse=True)
    for day in [each for each in days if each <= before_day][:HISTORY_DAYS]:
        folder = Path(out, "stores", f"day={day}", f"store={quote_store(store)}")
        files = [path for path in folder.glob(f"*{_SUFFIX}") if path.stem != run]
        rows = [row for path in files for row in _rows(path)]
        rows = [row for row in rows if row["due_profile"] is not None]
        if rows:
            found.append(max(rows, key=lambda row: row["at_ms"]))
    return found


@telling
def baseline_of(out: str, store: str, run: str, day: str) -> dict[str, Any] | None:
    """Return a store's row of `stores` in a run of a day; None if it was not read there."""
    rows = _rows(TableFiles(out, run, day).path("stores", store))
    return rows[0] if rows and rows[0]["pending"] is not None else None


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none of one that is damaged, or of a newer version."""
    try:
        table = pq.read_table(path, partitioning=None)
    except (pa.ArrowInvalid, FileNotFoundError):
        return []
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows if _version_of(table.schema) <= VERSION else []


def _dataset(base: Path, files: Collection[str], schema: Any, folders: Sequence[str]) -> Any:
    """Return the rows of files below a folder; `folders`: the columns that its folders say."""
    said = pa.schema([(name, pa.string()) for name in folders])
    schema = pa.schema([*schema, *said])
    if not files:
        return ds.dataset(schema.empty_table())
    # Arrow takes paths of Unicode alone, but for where a file system begins.
    within = fs.SubTreeFileSystem(os.fsencode(os.path.abspath(base)), fs.LocalFileSystem())
    return ds.dataset(
        [os.path.relpath(path, base) for path in files],
        schema=schema,
        format="parquet",
        partitioning=ds.partitioning(said, flavor="hive"),
        filesystem=within,
    )


@telling
def read_results(
    out: str | os.PathLike[str],
    table: str,
    *,
    run: str | None = None,
    store: str | None = None,
    columns: Collection[str] | None = None,
) -> Any:
    """Return a result table as an Arrow table, with the columns `day` and `store`.

    Only runs that came to their end count. `run`, `store`: only of that run, or store. An older
    version's files lack the columns that came since: these are null. Raises InvalidArgumentError
    if a newer version wrote there, or a file is damaged.

    >>> result = timerstore.pipeline.run("timers/", "tables/", run="nightly")
    >>> timerstore.pipeline.read("tables/", "stores", run="nightly").num_rows
    1
    """
    out = check_path(out)
    wanted = find_result_table(table)
    if store is not None:
        check_kind(store, str, "store")
    finished, folders = finished_runs(out), ["day", "store"][: 1 + wanted.by_store]
    there = [*wanted.schema.names, *folders]
    names = there if columns is None else list(check_names(list(columns), "columns"))
    for name in names:
        if name not in there:
            raise InvalidArgumentError(f"{table} has no column {name!r}.")
    files = [
        str(path)
        for path in files_of(out, table, run, store)
        if finished.get(path.stem) == _day(path)
    ]
    for path in {(Path(each).stem, _day(Path(each))): each for each in files}.values():
        _check_version(path)  # of each run one
    try:
        return _dataset(Path(out, table), files, wanted.schema, folders).to_table(columns=names)
    except pa.ArrowInvalid as e:
        raise _damaged(e) from e


def files_of(
    out: str | os.PathLike[str],
    table: str,
    run: str | None,
    store: str | None = None,
    day: str = "*",
) -> list[Path]:
    """Return the files of a table: of all runs or one, of all stores or one, of all days or one."""
    name = f"{'*' if run is None else check_run(run)}{_SUFFIX}"
    by_store = TABLES[table].by_store
    folder = f"store={'*' if store is None else quote_store(store)}/" if by_store else ""
    return sorted(path for path in Path(out, table).glob(f"day={day}/{folder}{name}"))


def frame(spark: SparkSession, files: TableFiles, table: ResultTable) -> DataFrame:
    """Return the rows of a run as a DataFrame; what an older version lacks is null."""
    folders = ("day", "store") if table.by_store else ("day",)
    columns = [f"`{each.name}` {each.kind}" for each in table.columns]
    schema = ", ".join([*columns, *(f"{each} string" for each in folders)])
    paths = [str(path) for path in files_of(files.out, table.name, files.run, day=files.day)]
    if not paths:
        return spark.createDataFrame([], schema)
    base = str(Path(files.out, table.name))
    return spark.read.schema(schema).option("basePath", base).parquet(*paths)


def _day(path: Path) -> str:
    *_, day = (part for part in path.parts if part.startswith("day="))  # others are above `out`
    return day.removeprefix("day=")


def finished_runs(out: str | os.PathLike[str]) -> dict[str, str]:
    """Return the runs that came to their end, each with its day."""
    return {path.stem: _day(path) for path in files_of(out, RUNS, None)}


def _check_version(path: str) -> None:
    try:
        version = _version_of(pq.read_schema(path))
    except pa.ArrowInvalid as e:
        raise _damaged(e, path) from e
    if version > VERSION:
        raise InvalidArgumentError(
            f"{path} has version {version} of the result tables, and this timerstore reads "
            f"version {VERSION}. Use a newer timerstore."
        )


def _version_of(schema: Any) -> int:
    metadata: Mapping[bytes, bytes] = schema.metadata or {}
    return int(metadata.get(_VERSION_KEY, b"0"))


def _damaged(error: Exception, path: str = "One") -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{path}, a file of the result tables, is damaged: {error}. Remove it, or repeat its run."
    )


KEEP_DAYS: Final = 400
DAILY_AFTER_DAYS: Final = 7


def expire(
    out: str | os.PathLike[str],
    *,
    keep_days: int = KEEP_DAYS,
    daily_after_days: int = DAILY_AFTER_DAYS,
    now_ms: int | None = None,
) -> list[str]:
    """Remove old runs from result tables; return their names.

    A run of more than `keep_days` days ago goes. Of each day of more than `daily_after_days` ago
    only the run that began last stays, the one that later runs are compared with. What `follow`
    wrote goes by `keep_days`; of past days its files are joined, also while it runs. `now_ms`: as
    of when; None: now. A run's row in `runs` goes first, so what is removed does not count any
    more. O(files).

    >>> timerstore.pipeline.expire("tables/", keep_days=100)  # doctest: +SKIP
    []
    """
    place = check_place(out)
    keep_days = check_int(keep_days, "keep_days", 1, 1_000_000)
    daily_after_days = check_int(daily_after_days, "daily_after_days", 0, 1_000_000)
    today = datetime.now(UTC) if now_ms is None else moment(now_ms)
    first, daily = (
        f"{today - timedelta(days=days):%Y-%m-%d}" for days in (keep_days, daily_after_days)
    )
    gone = []
    with told_of(place):
        if not any((place / table).is_dir() for table in (RUNS, FIRED)):
            raise InvalidArgumentError(f"{place} has no result tables. Pass the folder that has.")
        for day, run in _runs_of(place, first, daily):
            TableFiles(place, run, day).remove()
            gone.append(run)
        for table in (FIRED, FIRED_LATENESS.name):
            for folder in Path(place, table).glob("day=*"):
                if folder.name.removeprefix("day=") < first:
                    shutil.rmtree(folder)
            _join_past(place, table, f"{today:%Y-%m-%d}")
        _remove_empty(place)
    return gone


def _runs_of(place: Path, first: str, daily: str) -> Iterator[tuple[str, str]]:
    """Yield the runs that go, with their days."""
    runs = read_results(place, RUNS, columns=["day", "run", "began"])
    rows = runs.sort_by([("began", "ascending")]).to_pylist()
    last = {row["day"]: row["run"] for row in rows}
    for row in rows:
        day, run = row["day"], row["run"]
        if day < first or (day < daily and run != last[day]):
            yield day, run


def _remove_empty(place: Path) -> None:
    """Remove folders of days and stores that nothing is left in."""
    for pattern in ("*/day=*/store=*", "*/day=*"):
        for folder in place.glob(pattern):
            if not any(folder.iterdir()):
                folder.rmdir()


# --- small files of past days, which become few


_SMALL_BYTES: Final = 4 << 20
_JOINED_BYTES: Final = 64 << 20
"""Of files that are joined at once: their rows are in memory."""
_EXCHANGE: Final = 2
_HERE: Final = -100
"""Of renameat2: to exchange two names; paths are as for any other call."""


@contextmanager
def alone(out: str | os.PathLike[str]) -> Iterator[bool]:
    """Wait until no other process writes a batch, or joins files; yield whether that can be told.

    Some file systems lock no folder. A killed process holds no lock.
    """
    os.makedirs(out, exist_ok=True)
    folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            is_alone = True
        except OSError:
            is_alone = False
        yield is_alone
    finally:
        os.close(folder)


def _join_past(place: Path, table: str, today: str) -> None:
    """Join the files that `follow` wrote of past days, but for those of each store's last batch.

    Spark may do that one again, and no other: a batch begins when the one before it is done.
    """
    last: dict[str, str] = {}
    for path in Path(place, table).glob(f"day=*/store=*/*{_SUFFIX}"):
        last[path.parent.name] = max(path.stem, last.get(path.parent.name, ""))
    for folder in sorted(Path(place, table).glob("day=*/store=*")):
        if folder.parent.name.removeprefix("day=") < today and folder.name in last:
            with alone(place) as is_alone:
                while is_alone and _join(folder, last[folder.name], place / _UNFINISHED):
                    pass


def _join(folder: Path, last: str, unfinished: Path) -> bool:
    """Join small files of a folder whose batch came before the last one; tell if there were some.

    The folder is made anew elsewhere, then both are exchanged: a reader sees each row once.
    """
    small, size = list[Path](), 0
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        size += path.stat().st_size
        if path.stem < last and path.stat().st_size < _SMALL_BYTES and size < _JOINED_BYTES:
            small.append(path)
    if len(small) < 2:
        return False
    made = unfinished / uuid.uuid4().hex
    made.mkdir(parents=True)
    try:
        rows = pa.concat_tables([pq.read_table(path, partitioning=None) for path in small])
        write_rows(rows, str(made / small[-1].name), str(unfinished))
        for path in set(folder.iterdir()) - set(small):
            os.link(path, made / path.name)
        for path in (made / small[-1].name, made):
            sync(path)
        _exchange(made, folder)
    except (OSError, pa.ArrowInvalid):
        return False  # a damaged file, or a file system that cannot do this: they stay as they are
    finally:
        shutil.rmtree(made)
    return True


def _exchange(one: Path, other: Path) -> None:
    """Let two folders have each other's name, at once. Raises OSError."""
    if host.RENAME is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(other))
    if host.RENAME(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(other))
