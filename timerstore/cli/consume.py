"""Commands that hand out what has fired: consume, drop, serve."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from timerstore.cli.app import (
    CONSUME,
    OPERATE,
    AsJson,
    ConfigFile,
    StorePath,
    answering,
    app,
    topics_of,
)
from timerstore.cli.changes import DryRun
from timerstore.cli.open_store import check_known, never_seen, open_still, open_to_change
from timerstore.cli.output import Output, body_field, shown_body
from timerstore.cli.status import told_to_end
from timerstore.errors import InvalidArgumentError
from timerstore.values.amounts import shown_time

if TYPE_CHECKING:
    from timerstore.calls.consuming.delivery import Batch, Delivery
    from timerstore.store.store import TimerStore

PULL_COUNT = 512
TopicToRead = Annotated[
    str, typer.Option("--topic", "-t", help="The topic.", autocompletion=topics_of)
]
ReadsAs = Annotated[str, typer.Option("--group", "-g", help="The consumer group.")]


@app.command(rich_help_panel=CONSUME)
def consume(
    path: StorePath,
    topic: TopicToRead = "default",
    group: ReadsAs = "default",
    timeout: Annotated[
        float | None,
        typer.Option(
            help=(
                "End after this many seconds without a message. 0 ends when all that is there was "
                "read."
            )
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", help="End after this many messages.")
    ] = None,
    ack: Annotated[
        bool,
        typer.Option(
            "--ack/--no-ack",
            help=("Acknowledge the messages that were written. Without it, only look."),
        ),
    ] = True,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Write each message of a topic when it is due. In a pipe it writes only the bodies.

    It has the store open while it runs. It acknowledges what it wrote. If the reader of a pipe
    ends, as head does, some more may have been written than it shows: use --count.

    Example: timerstore consume timers/ --topic reminders --count 10 --json
    """
    with answering(as_json=as_json) as out, open_to_change(path, config) as store:
        text = None if as_json else never_seen("topic", topic, store.stats().to_dict())
        if text is not None:
            out.note(f"{text} This command waits until something is put to it.")
        left = sys.maxsize if count is None else count
        while left > 0:
            batch = store.pull(topic, group=group, max_count=min(left, PULL_COUNT), timeout=timeout)
            if len(batch) == 0:
                return
            show_batch(out, batch, ack=ack)
            left -= len(batch)


@app.command(rich_help_panel=CONSUME)
def drop(
    path: StorePath,
    topic: TopicToRead,
    group: ReadsAs = "default",
    fired: Annotated[
        bool, typer.Option("--fired", help="Drop all that fired and waits for the group.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Give up what has fired and waits for a group, as if it were handled. Write how many.

    It has the store open while it runs. Nothing fires meanwhile, so what is overdue stays pending.
    What all groups of the topic have had is removed from the disk.

    Example: timerstore drop timers/ --topic reminders --group mailer --fired
    """
    with answering(as_json=as_json) as out:
        if not fired:
            raise InvalidArgumentError(
                "A dropped message cannot be brought back: pass --fired, with --dry-run first."
            )
        with open_still(path, config) as store:
            check_known("topic", topic, store.stats().to_dict())
            count = 0
            while batch := store.pull(topic, group=group, timeout=0):
                count += len(batch)
                if not dry_run:
                    batch.ack()
        told = {"topic": topic, "group": group, "dropped": count}
        out.result(told | ({"dry_run": True} if dry_run else {}), count)


def show_batch(out: Output, batch: Batch, *, ack: bool) -> None:
    """Write messages, and acknowledge those that standard output took."""
    written: list[Delivery] = []
    try:
        for delivery in batch:
            show_delivery(out, delivery)
            sys.stdout.flush()
            written.append(delivery)
    finally:
        if ack and len(written) == len(batch):
            batch.ack()
        elif ack:
            for delivery in written:
                delivery.ack()


def show_delivery(out: Output, delivery: Delivery) -> None:
    """Write one message."""
    if out.as_json:
        names = ("id", "topic", "key", "tag", "properties", "due_ms", "fired_ms", "lateness_ms")
        fields = {name: getattr(delivery, name) for name in (*names, "attempt")}
        out.json(fields | body_field(delivery.body))
    elif out.on_terminal:
        due, late = shown_time(delivery.due_ms), f"{delivery.lateness_ms:+d} ms"
        out.line(due, f"{late:>9}", delivery.id, shown_body(delivery.body))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(delivery.body + b"\n")


# --- serve


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
            while not came.wait(_LOOK_S) and store.core.engine.failure.error is None:
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
