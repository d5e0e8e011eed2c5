"""Makes the site's pictures anew: `.venv/bin/python docs/img/make.py`; then look at them.

The plot is that of the notebooks' store, which is the same each time. `top` and the page watch a
small shop that runs in this process for a few seconds; Chromium draws them.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

import timerstore
from timerstore import pipeline
from timerstore.page import PageServer
from timerstore.pipeline import charts
from timerstore.pipeline.htmlreport import read_report

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "notebooks"))

import example_store  # noqa: E402

WIDTH, HEIGHT = 84, 22
LINE_HEIGHT = 24.4
RUN_S = 14
CODE = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg"
width="{width}" height="{height}"><style>
.{unique_id}-matrix {{ font-family: 'DejaVu Sans Mono', monospace; font-size: {char_height}px;
line-height: {line_height}px; }} {styles} </style><defs>{lines}</defs>
<g transform="translate(8, 8)" clip-path="none">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


def draw_due(folder: Path) -> None:
    """Draw when timers fall due, as a report does."""
    pipeline.run(example_store.make(folder / "shop"), folder / "tables")
    (store,) = read_report(folder / "tables").stores
    charts.due_bars(store.due, store.topics, store.step_ms).savefig(FOLDER / "due.png", dpi=150)


def draw_shop(folder: Path) -> None:
    """Draw `timerstore top` and the page of a store in which something happens."""
    config = timerstore.Config(delay_levels="1s 2s 3s 10s")
    with timerstore.open(folder / "timers", config=config) as store:
        mailer = timerstore.Consumer(store, "mailer")
        mailer.subscribe("reminders", lambda _: time.sleep(0.002))
        payer = timerstore.Consumer(store, "payer", max_attempts=3)
        payer.subscribe("payments", _pay)
        over = threading.Event()
        shop = threading.Thread(target=_trade, args=(store, over))
        with mailer, payer:
            shop.start()
            try:
                time.sleep(RUN_S)
                screen = _top(folder)
                with PageServer(store, "127.0.0.1:0") as page:
                    _picture("page.png", page.url, 1_000, 640)
            finally:
                over.set()
                shop.join()
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text.from_ansi(screen.rstrip()), soft_wrap=True)
    svg = folder / "top.svg"
    svg.write_text(console.export_svg(theme=DEFAULT_TERMINAL_THEME, code_format=CODE))
    width = int(float(svg.read_text().split('viewBox="0 0 ')[1].split()[0]))
    height = 24 + int(LINE_HEIGHT * len(screen.rstrip().splitlines()))
    _picture("top.png", str(svg), width, height)


def _picture(name: str, address: str, width: int, height: int) -> None:
    chromium = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars"]
    picture = [f"--screenshot={FOLDER / name}", f"--window-size={width},{height}"]
    subprocess.run([*chromium, *picture, address], check=True, capture_output=True)


def _pay(_: timerstore.Delivery) -> None:
    if random.random() < 0.05:
        raise ValueError("the card was refused")


def _trade(store: timerstore.TimerStore, over: threading.Event) -> None:
    rng = random.Random(7)
    while not over.wait(0.1):
        for topic, count, until_ms in (("reminders", 80, 40_000), ("payments", 15, 9_000)):
            delays_ms = [rng.randint(100, until_ms) for _ in range(count)]
            store.put_many([b"x" * 80] * count, topic=topic, delay_ms=delays_ms)
        store.put(b"y", topic="renewals", delay=timedelta(days=rng.randint(1, 30)))


def _top(folder: Path) -> str:
    """Return the screen of `timerstore top timers/`, with its colours."""
    command = [str(Path(sys.executable).with_name("timerstore")), "top", "timers", "--once"]
    env = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "LINES": str(HEIGHT)}
    told = subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True)
    return told.stdout


def main() -> None:
    """Make all of them."""
    with tempfile.TemporaryDirectory() as place:
        draw_due(Path(place))
        draw_shop(Path(place))
    for path in sorted(FOLDER.glob("*.png")):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
