"""Statistics as a text to be read: sections of short tables, 100 columns at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from timerstore.ground.amounts import rough_span, shown, shown_bytes
from timerstore.watching.groups import GroupStats

Stats = Any
"""`timerstore.Stats`, which imports this file."""
WIDTH: Final = 100
ROWS_MAX: Final = 10
"""Rows of one section; a line then says how many more there are."""
_NAME_WIDTH_MIN: Final = 8
_BAR: Final = 10
_ALL_DONE: Final = "nothing"

Rows = Sequence[Sequence[str]]


def shown_stats(stats: Stats) -> str:
    """Return statistics for a person."""
    sections: tuple[Callable[[Stats], Iterator[str]], ...] = (
        *(_store, _services, _topics, _groups, _levels, _cleaning),
    )
    texts = ("\n".join(line[:WIDTH].rstrip() for line in each(stats)) for each in sections)
    return "\n\n".join(filter(None, texts))


# --- the sections


def _store(stats: Stats) -> Iterator[str]:
    yield (
        f"store      {stats.pending_count:,} pending, {stats.fired_count:,} fired in "
        f"{rough_span(1000 * stats.uptime_s)} since opening; {stats.cancelled_count:,} cancelled"
    )
    yield (
        f"           late by {rough_span(stats.lateness_p50_ms)} (median), "
        f"{rough_span(stats.lateness_p99_ms)} (99 %), {rough_span(stats.lateness_max_ms)} at most"
    )
    yield (
        f"           {shown_bytes(stats.disk_bytes)} on disk, {stats.checkpoint_count:,} "
        f"checkpoints, {stats.sync_count:,} group commits"
    )
    yield (
        f"           appended: {shown_bytes(stats.put_bytes)} put, "
        f"{shown_bytes(stats.fired_bytes)} fired, {shown_bytes(stats.rolled_bytes)} hops, "
        f"{shown_bytes(stats.cleaning.copied_bytes)} cleaning"
    )
    for each in stats.copies:
        lag = f"{shown_bytes(each.lag_bytes)} behind" if each.lag_bytes else "all is there"
        lag += f", for {rough_span(each.lag_ms)}" if each.lag_ms else ""
        yield f"           copy in {shown(each.dest)}: {lag}"
    for what, said in (
        ("has stopped", stats.stopped_by),
        ("waits for space", stats.waiting_for_space),
        ("removes nothing any more", stats.retention_stopped_by),
    ):
        if said is not None:
            yield f"           it {what}: {shown(said)}"
    if stats.damage_count or stats.unreadable_count:
        yield (
            f"           {stats.damage_count:,} damaged places, "
            f"{stats.unreadable_count:,} unreadable messages: see damage, and the log"
        )


def _services(stats: Stats) -> Iterator[str]:
    rows = [
        (
            each.name,
            "#" * round(_BAR * each.busy_share) + "." * (_BAR - round(_BAR * each.busy_share)),
            f"{100 * each.busy_share:.1f} %",
            f"{each.queue_count:,}",
            f"{each.step_count:,}",
            each.state if each.waits_for is None else f"waits for {each.waits_for}",
        )
        for each in stats.services
    ]
    yield from _table("services", ("", "busy", ">", ">waiting", ">steps", "state"), rows)


def _topics(stats: Stats) -> Iterator[str]:
    most = sorted(stats.topics, key=lambda each: (-each.pending_count, -each.put_count))
    rows = [
        (
            shown(each.topic),
            *_counts(each.pending_count, each.upcoming.overdue_count),
            *_counts(dict(each.upcoming.within)[60_000], each.put_count),
            *_counts(each.fired_count, each.cancelled_count),
            rough_span(each.lateness_p99_ms) if each.fired_count else "",
        )
        for each in most
    ]
    columns = ("", ">pending", ">overdue", ">in 1 min", ">put", ">fired", ">cancelled", ">late p99")
    yield from _table("topics", columns, rows)


def _groups(stats: Stats) -> Iterator[str]:
    worst = sorted(stats.groups, key=_urgency, reverse=True)
    rows = [
        (
            shown(each.group) or "(nobody)",
            shown(each.topic),
            f"{each.lag_count:,}",
            rough_span(each.oldest_age_ms) if each.lag_count else "",
            *_counts(each.in_flight_count, each.handled_count, each.failed_count),
            *_counts(each.retried_count, each.dead_letter_count),
            rough_span(each.response.p99_ms) if each.response.count else "",
        )
        for each in worst
    ]
    columns = ("", "topic", ">lag", ">oldest", ">in flight", ">handled", ">failed")
    yield from _table("groups", (*columns, ">retried", ">dead", ">p99"), rows)


def _urgency(row: GroupStats) -> tuple[int, int, int]:
    return row.lag_count + row.dead_letter_count, row.oldest_age_ms, row.handled_count


def _levels(stats: Stats) -> Iterator[str]:
    rows = [
        (
            f"level {each.level}",
            rough_span(each.delay_ms),
            f"{each.lag_count:,}",
            rough_span(each.overdue_ms) if each.overdue_ms else "",
        )
        for each in stats.levels
        if each.end
    ]
    yield from _table("levels", ("", ">delay", ">waiting", ">overdue"), rows)


def _cleaning(stats: Stats) -> Iterator[str]:
    found = stats.cleaning
    length = stats.commitlog_end - stats.commitlog_start
    pending = (
        "" if found.pending_bytes is None else f", about {shown_bytes(found.pending_bytes)} pending"
    )
    yield (
        f"cleaning   {shown_bytes(length)} of commit log from offset {stats.commitlog_start:,} on"
        f"{pending}"
    )
    yield (
        f"           {found.copied_count:,} timers copied ({shown_bytes(found.copied_bytes)}), "
        f"{found.removed_count:,} files removed"
    )
    if found.kept_by != _ALL_DONE:
        yield from _wrapped(f"kept by {shown(found.kept_by)}", 11)


# --- parts


def _table(title: str, columns: Sequence[str], rows: Rows) -> Iterator[str]:
    """Yield a section's lines; nothing if it has no rows. ">": a column of numbers.

    Columns that have nothing in them are left out; the first has a name in each row.
    """
    if not rows:
        return
    used = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    columns = [columns[i] for i in used]
    names = [title, *(name.removeprefix(">") for name in columns[1:])]
    cells = [["  " + row[0], *(row[i] for i in used[1:])] for row in rows[:ROWS_MAX]]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    texts = [i for i, name in enumerate(columns) if not name.startswith(">")]
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        widest = max(texts, key=lambda i: widths[i])
        if widths[widest] <= _NAME_WIDTH_MIN:
            break
        widths[widest] -= 1
    for line in (names, *cells):
        fitted = [_cut(cell, width) for cell, width in zip(line, widths, strict=True)]
        yield "  ".join(
            cell.rjust(width) if name.startswith(">") else cell.ljust(width)
            for cell, width, name in zip(fitted, widths, columns, strict=True)
        )
    if len(rows) > ROWS_MAX:
        yield f"  … {len(rows) - ROWS_MAX:,} more"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _counts(*counts: int) -> list[str]:
    return [f"{count:,}" if count else "" for count in counts]


def _wrapped(text: str, indent: int) -> Iterator[str]:
    """Yield a sentence in lines that begin at `indent`."""
    line = ""
    for word in text.split(" "):
        if line and indent + len(line) + 1 + len(word) > WIDTH:
            yield " " * indent + line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield " " * indent + line
