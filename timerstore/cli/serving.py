"""Commands that run until they are told to end: serve, relay."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from timerstore.cli.app import OPERATE, AsJson, ConfigFile, StorePath, answering, app, settings
from timerstore.cli.open_store import check_is_there, open_to_change
from timerstore.cli.output import told_to_end
from timerstore.errors import InvalidArgumentError
from timerstore.timelog.files.smallfile import read_head

if TYPE_CHECKING:
    from timerstore.page import PageServer
    from timerstore.store.store import TimerStore


_LOOK_S = 1.0


@app.command(rich_help_panel=OPERATE)
def serve(
    path: StorePath,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Show metrics to Prometheus there; without HOST to this machine alone.",
        ),
    ] = None,
    page: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Show a page for browsers there; without HOST to this machine alone.",
        ),
    ] = None,
    write: Annotated[
        bool,
        typer.Option("--write", help="The page may retry and drop dead letters, pause and resume."),
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the token that each browser must show to see the page."),
    ] = None,
    page_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A name by which browsers reach the page, beside that HOST."
        ),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Open the store, or create it, and serve it to other processes of this user.

    They call timerstore.connect(PATH). SIGTERM or Ctrl-C ends it in order: calls under way are
    answered, then the store is closed. It tells systemd (Type=notify) when it is ready. Exit
    status: 0 it was told to end, 3 another process has the store open, 4 the disk failed.

    Example: timerstore serve timers/
    """
    with answering(as_json=as_json) as out, told_to_end() as came:
        show = None
        if page is not None:
            show = _page_at(page, token_file, page_host or [], write=write)
        elif write or token_file or page_host:
            raise InvalidArgumentError(
                "--write, --token-file and --page-host are of the page. Pass --page too."
            )
        if metrics is not None:
            _serve_metrics(metrics)
        with open_to_change(path, config, create=True) as store:
            from timerstore.share.server import serve as let_others_use

            if metrics is not None:
                from timerstore.metrics import register

                register(store, name=store.path.name)
            url = None if show is None else show(store).url
            with let_others_use(store) as server:
                told = {"path": str(path), "state": "serving", "pid": os.getpid(), "page": url}
                shown = f", page {url}" if url else ""
                out.tell(told, f"{path}: serving, pid {os.getpid()}{shown}")
                out.flush()
                _tell_systemd("READY=1")
                while not came.wait(_LOOK_S) and store.core.engine.failure.error is None:
                    _tell_systemd(f"STATUS={server.client_count} clients")
                _tell_systemd("STOPPING=1")


@app.command(rich_help_panel=OPERATE)
def relay(
    path: StorePath,
    database: Annotated[
        str, typer.Argument(metavar="DATABASE", help="postgresql://…, or a file of SQLite.")
    ],
    table: Annotated[str, typer.Option(help="The outbox.")] = "timerstore_outbox",
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Put the rows of an outbox into the store, each once, until SIGTERM or Ctrl-C.

    Programs with share=True, and other relays, may use the store at the same time. Write how many
    rows were put, and how many the store refused; why stands in their column `error`.

    Example: timerstore relay timers/ postgresql:///shop
    """
    from timerstore.outbox.relay import LOOK_S, Relay
    from timerstore.share import opening

    with answering(as_json=as_json) as out, told_to_end() as came:
        check_is_there(path)
        with (
            opening.open(path, create=False, share=True, config=settings(config)) as store,
            Relay(store, database, table=table) as relay,
        ):
            while not came.wait(LOOK_S):
                relay.check()
        told = {"path": str(path), "put": relay.put_count, "refused": relay.refused_count}
        out.tell(told, f"{relay.put_count} rows were put, {relay.refused_count} refused")


def _serve_metrics(where: str) -> None:
    """Begin to answer; what is wrong with the place is told before there is a store."""
    host, _, port = where.rpartition(":")
    try:
        from prometheus_client import start_http_server

        start_http_server(int(port), addr=host or "127.0.0.1")
    except ImportError as e:
        raise InvalidArgumentError(
            "--metrics needs the extra metrics. Run: pip install 'timerstore[metrics]'"
        ) from e
    except (ValueError, OverflowError, OSError) as e:
        raise InvalidArgumentError(f"--metrics is {where!r}: {e}. Pass a port that is free.") from e


def _page_at(
    where: str, token_file: Path | None, hosts: list[str], *, write: bool
) -> Callable[[TimerStore], PageServer]:
    """Return what shows a store; what is wrong with it is told before there is a store."""
    try:
        from timerstore.page.server import PageServer, check_place

        token = None if token_file is None else _read_token(token_file)
    except ModuleNotFoundError as e:
        raise InvalidArgumentError(f"--page: {e}") from e
    except (OSError, ValueError) as e:
        raise InvalidArgumentError(
            f"--token-file: {e}. Pass a file that you alone can read."
        ) from e
    check_place(where, token, hosts)
    return partial(PageServer, where=where, write=write, token=token, hosts=hosts)


_TOKEN_BYTES_MAX: Final = 4_096


def _read_token(file: Path) -> str:
    mode = file.stat().st_mode & 0o777
    if mode & 0o077:
        raise ValueError(f"others may use {file}, of mode {mode:04o}: run chmod 600 {file}")
    return read_head(file, _TOKEN_BYTES_MAX).decode().strip()


def _tell_systemd(text: str) -> None:
    """Tell the supervisor, if there is one. This never waits: a text that finds no room is lost."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if name[:1] not in ("/", "@"):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect("\0" + name[1:] if name[0] == "@" else name)
        sock.send(text.encode(), socket.MSG_DONTWAIT)
