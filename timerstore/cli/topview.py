"""What `top` draws: two looks at a store as lines that fit a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from timerstore.ground.amounts import short_count, shown, shown_bytes, shown_span
from timerstore.ground.moments import shown_time

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_PARTS: Final = " ▏▎▍▌▋▊▉█"
_RING_COUNT: Final = 4_096
"""Entries of a queue between services, where its producer stops."""
_BAR: Final = 12
_STYLES: Final = {"running": "bold green", "paused": "bold yellow", "behind": "bold yellow"}
_BAD: Final = "bold red"


@dataclass(frozen=True, slots=True)
class Look:
    """A store at one moment; `seconds`: how many fall due in each second ahead."""

    path: Path
    at_s: float
    stats: dict[str, Any]
    health: dict[str, Any]
    seconds: list[int]

    def to_dict(self, before: Look) -> dict[str, Any]:
        """Return it for JSON, with the rates since an earlier look."""
        return {
            "path": str(self.path),
            "health": self.health,
            "rates_per_s": rates(self, before),
            "seconds_ahead": self.seconds,
            "stats": self.stats,
        }


def rates(now: Look, before: Look) -> dict[str, float]:
    """Return what was put, fired, handled a second since an earlier look; bytes by what for."""
    passed_s = max(1e-3, now.at_s - before.at_s)

    def rate(count: Callable[[dict[str, Any]], int]) -> float:
        return max(0, count(now.stats) - count(before.stats)) / passed_s

    return {
        "put": rate(lambda stats: sum(each["put_count"] for each in stats["topics"])),
        "fired": rate(lambda stats: int(stats["fired_count"])),
        "handled": rate(lambda stats: sum(each["handled_count"] for each in stats["groups"])),
        "put_bytes": rate(lambda stats: int(stats["put_bytes"])),
        "fired_bytes": rate(lambda stats: int(stats["fired_bytes"])),
        "rolled_bytes": rate(lambda stats: int(stats["rolled_bytes"])),
        "copied_bytes": rate(lambda stats: int(stats["cleaning"]["copied_bytes"])),
    }


def draw(now: Look, before: Look, width: int, height: int) -> Text:
    """Return the screen, of at most `height` lines of `width` cells."""
    lines = [*_head(now, before, width), Text(), *_services(now, before, width)]
    left = height - len(lines) - 1
    groups = _groups(now, before, width)
    topics = _topics(now, before, width)
    topic_count = max(min(len(topics), left - 2 - min(len(groups), left // 2)), 0)
    if not now.stats["topics"]:
        lines += [Text(), Text("No timer was put yet.", style="dim")]
    for part, count in ((topics, topic_count), (groups, left - topic_count - 2)):
        if len(part) > 1 and count > 1:
            lines += [Text(), *_first(part, count)]
    return Text("\n").join(line for line in lines[:height])


def _first(lines: Sequence[Text], count: int) -> Iterable[Text]:
    if len(lines) <= count:
        return lines
    more = len(lines) - count + 1
    return [*lines[: count - 1], Text(f"… {more} more", style="dim")]


# --- the parts


def _head(now: Look, before: Look, width: int) -> list[Text]:
    stats, health, rate = now.stats, now.health, rates(now, before)
    state = health["state"]
    open_ms = health["now_ms"] - health["opened_ms"]
    right = f"open {shown_span(open_ms) or '0 s'}  {shown_time(health['now_ms'])[:19]}Z"
    path = shown(str(now.path))
    room = max(8, width - cell_len(right) - cell_len(state) - 4)
    if len(path) > room:
        path = "…" + path[1 - room :]
    title = Text.assemble((path, "bold"), "  ", (state, _STYLES.get(state, _BAD)))
    title.pad_right(max(1, width - cell_len(title.plain) - cell_len(right)))
    title.append(right, style="dim")
    p50_ms, p99_ms, max_ms = lateness(now, before)
    overdue = sum(each["upcoming"]["overdue_count"] for each in stats["topics"])
    lag = sum(each["lag_count"] for each in stats["groups"])
    dead = {each["group"]: each["dead_letter_count"] for each in stats["groups"]}
    pending_bytes = sum(each["pending_bytes"] for each in stats["topics"])
    first = _fields(
        ("put", f"{short_count(rate['put'])}/s"),
        ("fired", f"{short_count(rate['fired'])}/s"),
        ("handled", f"{short_count(rate['handled'])}/s"),
        ("late p50", f"{p50_ms:,} ms"),
        ("p99", f"{p99_ms:,} ms"),
        ("max", f"{max_ms:,} ms"),
    )
    second = _fields(
        ("pending", f"{short_count(stats['pending_count'])}, {shown_bytes(pending_bytes)}"),
        ("overdue", short_count(overdue)),
        ("lag", short_count(lag)),
        ("dead", short_count(sum(dead.values()))),
        ("disk", shown_bytes(stats["disk_bytes"])),
    )
    appended = _fields(
        *(
            (name, f"{shown_bytes(round(rate[field]))}/s")
            for name, field in (
                ("appended: put", "put_bytes"),
                ("fired", "fired_bytes"),
                ("hops", "rolled_bytes"),
                ("cleaning", "copied_bytes"),
            )
        )
    )
    most = short_count(max(now.seconds, default=0))
    due = f" {short_count(sum(now.seconds))} due, {most}/s at most"
    name = "next minute "
    spark = Text.assemble(
        (name, "dim"),
        (sparkline(now.seconds, max(10, min(60, width - len(name) - len(due)))), "cyan"),
        (due, "dim"),
    )
    lines = [title, first, second, appended, spark]
    for copy in stats["copies"]:
        late = f", {shown_span(copy['lag_ms'])}" if copy["lag_ms"] >= 1_000 else ""
        said = f"copy in {copy['dest']}: {shown_bytes(copy['lag_bytes'])} behind{late}"
        said += f"; {copy['error']}" if copy["error"] else ""
        lines.append(Text(shown(said), style=_BAD if copy["error"] else "dim"))
    for condition in health["conditions"][:1]:
        style = _STYLES.get(condition["state"], _BAD)
        first_place, *others = condition["what"].split("; ")
        what = f"{first_place}; …" if others else first_place
        cure = condition["cure"].replace("PATH", str(now.path))
        lines += [Text(shown(text), style=style) for text in (what, cure)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _services(now: Look, before: Look, width: int) -> list[Text]:
    passed_s = max(1e-3, now.at_s - before.at_s)
    wide = max(_BAR, min(40, (width - 50) // 2))
    lines = [
        _row(
            ("services", 15),
            ("busy", -(wide + 6)),
            ("queue", -(wide + 9)),
            ("rate", -11),
            style="bold",
        )
    ]
    for each, was in zip(now.stats["services"], before.stats["services"], strict=True):
        busy_s = each["busy_share"] * now.stats["uptime_s"]
        busy_s -= was["busy_share"] * before.stats["uptime_s"]
        busy = min(1.0, max(0.0, busy_s / passed_s))
        full = min(1.0, each["queue_count"] / _RING_COUNT)
        style = "red" if full >= 1 else "yellow" if full > 0.5 else "green"
        line = Text(f"{each['name']:<15}")
        line.append(_bar(busy, wide), style="green")
        line.append(f"{busy:>5.0%} ")
        line.append(" ").append(_bar(full, wide), style=style)
        line.append(f"{short_count(each['queue_count']):>8}")
        rate = (each["done_count"] - was["done_count"]) / passed_s
        line.append(f"{short_count(rate) + '/s':>11}")
        lines.append(line)
    return lines


def _topics(now: Look, before: Look, width: int) -> list[Text]:
    passed_s, now_ms = max(1e-3, now.at_s - before.at_s), now.health["now_ms"]
    was = {each["topic"]: each for each in before.stats["topics"]}
    rows = []
    for each in sorted(now.stats["topics"], key=_most_first):
        old = was.get(each["topic"], {"put_count": 0, "fired_count": 0})
        next_ms, oldest_ms = each["next_due_ms"], each["oldest_due_ms"]
        rows.append(
            (
                shown(each["topic"]),
                short_count(each["pending_count"]),
                "" if next_ms is None else (shown_span(next_ms - now_ms) or "now"),
                "" if oldest_ms is None else (shown_span(now_ms - oldest_ms) or "now"),
                short_count((each["put_count"] - old["put_count"]) / passed_s),
                short_count((each["fired_count"] - old["fired_count"]) / passed_s),
                f"{each['lateness_p99_ms']:,}",
            )
        )
    names = ("topic", "pending", "next in", "overdue", "put/s", "fired/s", "p99 ms")
    return _columns(names, rows, (12, 9, 13, 13, 8, 8, 8), width)


def _most_first(topic: dict[str, Any]) -> tuple[int, float, str]:
    """Order topics by what is pending; among equals the one that is due first."""
    next_ms = topic["next_due_ms"]
    return -topic["pending_count"], float("inf") if next_ms is None else next_ms, topic["topic"]


def _groups(now: Look, before: Look, width: int) -> list[Text]:
    passed_s = max(1e-3, now.at_s - before.at_s)
    was = {(each["topic"], each["group"]): each for each in before.stats["groups"]}
    rows = []
    for each in sorted(now.stats["groups"], key=lambda e: (-e["lag_count"], e["group"])):
        old = was.get((each["topic"], each["group"]), each)
        rows.append(
            (
                shown(each["group"]) or "(nobody)",
                shown(each["topic"]),
                short_count(each["lag_count"]),
                (shown_span(each["oldest_age_ms"]) or "now") if each["lag_count"] else "",
                short_count((each["handled_count"] - old["handled_count"]) / passed_s),
                short_count(each["failed_count"]),
                short_count(each["dead_letter_count"]),
            )
        )
    names = ("group", "of topic", "lag", "oldest", "handled/s", "failed", "dead")
    return _columns(names, rows, (12, 12, 9, 13, 10, 8, 7), width)


# --- what they are made of


def lateness(now: Look, before: Look) -> tuple[int, int, int]:
    """Return p50, p99, the largest lateness in ms of what fired since an earlier look.

    If nothing did, of everything.
    """
    counts = _late_counts(now.stats)
    for bucket, count in _late_counts(before.stats).items():
        counts[bucket] = counts.get(bucket, 0) - count
    if not sum(counts.values()):
        counts = _late_counts(now.stats)
    total, seen = sum(counts.values()), 0
    found = {0.5: 0, 0.99: 0, 1.0: 0}
    for bucket in sorted(bucket for bucket, count in counts.items() if count > 0):
        before_it, seen = seen, seen + counts[bucket]
        for share in found:
            if before_it < max(1, total * share) <= seen:
                found[share] = bucket
    return found[0.5], found[0.99], found[1.0]


def _late_counts(stats: dict[str, Any]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for topic in stats["topics"]:
        for bucket, count in topic["lateness"]["buckets"]:
            counts[bucket] = counts.get(bucket, 0) + count
    return counts


def sparkline(values: Sequence[float], width: int) -> str:
    """Return values as blocks, at most `width` of them; neighbours share one if there are more.

    >>> sparkline([0, 1, 2, 4, 8], 5)
    ' ▁▂▄█'
    """
    if len(values) > width:
        edges = [len(values) * i // width for i in range(width + 1)]
        values = [max(values[a:b]) for a, b in pairwise(edges)]
    peak = max(values, default=0)
    if not peak:
        return _BLOCKS[1] * len(values)
    return "".join(_BLOCKS[-(-int(8 * value) // int(peak)) if value else 0] for value in values)


def _bar(share: float, width: int) -> str:
    eighths = round(share * width * 8)
    text = "█" * (eighths // 8) + (_PARTS[eighths % 8] if eighths % 8 else "")
    return text.ljust(width, "·")


def _fields(*pairs: tuple[str, str]) -> Text:
    line = Text()
    for name, value in pairs:
        line.append("  " if line else "").append(f"{name} ", style="dim").append(value, "bold")
    return line


def _row(*cells: tuple[str, int], style: str = "") -> Text:
    """Return cells of these widths, numbers' (negative) to the right."""
    text = "".join(
        _fit(value, width) if width > 0 else _fit(value, -width, right=True)
        for value, width in cells
    )
    return Text(text, style=style)


def _fit(value: str, width: int, *, right: bool = False) -> str:
    if cell_len(value) > width - 1:
        value = set_cell_size(value, width - 2) + "…"
    pad = " " * (width - cell_len(value))
    return pad + value if right else value + pad


def _columns(
    names: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], width: int
) -> list[Text]:
    """Return a table whose first columns, those of text, take the room that is left."""
    texts = [i for i, name in enumerate(names) if name in ("topic", "group", "of topic")]
    spare = max(0, width - sum(widths)) // len(texts)
    longest = {i: max((cell_len(row[i]) for row in [names, *rows]), default=0) for i in texts}
    sizes = [
        min(size + spare, max(size, longest[i] + 2)) if i in texts else -size
        for i, size in enumerate(widths)
    ]
    lines = [_row(*zip(names, sizes, strict=True), style="bold")]
    lines += [_row(*zip(row, sizes, strict=True)) for row in rows]
    return lines
