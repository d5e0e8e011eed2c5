"""Draws the pictures of the pages as SVG: `.venv/bin/python docs/img/drawings.py`.

Look at them afterwards as PNG, for example with `chromium --headless --screenshot`.
"""

from __future__ import annotations

import math
import re
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
INK, FAINT = "#26323a", "#6b7a83"
DISK, MEMORY, CALL, TRUTH = "#dceef0", "#fdf0d9", "#e9e7f5", "#bfe3d0"
LINE_HEIGHT = 17


class Drawing:
    """A white sheet with boxes, arrows, text; sizes are in pixels, y grows downwards."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts: list[str] = []
        self.width, self.height, self.title = width, height, title

    def box(self, x: int, y: int, w: int, h: int, fill: str, *lines: str) -> None:
        """Draw a box with its lines of text in the middle, the first of them in bold."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{fill}" stroke="{INK}"/>'
        )
        top = y + h / 2 - (len(lines) - 1) * LINE_HEIGHT / 2 + 5
        for i, line in enumerate(lines):
            self.text(x + w // 2, int(top + i * LINE_HEIGHT), line, bold=i == 0, faint=i > 0)

    def text(
        self,
        x: int,
        y: int,
        words: str,
        *,
        anchor: str = "middle",
        bold: bool = False,
        faint: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        size = 12 if faint else 14
        self.parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}"{weight} '
            f'fill="{FAINT if faint else INK}">{escape(words)}</text>'
        )

    def arrow(self, *points: tuple[int, int], dashed: bool = False) -> None:
        """Draw a line through the points, with a head at the last one."""
        path = " ".join(f"{x},{y}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.6"{dash} '
            'marker-end="url(#head)"/>'
        )

    def save(self, name: str) -> None:
        text = "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img" '
                'font-family="Helvetica, Arial, sans-serif">',
                f"<title>{escape(self.title)}</title>",
                '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
                f'markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{INK}"/>'
                "</marker></defs>",
                f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>',
                *self.parts,
                "</svg>\n",
            ]
        )
        (FOLDER / name).write_text(text)


def draw_way() -> None:
    """Draw one timer's way, from put to ack."""
    d = Drawing(900, 440, "One timer's way from put to ack")
    d.box(20, 30, 130, 60, CALL, "put", "your thread")
    d.box(240, 30, 300, 60, TRUTH, "commit log", "the message, on disk: the truth")
    d.arrow((150, 60), (240, 60))
    d.text(195, 50, "append", faint=True)

    d.box(240, 140, 130, 50, MEMORY, "enqueue ring", "4,096 entries")
    d.arrow((300, 90), (300, 140))
    d.text(312, 119, "enqueue-get: what was put", anchor="start", faint=True)

    d.box(
        240, 250, 300, 60, DISK, "timer log and timer wheel", "a 52-byte unit, chained to its slot"
    )
    d.arrow((300, 190), (300, 250))
    d.text(312, 225, "enqueue-put: chooses the slot", anchor="start", faint=True)
    d.arrow((240, 295), (200, 295), (200, 265), (240, 265))
    d.text(190, 276, "due beyond the window:", anchor="end", faint=True)
    d.text(190, 292, "hops to a later slot", anchor="end", faint=True)

    d.box(240, 360, 300, 60, MEMORY, "near wheel", "what is due soon, by millisecond, in memory")
    d.arrow((300, 310), (300, 360))
    d.text(312, 340, "dequeue-get: claims the slot before it begins", anchor="start", faint=True)

    d.box(620, 365, 130, 50, MEMORY, "dequeue ring", "4,096 entries")
    d.arrow((540, 390), (620, 390))
    d.text(580, 380, "due", faint=True)

    d.box(620, 140, 250, 60, TRUTH, "commit log", "a copy under the real topic: fired")
    d.arrow((685, 365), (685, 200))
    d.text(697, 290, "dequeue-put: appends the copy,", anchor="start", faint=True)
    d.text(697, 306, "without needing the GIL", anchor="start", faint=True)

    d.box(620, 30, 250, 60, CALL, "consume or pull, then ack", "your thread")
    d.arrow((745, 140), (745, 90))
    d.text(757, 119, "consume queue", anchor="start", faint=True)
    _legend(d, 20, 350)
    d.save("way.svg")


def _legend(d: Drawing, x: int, y: int) -> None:
    kinds = {
        CALL: "a call of yours",
        TRUTH: "the truth, on disk",
        DISK: "an index, on disk",
        MEMORY: "memory",
    }
    for i, (fill, words) in enumerate(kinds.items()):
        d.parts.append(
            f'<rect x="{x}" y="{y + 20 * i}" width="14" height="14" rx="3" fill="{fill}" '
            f'stroke="{INK}"/>'
        )
        d.text(x + 22, y + 11 + 20 * i, words, anchor="start", faint=True)


def draw_disk() -> None:
    """Draw what is on disk, and what points where."""
    d = Drawing(900, 430, "What is on disk, and what points where")
    d.text(20, 24, "commitlog/", anchor="start", bold=True)
    d.text(20, 40, "every message, in the order of arrival", anchor="start", faint=True)
    x = 20
    for words, w, fill in [
        ("…", 40, TRUTH),
        ("timer, topic orders", 170, TRUTH),
        ("timer, topic mails", 170, TRUTH),
        ("delete", 80, TRUTH),
        ("fired, topic orders", 170, TRUTH),
        ("", 200, "#ffffff"),
    ]:
        d.box(x, 48, w, 40, fill, *([words] if words else []))
        x += w
    d.text(750, 72, "zeros, up to the segment's end", faint=True)

    d.text(20, 150, "consumequeue/", anchor="start", bold=True)
    d.text(20, 166, "20-byte entries", anchor="start", faint=True)
    d.text(20, 181, "of each topic", anchor="start", faint=True)
    d.box(155, 150, 180, 36, DISK, "rmq_sys_wheel_timer")
    for i, target in enumerate((145, 315, 440)):
        d.box(335 + 50 * i, 150, 50, 36, DISK, str(i + 1))
        d.arrow((360 + 50 * i, 150), (target, 88))
    d.box(560, 150, 90, 36, DISK, "orders")
    d.box(650, 150, 50, 36, DISK, "1")
    d.arrow((675, 150), (565, 88))

    d.text(20, 250, "timerlog/", anchor="start", bold=True)
    d.text(20, 266, "52-byte units, in the order of linking", anchor="start", faint=True)
    for i, words in enumerate(["unit 1", "unit 2", "unit 3 (delete)"]):
        d.box(20 + 130 * i, 276, 130, 36, DISK, words)
    d.arrow((20, 294), (8, 294), (8, 110), (105, 110), (105, 88), dashed=True)
    d.text(16, 218, "each unit says where its message is", anchor="start", faint=True)
    d.arrow((330, 312), (330, 332), (85, 332), (85, 312))
    d.text(205, 349, "prev_pos: the unit before it in the same slot", faint=True)

    d.text(520, 250, "timerwheel", anchor="start", bold=True)
    d.text(520, 266, "one 32-byte slot for each second", anchor="start", faint=True)
    for i, words in enumerate(["09:00:00", "09:00:01", "09:00:02", "…"]):
        d.box(520 + 85 * i, 276, 85, 36, DISK, words)
    d.arrow((647, 312), (647, 370), (370, 370), (370, 312))
    d.text(510, 387, "the last unit of the slot's chain", faint=True)

    d.text(20, 415, "config/timercheck", anchor="start", bold=True)
    d.text(
        175,
        415,
        "the cursors of the last checkpoint: up to there all files are fsynced and agree",
        anchor="start",
        faint=True,
    )
    d.save("disk.svg")


def draw_locks() -> None:
    """Draw which thread works under which lock, and on what."""
    d = Drawing(900, 400, "Which thread works under which lock")
    rows = [
        ("enqueue-get", "", "reads what was put"),
        ("enqueue-put", "W", "links units"),
        ("dequeue-get", "NW", "claims, takes"),
        ("dequeue-put", "FW", "fires, passes slots"),
        ("deliver-levels", "F", "delay levels"),
        ("cancel, reschedule", "F", "the cancelled set"),
        ("flush: checkpoint", "FW", "captures cursors, pages"),
        ("flush: cleaning", "FNW", "copies, moves the floor"),
        ("put", "", "appends"),
    ]
    columns = {"F": (345, "1  fire"), "N": (485, "2  near"), "W": (595, "3  wheel")}
    widths = {"F": 130, "N": 100, "W": 130}
    append_x = 735
    protects = {
        "F": "cancelled set, levels",
        "N": "near wheel",
        "W": "units, slots, cursors",
    }
    for key, (x, words) in columns.items():
        d.box(x, 20, widths[key], 46, MEMORY, words, protects[key])
    d.box(append_x, 20, 150, 46, TRUTH, "4  append lock", "commit log, queues")
    appends = {"dequeue-put", "deliver-levels", "cancel, reschedule", "flush: cleaning", "put"}
    for i, (who, locks, what) in enumerate(rows):
        y = 92 + 31 * i
        d.text(20, y, who, anchor="start", bold=True)
        d.text(180, y, what, anchor="start", faint=True)
        d.parts.append(f'<line x1="20" x2="885" y1="{y + 10}" y2="{y + 10}" stroke="#d5dde0"/>')
        for key, (x, _) in columns.items():
            if key in locks:
                _dot(d, x + widths[key] // 2, y - 5, MEMORY)
        if who in appends:
            _dot(d, append_x + 75, y - 5, TRUTH)
    d.text(
        20,
        388,
        "Locks are taken from left to right, each for one bounded step of machine code, "
        "which needs no GIL.",
        anchor="start",
        faint=True,
    )
    d.save("locks.svg")


def _dot(d: Drawing, x: int, y: int, fill: str) -> None:
    d.parts.append(f'<circle cx="{x}" cy="{y}" r="8" fill="{fill}" stroke="{INK}"/>')


def draw_what() -> None:
    """Draw what timerstore is: a library in a program, with a folder."""
    d = Drawing(760, 160, "timerstore is a library in your program, with a folder on your disk")
    d.parts.append(
        f'<rect x="10" y="10" width="740" height="76" rx="8" fill="none" stroke="{FAINT}" '
        'stroke-dasharray="5 4"/>'
    )
    d.text(380, 28, "your program", faint=True)
    d.box(25, 34, 210, 42, CALL, 'put(b"order:42", …)', "with a delay or a time")
    d.box(290, 34, 180, 42, MEMORY, "timerstore", "no server, no polling")
    d.box(525, 34, 210, 42, CALL, "your handler", "when it is due")
    d.arrow((235, 55), (290, 55))
    d.arrow((470, 55), (525, 55))
    d.box(240, 112, 280, 40, TRUTH, "timers/", "a folder on your disk")
    d.arrow((350, 76), (350, 112))
    d.arrow((410, 112), (410, 76))
    d.text(532, 129, "outlives a restart, kill -9,", anchor="start", faint=True)
    d.text(532, 144, "a power cut", anchor="start", faint=True)
    d.save("what.svg")


_ROW = re.compile(r"^\| lateness in the handler.*?\|[^|]*\|(?P<measured>[^|]*)\|", re.M)
_PEER = re.compile(r"(?P<name>\w+) (?P<median>[0-9.]+) / (?P<p99>[0-9.]+) ms")
PEERS = {
    "timerstore": ("timerstore", ""),
    "APScheduler": ("APScheduler 3", "jobs in SQLite"),
    "huey": ("a table that is polled", "huey on SQLite, each second"),
}


def draw_lateness() -> None:
    """Draw how late a handler was called, as docs/benchmarks.md says that it was measured."""
    row = _ROW.search((FOLDER.parent / "benchmarks.md").read_text())
    assert row, "docs/benchmarks.md has no row of lateness in the handler"
    measured = {each["name"]: each for each in _PEER.finditer(row["measured"])}
    d = Drawing(760, 250, "How late a handler is called, median to 99th percentile")
    left, right, low_ms, high_ms = 210, 730, 0.1, 2000.0

    def x_of(ms: float) -> int:
        share = math.log(ms / low_ms) / math.log(high_ms / low_ms)
        return round(left + share * (right - left))

    d.text(20, 26, "How late a handler is called", anchor="start", bold=True)
    words = "median to 99th percentile, 250 jobs a second; each step is ten times as late"
    d.text(20, 44, words, anchor="start", faint=True)
    for ms, words in ((0.1, "0.1 ms"), (1, "1 ms"), (10, "10 ms"), (100, "100 ms"), (1000, "1 s")):
        x = x_of(ms)
        d.parts.append(f'<line x1="{x}" x2="{x}" y1="60" y2="215" stroke="#d5dde0"/>')
        d.text(x, 234, words, faint=True)
    for i, (name, (who, what)) in enumerate(PEERS.items()):
        y = 85 + 50 * i
        median, p99 = float(measured[name]["median"]), float(measured[name]["p99"])
        d.text(20, y + (0 if what else 5), who, anchor="start", bold=True)
        if what:
            d.text(20, y + 16, what, anchor="start", faint=True)
        x1, x2 = x_of(median), x_of(p99)
        fill = "#128277" if name == "timerstore" else "#9fb0b8"
        d.parts.append(
            f'<rect x="{x1}" y="{y - 8}" width="{x2 - x1}" height="16" rx="4" fill="{fill}"/>'
        )
        said = f"{_short(median)} to {_short(p99)}"
        if x2 < right - 130:
            d.text(x2 + 8, y + 5, said, anchor="start", faint=True)
        else:
            d.text(x1 - 8, y + 5, said, anchor="end", faint=True)
    d.save("late.svg")


def _short(ms: float) -> str:
    return f"{ms:g} ms" if ms < 100 else f"{ms / 1000:.1f} s"


def main() -> None:
    """Draw all of them."""
    draw_what()
    draw_lateness()
    draw_way()
    draw_disk()
    draw_locks()


if __name__ == "__main__":
    main()
