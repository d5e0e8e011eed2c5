"""The commands `export` and `import`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from timerstore.cli.app import (
    CHANGE,
    CHECK,
    AsJson,
    ATopic,
    ConfigFile,
    StorePath,
    answering,
    app,
    settings,
)
from timerstore.cli.changes import tell_made
from timerstore.cli.checking import tell_live
from timerstore.cli.import_rows import (
    Columns,
    Progress,
    Row,
    count_put,
    held,
    progress_path,
    read_chunks,
    read_progress,
    write_progress,
)
from timerstore.cli.open_store import OwnersStore, changing
from timerstore.cli.output import Output
from timerstore.errors import InvalidArgumentError
from timerstore.values.times import now_ms
from timerstore.values.write_file import appearing

if TYPE_CHECKING:
    from timerstore.watching.any_store import AnyStore


# --- export


# As in tables/commitlog.py and offline/export.py, which --help need not load.
TableName = Literal["pending", "fired", "messages"]
FormatName = Literal["jsonl", "csv", "arrow", "parquet"]
OfFormat = Annotated[
    FormatName | None, typer.Option("--format", "-f", help="Default: by the file's ending.")
]
ENDINGS: Final[dict[str, FormatName]] = {
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".arrow": "arrow",
    ".parquet": "parquet",
}


@app.command(rich_help_panel=CHECK)
def export(
    path: StorePath,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="-: standard output.")],
    table: Annotated[
        TableName, typer.Option("--table", help="Pending timers, fired ones, or all messages.")
    ] = "pending",
    form: OfFormat = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Write a table of a store to a .jsonl, .csv, .parquet or .arrow file, which import can read.

    Nothing is fired. If a process has the store open, the file shows it as of its last checkpoint.
    An .arrow file is an Arrow stream.

    Example: timerstore export timers/ pending.parquet
    """
    with answering(as_json=as_json) as out:
        if form is None:
            form = format_of(target)
        as_of_ms = tell_live(out, path)
        upto = None if as_of_ms is None else "checkpoint"
        with out.progress(f"exporting {path}", "rows") as update:
            options = {"config": settings(config), "upto": upto, "progress": update}
            count = export_to(path, table, target, form, **options)
        if str(target) == "-":
            return
        told = {"file": str(target), "table": table, "format": form, "count": count}
        out.tell(told | {"as_of_ms": as_of_ms}, f"{count:,} rows written to {target}")


def format_of(target: Path) -> FormatName:
    """Return the format that a file's ending names; JSON for standard output."""
    if str(target) == "-":
        return "jsonl"
    if target.suffix not in ENDINGS:
        raise InvalidArgumentError(
            f"{target} ends in none of {', '.join(ENDINGS)}. Rename it, or pass --format."
        )
    return ENDINGS[target.suffix]


def export_to(path: Path, table: TableName, target: Path, form: FormatName, **options: Any) -> int:
    """Write a table of the store at `path`; return how many rows."""
    from timerstore.offline.export import export as run

    if str(target) == "-":
        return run(path, table, sys.stdout.buffer, form, **options)
    with appearing(target) as file:
        return run(path, table, file, form, **options)


# --- import


_LOOKS_APART_S = 0.5


@app.command(name="import", rich_help_panel=CHANGE)
def import_file(
    path: StorePath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help=".jsonl, .csv, .parquet, .arrow")],
    topic: ATopic = "default",
    due: Annotated[
        str | None, typer.Option(help="The column with times, written as for `put --at`.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(help=("The column with delays, such as 1h30m."))
    ] = None,
    body: Annotated[str | None, typer.Option(help="The column with bodies.")] = None,
    key: Annotated[str | None, typer.Option(help="The column with keys.")] = None,
    tag: Annotated[str | None, typer.Option(help="The column with tags.")] = None,
    topic_column: Annotated[str | None, typer.Option(help="The column with topics.")] = None,
    form: OfFormat = None,
    progress_folder: Annotated[
        Path | None,
        typer.Option(
            "--progress",
            help=("The folder in which the progress is noted. Default: the one of FILE."),
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Put all rows again, even if they were imported before.")
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Put each row of a file as a timer. It reads what export wrote.

    Columns: at_ms, due_ms, at, due or delay for the time; body or body_base64; and optionally
    topic, key, tag, properties (an object). Other columns are ignored. All rows are checked before
    the first is put. A small file beside FILE notes the progress: if an import was killed, run it
    again, and it puts the rest, nothing twice.

    Example: timerstore import timers/ reminders.csv --due when --body text
    """
    from timerstore.timelog.files.oserrors import told_of

    with answering(as_json=as_json) as out:
        if form is None:
            form = format_of(file)
        named = {"due": due, "delay": delay, "body": body, "key": key, "tag": tag}
        named = {name: each for name, each in (named | {"topic": topic_column}).items() if each}
        options = {"topic": topic, "format": form, "columns": named}
        with told_of(file), held(file) as sha256:
            new = Progress(sha256, options, now_ms(), file.stat().st_size)
            new.row_count = check_rows(out, file, new)
            is_new = not path.exists()
            with changing(path, config, create=True, is_bulk=True) as store:
                where = progress_path(file, store_tag(path))
                where = where if progress_folder is None else progress_folder / where.name
                progress = read_progress(where, new, file, again=again)
                put_count = 0
                if not progress.is_whole:
                    put_count = put_chunks(out, path, store, file, progress, where)
        if as_json:
            out.json({"file": str(file), "rows": progress.row_count, "put": put_count})
            return
        before = progress.row_count - put_count
        if put_count or not before:
            out.say(
                f"{put_count:,} rows put"
                + ((f", {before:,} had been put before") if before else "")
            )
        else:
            out.say(
                f"Nothing was put, because all {before:,} rows had been put before. --again puts "
                "them again."
            )
        tell_made(out, path, store, is_new=is_new)


def chunks_of(file: Path, progress: Progress) -> Iterator[list[Row]]:
    """Yield the rows of a file, always the same."""
    options = progress.options
    columns = Columns(**{name: (each,) for name, each in options["columns"].items()})
    return read_chunks(file, options["format"], columns, options["topic"], progress.base_ms)


def check_rows(out: Output, file: Path, progress: Progress) -> int:
    """Read a whole file, so that a mistake at its end is found before anything is put."""
    count = 0
    with out.progress(f"checking {file}", "rows") as update:
        for chunk in chunks_of(file, progress):
            count += len(chunk)
            update(count)
    return count


def store_tag(path: Path) -> int:
    """Return the number that a store's ids end with."""
    from timerstore.timelog.files.smallfile import by_path
    from timerstore.timelog.reading.reader import read_sizes

    return read_sizes(path, by_path)[0].store_tag


def put_chunks(
    out: Output, path: Path, store: AnyStore, file: Path, progress: Progress, where: Path
) -> int:
    """Put what was not put before; return how many."""
    seen = put_count = 0
    with out.progress(f"importing {file}", "rows") as update:
        for chunk in chunks_of(file, progress):
            seen += len(chunk)
            if seen <= progress.done_count:
                continue
            rows = chunk[progress.done_count - seen :]
            if progress.log_end >= 0:
                count = count_settled(path, store, progress.log_end, rows)
                progress.done_count += count
                rows = rows[count:]
            progress.log_end = store.stats().commitlog_end
            write_progress(where, progress)
            put_rows(store, rows)
            store.flush()
            progress.done_count, progress.log_end = seen, -1
            put_count += len(rows)
            update(seen, progress.row_count)
    progress.is_whole = True
    write_progress(where, progress)
    return put_count


def count_settled(path: Path, store: AnyStore, log_end: int, rows: list[Row]) -> int:
    """Return how many rows the last chunk has put, once an owner that was asked has done it."""
    count = count_put(path, log_end, rows)
    while isinstance(store, OwnersStore):
        time.sleep(_LOOKS_APART_S)
        before, count = count, count_put(path, log_end, rows)
        if count == before:
            break
    return count


def put_rows(store: AnyStore, rows: list[Row]) -> None:
    """Put rows in their order; those that differ only in body, time or key are put together."""
    for (topic, tag, has_key, is_plain), group in groupby(rows, _kind):
        part = list(group)
        if is_plain and len(part) > 1:
            store.put_many(
                bodies=[row.body for row in part],
                topic=topic,
                tag=tag,
                at_ms=[row.due_ms for row in part],
                keys=[row.key or "" for row in part] if has_key else None,
            )
            continue
        for row in part:
            store.put(
                body=row.body,
                topic=topic,
                at_ms=row.due_ms,
                key=row.key,
                tag=tag,
                properties=row.properties or None,
                expires_ms=row.expires_ms,
            )


def _kind(row: Row) -> tuple[str, str | None, bool, bool]:
    is_plain = not row.properties and row.expires_ms is None
    return row.topic, row.tag, row.key is not None, is_plain
