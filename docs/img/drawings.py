"""Draws the pictures of the architecture page as SVG: `.venv/bin/python docs/img/drawings.py`.

Look at them afterwards as PNG, for example with `chromium --headless --screenshot`.
"""

from __future__ import annotations

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

    d.box(240, 140, 130, 50, MEMORY, "ring A", "4,096 entries")
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

    d.box(620, 365, 130, 50, MEMORY, "ring C", "4,096 entries")
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
        ("dequeue-put", "FW", "fires; moves R"),
        ("deliver-levels", "F", "delay levels"),
        ("cancel, reschedule", "F", "the cancelled set"),
        ("flush: checkpoint", "FW", "captures cursors, pages"),
        ("flush: cleaning", "FNW", "copies, moves F"),
        ("put", "", "appends"),
    ]
    columns = {"F": (345, "1  fire"), "N": (485, "2  near"), "W": (595, "3  wheel")}
    widths = {"F": 130, "N": 100, "W": 130}
    append_x = 735
    protects = {
        "F": "cancelled set, levels",
        "N": "near wheel",
        "W": "units, slots, C, R",
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


def main() -> None:
    """Draw all of them."""
    draw_way()
    draw_disk()
    draw_locks()


if __name__ == "__main__":
    main()
