"""The command `serve`."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from timerstore.cli.app import OPERATE, AsJson, ConfigFile, StorePath, answering, app
from timerstore.cli.open_store import open_to_change
from timerstore.cli.until_signal import told_to_end
from timerstore.errors import InvalidArgumentError

if TYPE_CHECKING:
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
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Open the store, or create it, and serve it to other processes of this user.

    They call timerstore.connect(PATH). SIGTERM or Ctrl-C ends it in order: calls under way are
    answered, then the store is closed. It tells systemd (Type=notify) when it is ready. Exit
    status: 0 it was told to end, 3 another process has the store open, 4 the disk failed.

    Example: timerstore serve timers/
    """
    with (
        answering(as_json=as_json) as out,
        told_to_end() as came,
        open_to_change(path, config, create=True) as store,
    ):
        from timerstore.share.server import serve as let_others_use

        if metrics is not None:
            _show_metrics(store, metrics)
        with let_others_use(store) as server:
            told = {"path": str(path), "state": "serving", "pid": os.getpid()}
            out.tell(told, f"{path}: serving, pid {os.getpid()}")
            out.flush()
            _tell_systemd("READY=1")
            while not came.wait(_LOOK_S) and store.core.failure.error is None:
                _tell_systemd(f"STATUS={server.client_count} clients")
            _tell_systemd("STOPPING=1")


def _show_metrics(store: TimerStore, where: str) -> None:
    """Answer Prometheus from a thread, until the process ends."""
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
    from timerstore.metrics import register

    register(store, name=store.path.name)


def _tell_systemd(text: str) -> None:
    """Tell the supervisor, if there is one. This never waits: a text that finds no room is lost."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if name[:1] not in ("/", "@"):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect("\0" + name[1:] if name[0] == "@" else name)
        sock.send(text.encode(), socket.MSG_DONTWAIT)
