"""What a store tells of itself, in sections: `print(store.stats())`, `info`, `top`, the web page.

Facts, each of a label, a value and its unit, some to a line; then tables, whose columns have a
unit each. All of it comes from `Stats.to_dict()`; with an earlier look, counters become rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from timerstore.values.amounts import (
    exact_span,
    rough_span,
    short_count,
    shown,
    shown_bytes,
    shown_from,
    shown_time,
)

if TYPE_CHECKING:
    from timerstore.calls.pending.timers import Timer
    from timerstore.watching.find import Found

Stats = Mapping[str, Any]
WIDTH: Final = 100
ROWS_MAX: Final = 10
"""Rows of a printed table; a line then says how many more there are."""
NOTHING: Final = "nothing"
"""What keeps the log if nothing does."""
_NAME_WIDTH_MIN: Final = 8
_COLUMNS_MIN: Final = 8
"""As many columns stay, with names that are cut, before the last ones go."""
_BAR_WIDTH: Final = 12
_PARTS: Final = " ▏▎▍▌▋▊▉█"


class Earlier(NamedTuple):
    """An earlier look at the same store, and how long ago it was."""

    stats: Stats
    passed_s: float


class Fact(NamedTuple):
    """What is told of the whole store; labels that begin alike up to a colon belong together."""

    label: str
    value: Any
    unit: str = "count"


class Table(NamedTuple):
    """What is told of each topic, group, level or service, whose name is its row's first value."""

    name: str
    units: dict[str, str]
    """By the column."""
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Page:
    """A store at one moment, `as_of_ms` if that is known."""

    facts: list[list[Fact]]
    """Line by line."""
    tables: list[Table]
    as_of_ms: int | None = None
    is_live: bool = False
    """More looks follow, in which each column should stand where it stood."""


def sections(stats: Stats, as_of_ms: int | None = None, before: Earlier | None = None) -> Page:
    """Return what is told of a store."""
    grown = stats if before is None else _grown(stats, before)
    rate = "count" if before is None else "/s"
    tables = (each(grown, rate) for each in (_services, _topics, _groups, _levels))
    return Page(
        _facts(stats, before), [each for each in tables if each.rows], as_of_ms, before is not None
    )


def rates(stats: Stats, before: Earlier) -> dict[str, float]:
    """Return what was put, fired, handled a second since an earlier look; bytes by what for."""

    def rate(count: Callable[[Stats], int]) -> float:
        return max(0, count(stats) - count(before.stats)) / before.passed_s

    return {
        "put": rate(lambda stats: _sum(stats, "topics", "put_count")),
        "fired": rate(lambda stats: int(stats["fired_count"])),
        "handled": rate(lambda stats: _sum(stats, "groups", "handled_count")),
        "put_bytes": rate(lambda stats: int(stats["put_bytes"])),
        "fired_bytes": rate(lambda stats: int(stats["fired_bytes"])),
        "rolled_bytes": rate(lambda stats: int(stats["rolled_bytes"])),
        "copied_bytes": rate(lambda stats: int(stats["cleaning"]["copied_bytes"])),
    }


def lateness(stats: Stats, before: Earlier) -> tuple[int, int, int]:
    """Return p50, p99, the largest lateness in ms of what fired since an earlier look.

    If nothing did, of everything.
    """
    counts = _late_counts(stats)
    for bucket, count in _late_counts(before.stats).items():
        counts[bucket] = counts.get(bucket, 0) - count
    if not sum(counts.values()):
        counts = _late_counts(stats)
    total, seen = sum(counts.values()), 0
    found = {0.5: 0, 0.99: 0, 1.0: 0}
    for bucket in sorted(bucket for bucket, count in counts.items() if count > 0):
        before_it, seen = seen, seen + counts[bucket]
        for share in found:
            if before_it < max(1, total * share) <= seen:
                found[share] = bucket
    return found[0.5], found[0.99], found[1.0]


def _late_counts(stats: Stats) -> dict[int, int]:
    counts: dict[int, int] = {}
    for topic in stats["topics"]:
        for bucket, count in topic["lateness"]["buckets"]:
            counts[bucket] = counts.get(bucket, 0) + count
    return counts


def _sum(stats: Stats, rows: str, count: str) -> int:
    return sum(int(each[count]) for each in stats[rows])


# --- the facts


def _facts(stats: Stats, before: Earlier | None) -> list[list[Fact]]:
    waiting = _sum(stats, "groups", "lag_count")
    dead = {each["group"]: each["dead_letter_count"] for each in stats["groups"]}
    overdue = sum(each["upcoming"]["overdue_count"] for each in stats["topics"])
    late_ms = lateness(stats, before or Earlier({"topics": ()}, 1.0))
    lines = [
        [
            Fact("pending", stats["pending_count"]),
            Fact("overdue", overdue),
            Fact("fired, not handled", waiting),
            Fact("dead letters", sum(dead.values())),
        ],
        [
            *_flows(stats, before),
            *(Fact(*each, "span") for each in zip(_LATE, late_ms, strict=True)),
        ],
        *disk_facts(stats),
        _appended(stats, before),
    ]
    if before is None:  # what does not change while one looks
        lines += [_upkeep(stats), _opening(stats)]
    copies = [[Fact(f"copy in {each['dest']}", _lag(each), "text")] for each in stats["copies"]]
    troubles = [
        Fact("has stopped", stats["stopped_by"], "text"),
        Fact("waits for space", stats["waiting_for_space"], "text"),
        Fact("removes nothing any more", stats["retention_stopped_by"], "text"),
        Fact("damaged places, see damage and the log", stats["damage_count"] or None),
        Fact("unreadable messages, see the log", stats["unreadable_count"] or None),
    ]
    return _told([*lines, *copies, *([each] for each in troubles)])


def _told(lines: list[list[Fact]]) -> list[list[Fact]]:
    """Leave out what is not known, or is not so."""
    told = ([fact for fact in line if fact.value is not None] for line in lines)
    return [line for line in told if line]


_LATE: Final = ("late: p50", "late: p99", "late: max")


def _flows(stats: Stats, before: Earlier | None) -> list[Fact]:
    if before is not None:
        per_s = rates(stats, before)
        return [Fact(name, per_s[name], "/s") for name in ("put", "fired", "handled")]
    return [
        Fact("put", _sum(stats, "topics", "put_count")),
        Fact("fired", _sum(stats, "topics", "fired_count")),
        Fact("handled", _sum(stats, "groups", "handled_count")),
        Fact("cancelled", _sum(stats, "topics", "cancelled_count")),
    ]


def disk_facts(stats: Stats) -> list[list[Fact]]:
    """Return how much disk a store takes, and what keeps it."""
    taken, bodies_bytes = stats["cleaning"]["pending_bytes"], _sum(stats, "topics", "pending_bytes")
    pending = Fact("pending take", taken, "bytes")
    if taken is None and bodies_bytes:
        text = f"more than their bodies' {shown_bytes(bodies_bytes)}"
        pending = Fact("pending take", text, "text")
    kept_by = stats["cleaning"]["kept_by"]
    sizes = [
        Fact("on disk", stats["disk_bytes"], "bytes"),
        Fact("commit log", stats["commitlog_end"] - stats["commitlog_start"], "bytes"),
        Fact("timer log", stats["timerlog_end"], "bytes"),
        pending,
    ]
    rest = Fact("the rest is kept by", None if kept_by == NOTHING else kept_by, "text")
    return _told([sizes, [rest]])


def _appended(stats: Stats, before: Earlier | None) -> list[Fact]:
    names = {"put": "put", "fired": "fired", "hops": "rolled", "cleaning": "copied"}
    counts: Mapping[str, float | None] = {
        each: {**stats, **stats["cleaning"]}[f"{each}_bytes"] or None for each in names.values()
    }
    unit = "bytes"
    if before is not None:
        per_s, unit = rates(stats, before), "bytes/s"
        counts = {each: per_s[f"{each}_bytes"] for each in names.values()}
    return [Fact(f"appended: {name}", counts[each], unit) for name, each in names.items()]


def _upkeep(stats: Stats) -> list[Fact]:
    return [
        Fact("timers copied", stats["cleaning"]["copied_count"] or None),
        Fact("files removed", stats["cleaning"]["removed_count"] or None),
        Fact("group commits", stats["sync_count"] or None),
        Fact("checkpoints", stats["checkpoint_count"]),
    ]


def _opening(stats: Stats) -> list[Fact]:
    recovery, found = stats["recovery"], "closed cleanly"
    if not recovery["clean"]:
        found = f"not closed; {recovery['scanned_count']:,} messages were read again"
    return [
        Fact("fired up to", stats["read_ms"], "time"),
        Fact("open for", 1_000 * stats["uptime_s"], "span"),
        Fact("last time", found, "text"),
    ]


def _lag(copy: dict[str, Any]) -> str:
    lag = f"{shown_bytes(copy['lag_bytes'])} behind" if copy["lag_bytes"] else "all is there"
    lag += f", for {rough_span(copy['lag_ms'])}" if copy["lag_ms"] else ""
    return f"{lag}; {copy['error']}" if copy["error"] else lag


# --- the tables


_COUNTERS: Final = {
    "services": (("name",), ("done_count",)),
    "topics": (("topic",), ("put_count", "fired_count", "cancelled_count")),
    "groups": (("topic", "group"), ("handled_count", "failed_count", "retried_count")),
}
"""What tells one row from the others, and what of it grows."""


def _grown(stats: Stats, before: Earlier) -> Stats:
    """Return statistics in which counters of rows are rates since an earlier look."""
    found = dict(stats)
    for rows, (names, counters) in _COUNTERS.items():
        was = {tuple(each[name] for name in names): each for each in before.stats[rows]}
        found[rows] = [each.copy() for each in stats[rows]]
        for each in found[rows]:
            old = was.get(tuple(each[name] for name in names), dict.fromkeys(counters, 0))
            for name in counters:
                each[name] = max(0, each[name] - old[name]) / before.passed_s
            if rows == "services":
                busy_s = each["busy_share"] * stats["uptime_s"]
                busy_s -= old["busy_share"] * before.stats["uptime_s"]
                each["busy_share"] = min(1.0, max(0.0, busy_s / before.passed_s))
    return found


def _table(name: str, columns: str, rate: str, rows: Sequence[Sequence[Any]]) -> Table:
    """Return a table of columns such as "put rate": a name, then a unit."""
    pairs = (column.rpartition(" ") for column in columns.split(", "))
    return Table(name, {name: rate if unit == "rate" else unit for name, _, unit in pairs}, rows)


def _services(stats: Stats, rate: str) -> Table:
    rows = [
        (
            *(each["name"], each["busy_share"], each["queue_count"], each["done_count"]),
            each["state"] if each["waits_for"] is None else f"waits for {each['waits_for']}",
        )
        for each in stats["services"]
    ]
    if all(row[-1] == "stopped" for row in rows) and stats["stopped_by"] is None:
        rows = []  # nobody has the store open
    return _table("service", "busy share, waiting count, done rate, state text", rate, rows)


def _topics(stats: Stats, rate: str) -> Table:
    rows = [
        (
            each["topic"],
            each["pending_count"],
            each["next_due_ms"],
            each["upcoming"]["overdue_count"],
            each["oldest_due_ms"],
            dict(each["upcoming"]["within"])[60_000],
            *(each["put_count"], each["fired_count"]),
            each["lateness_p99_ms"] if each["lateness"]["count"] else None,
            each["cancelled_count"],
            each["lateness_p50_ms"] if each["lateness"]["count"] else None,
            each["lateness_max_ms"] if each["lateness"]["count"] else None,
            each["pending_bytes"],
        )
        for each in sorted(stats["topics"], key=_most_first)
    ]
    columns = (
        "pending count, next due age, overdue count, since age, in 1 min count, put rate, "
        "fired rate, late p99 span, cancelled rate, p50 span, max span, bodies bytes"
    )
    return _table("topic", columns, rate, rows)


def _most_first(topic: Stats) -> tuple[int, float, str]:
    """Order topics by what is pending; among equals the one that is due first."""
    next_ms = topic["next_due_ms"]
    return -topic["pending_count"], float("inf") if next_ms is None else next_ms, topic["topic"]


def _groups(stats: Stats, rate: str) -> Table:
    rows = [
        (
            each["group"] or "(nobody)",
            each["topic"],
            each["lag_count"],
            each["oldest_age_ms"] if each["lag_count"] else None,
            *(each["handled_count"], each["failed_count"], each["dead_letter_count"]),
            *(each["in_flight_count"], each["retried_count"]),
            each["response"]["p99_ms"] if each["response"]["count"] else None,
        )
        for each in sorted(stats["groups"], key=_urgency)
    ]
    columns = (
        "of topic text, lag count, oldest span, handled rate, failed rate, dead count, "
        "in flight count, retried rate, p99 span"
    )
    return _table("group", columns, rate, rows)


def _urgency(row: Stats) -> tuple[int, int, int]:
    """Order rows of groups by what waits for somebody."""
    waiting = row["lag_count"] + row["dead_letter_count"]
    return -waiting, -row["oldest_age_ms"], -row["handled_count"]


def _levels(stats: Stats, rate: str) -> Table:
    rows = [
        (
            *(str(each["level"]), each["delay_ms"], each["offset"], each["end"]),
            *(each["lag_count"], each["overdue_ms"] or None),
        )
        for each in stats["levels"]
        if each["end"]
    ]
    columns = "delay exact, offset count, end count, lag count, overdue span"
    return _table("level", columns, rate, rows)


# --- one timer


def found_rows(found: Found) -> Iterator[tuple[str, object]]:
    """Yield what became of a timer, as names and values, without what is not known."""
    for name in ("id", "state", "topic", "key"):
        if (value := getattr(found, name)) is not None:
            yield name, value
    for name in ("put", "due", "fired", "cancelled"):
        if (ms := getattr(found, f"{name}_ms")) is not None:
            yield name, shown_time(ms)
    for name in ("moved_to", "offset", "why"):
        if (value := getattr(found, name)) is not None:
            yield name.replace("_", " "), value
    for each in found.groups:
        yield f"group {each.group}", f"{each.state}, attempt {each.attempt}"


def parts_of(timer: Timer, body_bytes: int | None = None) -> Iterator[str]:
    """Yield the texts of a timer, in which one may look for a part, in lower case.

    `body_bytes`: so many of its body.
    """
    yield timer.id.casefold()
    for each in (timer.key, timer.tag, *timer.properties.values()):
        yield (each or "").casefold()
    yield timer.body[:body_bytes].decode("utf-8", "replace").casefold()


# --- as text


def plain_lines(page: Page) -> Iterator[list[str]]:
    """Yield what a program may read, line by line: labels with values, tables with their heads."""
    for line in page.facts:
        for label, value, unit in line:
            yield [label, _plain(value, unit)]
    for name, units, rows in page.tables:
        yield [name, *units]
        for row in rows:
            cells = zip(row[1:], units.values(), strict=True)
            yield [f"{name} {row[0]}", *(_plain(*each) for each in cells)]


def _plain(value: Any, unit: str) -> str:
    if value is None:
        return ""
    if unit in ("count", "text"):
        return str(value)
    if unit == "share":
        return f"{value:.1%}"
    return shown_time(value) if unit == "age" else _UNITS[unit](value)


def _bar(share: float) -> str:
    eighths = round(share * _BAR_WIDTH * 8)
    text = "█" * (eighths // 8) + (_PARTS[eighths % 8] if eighths % 8 else "")
    return f"{text.ljust(_BAR_WIDTH, '·')}{share:>5.0%}"


_UNITS: Final[dict[str, Callable[[Any], str]]] = {
    "count": lambda count: f"{count:,}",
    "/s": lambda rate: f"{short_count(rate)}/s",
    "bytes": shown_bytes,
    "bytes/s": lambda rate: f"{shown_bytes(round(rate))}/s",
    "span": rough_span,
    "exact": exact_span,
    "time": shown_time,
    "text": shown,
    "share": _bar,
}
_TO_THE_LEFT: Final = ("text", "age", "share")
_BLANK: Final = ("count", "bytes")
"""Units whose 0 says nothing in a table."""

Line = list[tuple[str, str]]
"""Pieces of text, each with what it is: "label", "value", "head", or ""."""


def as_text(page: Page) -> str:
    """Return a page as `print` shows it, no wider than `WIDTH`."""
    tables = (drawn_table(table, page, WIDTH, ROWS_MAX) for table in page.tables)
    blocks = (drawn_facts(page, WIDTH), *tables)
    return "\n\n".join(
        "\n".join("".join(text for text, _ in line).rstrip() for line in block) for block in blocks
    )


def fact_text(value: Any, unit: str) -> str:
    """Return a value of a fact."""
    return _UNITS[unit](value)


def drawn_facts(page: Page, width: int) -> list[Line]:
    """Return the facts as lines for a person; a line that is too long is broken between two."""
    lines: list[Line] = []
    for facts in page.facts:
        line: Line = []
        used, group = 0, ""
        for label, value, unit in facts:
            text = fact_text(value, unit)
            first, colon, rest = label.partition(": ")
            name = shown(rest if colon and first == group else label)
            group = first if colon else ""
            if line and used + 2 + len(name) + 1 + len(text) > width:
                lines.append(line)
                line, used, name = [], 0, shown(label)
            if line:
                line.append(("  ", ""))
                used += 2
            line += [(f"{name} ", "label"), (text, "value")]
            used += len(name) + 1 + len(text)
        lines += _broken(line, width)
    return lines


def _broken(line: Line, width: int) -> Iterator[Line]:
    """Yield a line, or several if its only fact is longer: a sentence is broken between words."""
    (label, _), (text, _), *others = line
    if others or len(label) + len(text) <= width:
        yield line
        return
    words, here = text.split(" "), [(label, "label")]
    used = len(label)
    for word in words:
        if used + len(word) > width and len(here) > 1:
            yield here
            here, used = [("  ", "")], 2
        here.append((f"{word} ", "value"))
        used += len(word) + 1
    yield here


def drawn_table(table: Table, page: Page, width: int, rows_max: int | None = None) -> list[Line]:
    """Return a table as lines for a person, numbers to the right.

    Columns that have nothing in them are left out; the last ones too if the table is too wide.
    """
    shown_rows = table.rows[:rows_max]
    units = ["text", *table.units.values()]
    cells = [
        [cell_text(*each, page) for each in zip(row, units, strict=True)] for row in shown_rows
    ]
    used = [i for i in range(len(units)) if any(row[i] for row in cells)]
    names = [table.name, *table.units]
    widths = {i: max(len(row[i]) for row in [names, *cells]) for i in used}
    texts = [i for i in used if units[i] == "text"]
    while sum(widths.values()) + 2 * (len(widths) - 1) > width:
        widest = max(texts, key=lambda i: widths.get(i, 0))
        can_shrink = widths.get(widest, 0) > _NAME_WIDTH_MIN
        if len(widths) > (_COLUMNS_MIN if can_shrink else 1):
            widths.popitem()
        elif can_shrink:
            widths[widest] -= 1
        else:
            break

    def drawn(row: Sequence[str]) -> str:
        return "  ".join(
            _cut(row[i], size).ljust(size) if units[i] in _TO_THE_LEFT else row[i].rjust(size)
            for i, size in widths.items()
        )

    lines: list[Line] = [[(drawn(names), "head")], *([(drawn(row), "")] for row in cells)]
    more = len(table.rows) - len(shown_rows)
    return [*lines, [(f"… {more:,} more", "label")]] if more else lines


def cell_text(value: Any, unit: str, page: Page) -> str:
    """Return a value of a table's row; "" of what says nothing."""
    if value is None or (value == 0 and unit in _BLANK and not page.is_live):
        return ""
    if unit == "age":
        return "" if page.as_of_ms is None else shown_from(value, page.as_of_ms)
    return _UNITS[unit](value)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
