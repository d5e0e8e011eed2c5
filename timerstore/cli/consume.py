"""Commands for what has fired, how far groups are, dead letters; consume, drop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from timerstore.cli.app import (
    CONSUME,
    LOOK,
    OPERATE,
    AsJson,
    ATopic,
    ConfigFile,
    Group,
    Limit,
    OfTopic,
    StorePath,
    answering,
    app,
)
from timerstore.cli.changes import DryRun
from timerstore.cli.open_store import (
    changing,
    check_known,
    looking,
    never_seen,
    open_still,
    open_to_change,
)
from timerstore.cli.output import TOO_LATE, Columns, Output, body_field
from timerstore.errors import InvalidArgumentError
from timerstore.values.amounts import shown_body, shown_from, shown_span, shown_time, whole_text

if TYPE_CHECKING:
    from timerstore.calls.consuming.dead_letters import DeadLetter
    from timerstore.calls.consuming.delivery import Batch, Delivery
    from timerstore.watching.any_store import AnyStore


# --- the commands `groups` and `dead`: how far each group is, its dead letters


NOBODY = "(nobody)"
"""In place of a group's name: no group has ever read the topic."""
_COUNTS = (
    *("lag_count", "in_flight_count", "dead_letter_count", "handled_count"),
    *("failed_count", "retried_count", "dead_count", "expired_count", "turn_wait_count"),
)
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]


@app.command(rich_help_panel=LOOK)
def groups(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Show for each group and topic what waits, since when, what failed, and when it read last.

    Example: timerstore groups timers/
    """
    with answering(as_json=as_json) as out, looking(out, path, config) as look:
        seen = {"as_of_ms": look.as_of_ms}
        found = look.stats().to_dict()["groups"]
        human = _human_group(look.as_of_ms)
        out.records(found, lambda each: each | seen, _GROUPS_PLAIN, human, has_head=True)


@app.command("forget-group", rich_help_panel=OPERATE)
def forget_group(
    path: StorePath,
    group: GroupName,
    topic: OfTopic = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Forget a group that will not read again; write of how many topics. Its messages may go.

    If it reads again, it begins as a new group. It is refused while the group reads.

    Example: timerstore forget-group timers/ web-1234
    """
    with answering(as_json=as_json) as out, changing(path, config) as store:
        count = store.forget_group(group=group, topic=topic)
        if not count:
            check_known("group", group, store.stats().to_dict())
        out.result({"group": group, "topics": count}, count)


def _time(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda each: "" if each[name] is None else shown_time(each[name])


def _count(name: str) -> Callable[[dict[str, Any]], str]:
    """Leave empty what is 0, so that a column of zeros goes."""
    return lambda each: f"{each[name]:,}" if each[name] else ""


_WHOSE: Final[Columns[dict[str, Any]]] = {
    "topic": itemgetter("topic"),
    "group": lambda each: each["group"] or NOBODY,
}
_GROUPS_PLAIN: Final[Columns[dict[str, Any]]] = {
    **_WHOSE,
    "oldest": _time("oldest_fired_ms"),
    **{name.removesuffix("_count").replace("_", " "): itemgetter(name) for name in _COUNTS},
    "read": _time("read_ms"),
}


def _human_group(now_ms: int) -> Columns[dict[str, Any]]:
    def oldest(each: dict[str, Any]) -> str:
        return "" if each["oldest_fired_ms"] is None else shown_span(each["oldest_age_ms"])

    def read(each: dict[str, Any]) -> str:
        read_ms = each["read_ms"]
        return "" if read_ms is None else f"{shown_span(max(0, now_ms - read_ms))} ago"

    return {
        **_WHOSE,
        ">waiting": lambda each: f"{each['lag_count']:,}",
        ">oldest": oldest,
        ">in flight": _count("in_flight_count"),
        ">for a turn": _count("turn_wait_count"),
        ">dead": _count("dead_letter_count"),
        ">handled": _count("handled_count"),
        ">failed": _count("failed_count"),
        ">retried": _count("retried_count"),
        ">read": read,
    }


# --- dead


WIDE = 110
"""A terminal of so many columns has room for key, tag and body beside the error."""
_FIELDS = (
    *("id", "topic", "key", "tag", "properties", "attempts", "first_failed_ms", "died_ms"),
    *("error_type", "error_text", "trace_id"),
)
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Only these. Default: all.")]


class _ListsByItself(Group):
    """`dead PATH GROUP` lists."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["list", *args]
        return super().parse_args(ctx, args)


dead = typer.Typer(cls=_ListsByItself, no_args_is_help=True)


@dead.callback()
def of_dead_letters() -> None:
    """List, show, put back or drop a group's dead letters. Without a word it lists them.

    Example: timerstore dead timers/ mailer
    """


@dead.command("list")
def list_(
    path: StorePath,
    group: GroupName,
    limit: Limit = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """List a group's dead letters, the oldest first, and why each was given up.

    Example: timerstore dead list timers/ mailer
    """
    with answering(as_json=as_json) as out, looking(out, path, config) as look:
        shown_limit = out.rows_max if limit is None else limit
        letters = look.dead_letters(group=group, limit=shown_limit)
        if not letters and limit != 0:
            look.check("group", group)
            out.note(f"The group {group} has no dead letters.")
        human = _human(look.as_of_ms, out.console.width)
        out.records(letters, letter_fields, _PLAIN, human, has_head=True)


@dead.command()
def show(
    path: StorePath,
    group: GroupName,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id that `dead list` shows.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Show one dead letter. Exit status 1: there is no such dead letter.

    Example: timerstore dead show timers/ mailer 019C0F3A5B7C00000000000051C4D1E0
    """
    with answering(as_json=as_json) as out, looking(out, path, config) as look:
        letters = look.dead_letters(group=group, limit=None)
        found = [each for each in letters if each.id == id]
        if not found:
            look.check("group", group)
            out.status = TOO_LATE
            out.note(
                f"{id} is no dead letter of the group {group}: it was put back or dropped "
                "before, or never was one."
            )
            return
        letter = found[-1]
        names = ("id", "topic", "key", "tag", "attempts")
        told: dict[str, Any] = {name: getattr(letter, name) for name in names}
        for name, ms in (("first failed", letter.first_failed_ms), ("died", letter.died_ms)):
            if ms is not None:
                told[name] = out.time(ms, look.as_of_ms)
        told |= {"error": error_text(letter) or None, "trace": letter.trace_id}
        told |= {f"property {name}": value for name, value in letter.properties.items()}
        out.values(letter_fields(letter), told | {"body": whole_text(letter.body)})


@dead.command()
def retry(
    path: StorePath,
    group: GroupName,
    ids: Ids = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="How many at most.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Put dead letters back, due now, with the same id, as attempt 0. Write how many.

    Example: timerstore dead retry timers/ mailer --limit 10
    """
    with answering(as_json=as_json) as out, changing(path, config) as store:
        check_has_letters(store, group)
        count = store.retry_dead_letters(group=group, limit=limit, ids=ids or None)
        out.result({"group": group, "retried": count}, count)


@dead.command("drop")
def drop_dead(
    path: StorePath,
    group: GroupName,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help=("Only these ids. To drop all, pass --all.")),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Drop all dead letters of the group.")
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Give dead letters up for good. Write how many.

    Example: timerstore dead drop timers/ mailer --all
    """
    with answering(as_json=as_json) as out:
        if bool(ids) == everything:
            raise InvalidArgumentError(
                "No ids were given. A dropped message cannot be brought back: name the ids, or "
                "pass --all."
            )
        with changing(path, config) as store:
            check_has_letters(store, group)
            count = store.drop_dead_letters(group=group, ids=ids or None)
        out.result({"group": group, "dropped": count}, count)


def check_has_letters(store: AnyStore, group: str) -> None:
    """Refuse a group that has none and that the store does not know: a call makes it known."""
    if not store.dead_letters(group=group, limit=1):
        check_known("group", group, store.stats().to_dict())


app.add_typer(dead, name="dead", rich_help_panel=LOOK)


def letter_fields(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter for JSON."""
    return {name: getattr(letter, name) for name in _FIELDS} | body_field(letter.body)


def error_text(letter: DeadLetter) -> str:
    """Return what it died of, in one line."""
    return ": ".join(filter(None, (letter.error_type, letter.error_text)))


def _text(name: str) -> Callable[[DeadLetter], object]:
    return lambda letter: getattr(letter, name) or ""


_PLAIN: Final[Columns[DeadLetter]] = {
    "died": lambda letter: shown_time(letter.died_ms),
    "topic": attrgetter("topic"),
    "id": attrgetter("id"),
    "key": _text("key"),
    "tag": _text("tag"),
    "tries": _text("attempts"),
    "body": lambda letter: whole_text(letter.body),
    "error": error_text,
}


def _human(now_ms: int, width: int) -> Columns[DeadLetter]:
    def error(letter: DeadLetter) -> str:
        kind = letter.error_type.rpartition(".")[2]
        return ": ".join(filter(None, (kind, letter.error_text)))

    columns: Columns[DeadLetter] = {
        "died": lambda letter: shown_from(letter.died_ms, now_ms),
        "topic": attrgetter("topic"),
        "id": attrgetter("id"),
        ">tries": attrgetter("attempts"),
        "error": error,
    }
    if width < WIDE:
        return columns
    body: Columns[DeadLetter] = {"body": lambda letter: shown_body(letter.body, width)}
    return {**columns, "key": _text("key"), "tag": _text("tag"), **body}


# --- what has fired, handed out


PULL_COUNT = 512
ReadsAs = Annotated[str, typer.Option("--group", "-g", help="The consumer group.")]


@app.command(rich_help_panel=CONSUME)
def consume(
    path: StorePath,
    topic: ATopic = "default",
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
    topic: ATopic,
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
