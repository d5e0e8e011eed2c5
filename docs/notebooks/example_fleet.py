"""Stores for the notebooks about the pipeline: a fleet of shops, kinds of damage, a shop's month.

Each is what `example_store.py` makes, in small and with other numbers; each run makes the same.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

import timerstore
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import read_checkpoint

START_MS = 1_799_049_600_000
"""2027-01-04 08:00 UTC, a Monday."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DOWN_MS = 2_000
_CONFIG = timerstore.Config(
    durability="process",
    tuning=timerstore.Tuning(
        commitlog_segment_bytes=4 << 20,
        timerlog_segment_bytes=1 << 20,
        consumequeue_segment_bytes=200_000,
    ),
)


def make_shop(
    path: Path,
    *,
    day: int = 0,
    seed: int = 0,
    count: int = 4_000,
    campaign: int = 0,
    down_ms: int = DOWN_MS,
) -> Path:
    """Make a shop's store as it stands on a day at 08:00: reminders, retries, some fired.

    At weekends it has a third of the timers. `campaign`: so many more at 09:00:00 of the next day.
    `down_ms`: how long the program was down before, so that what fell due was late.
    """
    rng = np.random.default_rng((seed, day))
    now_ms = START_MS + day * DAY_MS
    if day % 7 >= 5:
        count //= 3
    reminders = count * 3 // 4 + int(rng.integers(0, count // 40))
    parts = {
        "reminders": now_ms + 60_000 + (rng.gamma(1.2, 1.5, reminders) * DAY_MS).astype(np.int64),
        "retries": now_ms + 30_000 + rng.exponential(600_000, count // 4).astype(np.int64),
        "campaign": np.full(campaign, now_ms // DAY_MS * DAY_MS + DAY_MS + 9 * HOUR_MS),
    }
    clock = timerstore.ManualClock(now_ms - 10_000 - down_ms)
    fired_ms = now_ms - 10_000 + rng.integers(-down_ms - 9_000, 0, count // 10)
    with timerstore.open(path, config=_CONFIG, clock=clock) as store:
        for topic, due_ms in {"receipts": np.maximum(fired_ms, clock.now_ms), **parts}.items():
            if len(due_ms):
                bodies = np.full((len(due_ms), 80), 65, np.uint8)
                store.put_many(bodies, topic=topic, at_ms=due_ms)
        clock.advance(timedelta(milliseconds=100))
    clock = timerstore.ManualClock(now_ms - 10_000)
    with timerstore.open(path, config=_CONFIG, clock=clock) as store:
        clock.advance(timedelta(seconds=10))
        batch = store.pull("receipts", group="printer", max_count=count, timeout=0)
        batch.ack()
    return path


def make_fleet(folder: Path, count: int = 20) -> dict[str, str]:
    """Make so many shops, of which three are damaged, one skewed, one overdue; return their paths.

    Damaged are `shop-03`, a bit of a message; `shop-07`, a unit that points elsewhere; `shop-11`,
    which is gone. `shop-05` has a campaign at one instant.
    """
    paths = {}
    for number in range(count):
        path = folder / f"shop-{number:02d}"
        paths[path.name] = str(path)
        if number != 11:
            make_shop(path, seed=number, campaign=3_000 if number == 5 else 0)
    if count > 3:
        _flip(_first(folder / "shop-03" / "commitlog"), 100)
    if count > 7:
        _flip(_first(folder / "shop-07" / "timerlog"), 5 * fmt.UNIT_BYTES + 27)
    return paths


def make_damaged(folder: Path, sound: Path) -> dict[str, str]:
    """Copy a sound store once for each kind of damage, plant that, and return the copies' paths."""
    folder.mkdir()
    paths = {}
    for name in ("message", "slot", "unit", "entry", "cursor"):
        path = folder / name
        # The wheel is mostly a hole, and stays one.
        subprocess.run(["cp", "-r", "--sparse=always", sound, path], check=True)
        paths[name] = str(path)
    _flip(_first(folder / "message" / "commitlog"), 100)
    _damage_chains(folder / "slot", folder / "unit")
    _damage_entry(folder / "entry")
    _damage_cursor(folder / "cursor")
    return paths


def _damage_chains(slot_store: Path, unit_store: Path) -> None:
    """Let a slot point to its second newest unit; in the other store let the newest be wrong."""
    slots = np.fromfile(slot_store / "timerwheel", fmt.SLOT)
    ahead = (slots["time"] > START_MS // 1000) & (slots["first"] != slots["last"])
    index = int(np.flatnonzero(ahead)[0])
    last = int(slots["last"][index])
    unit = np.fromfile(_first(slot_store / "timerlog"), fmt.UNIT, 1, offset=last)[0]
    before = int(unit["prev_pos"])
    _change(slot_store / "timerwheel", fmt.SLOT, index * fmt.SLOT_BYTES, last=before)
    beside = int(unit["message_offset"]) + 8
    _change(_first(unit_store / "timerlog"), fmt.UNIT, last, message_offset=beside)


def _damage_entry(store: Path) -> None:
    """Let an entry of the timers' queue lead to the message of the next one."""
    queue = _first(store / "consumequeue" / fmt.TIMER_TOPIC.decode() / "0")
    entries = np.fromfile(queue, fmt.QUEUE_ENTRY, 12)
    at = 10 * fmt.QUEUE_ENTRY.itemsize
    _change(queue, fmt.QUEUE_ENTRY, at, offset=int(entries["offset"][11]))


def _damage_cursor(store: Path) -> None:
    """Let the read cursor stand three days ahead, in both of its copies."""
    file = store / "config" / "timercheck"
    cursors = read_checkpoint(file)
    read_ms = cursors.read_ms + 3 * DAY_MS
    data = replace(cursors, read_ms=read_ms, claimed_slot=read_ms // 1000).encode()
    copies = data.ljust(fmt.CHECKPOINT_COPY_AT, b"\0") + data
    file.write_bytes(copies.ljust(fmt.CHECKPOINT_BYTES, b"\0"))


def _first(log: Path) -> Path:
    """Return the first segment of a log."""
    return min(log.iterdir())


def _flip(file: Path, at: int) -> None:
    """Change a bit, as a broken disk might."""
    content = np.memmap(file, np.uint8, "r+")
    content[at] ^= 1


def _change(file: Path, dtype: np.dtype, at: int, **fields: Any) -> None:
    """Write fields of the record at a byte of a file."""
    record = np.memmap(file, dtype, "r+", at, 1)
    for name, value in fields.items():
        record[name] = value
