"""Faults of single bytes in every kind of file: what a disk does, not what a program may write."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace

from tests import naive
from tests.rigs.patient import TIMERS, Patient
from tests.rigs.planted import LOG, UNITS, WHEEL, Place
from timerstore.testing.damage import flip_bit
from timerstore.timelog.bytes import format as fmt
from timerstore.validation.smallfiles import (
    COUNTS_FILE,
    CURSORS_FILE,
    FLUSH_TIMES_FILE,
    GROUPS_FILE,
)

ANYWHERE = -1
"""An offset: it is enough that the file is named."""
FLIPS: dict[str, tuple[str, Callable[[Patient], Place]]] = {}
"""By name: the rule that finds it, what plants it."""
TIMER_QUEUE = f"consumequeue/{TIMERS}/0"
IDENTITY_FILE = "timerstore.json"


def flip(rule: str, name: str) -> Callable[[Callable[[Patient], Place]], None]:
    """Enter a fault."""

    def enter(plant: Callable[[Patient], Place]) -> None:
        assert name not in FLIPS
        FLIPS[name] = rule, plant

    return enter


# --- the commit log


def _in_message(which: int, at: int) -> None:
    @flip("message_sound", f"message {which}, byte {at}")
    def _(store: Patient) -> Place:
        offset = sorted(store.messages)[which]
        store.log.flip(offset + at, 0x10)
        return LOG, offset


for which in (0, 20, -1):
    for at in (0, 4, 8, 12, 20, 28, 40, 56, 84, 88, 92):
        _in_message(which, at)


@flip("message_sound", "a message's checksum")
def _(store: Patient) -> Place:
    first, second = sorted(store.messages)[7:9]
    store.log.flip(second - 19)
    return LOG, first


@flip("message_sound", "three messages of zeros")
def _(store: Patient) -> Place:
    offsets = sorted(store.messages)
    store.log.write(offsets[5], bytes(offsets[8] - offsets[5]))
    return LOG, offsets[5]


@flip("closed", "a byte behind the commit log's end")
def _(store: Patient) -> Place:
    at = store.log.start + len(store.log.files) * store.log.segment_bytes - 5
    store.log.flip(at)
    return LOG, at


@flip("closed", "the commit log's end is gone")
def _(store: Patient) -> Place:
    offset = max(store.messages)
    store.log.write(offset, bytes(store.log_end - offset))
    return LOG, offset


@flip("files", "a segment is missing")
def _(store: Patient) -> Place:
    store.log.files[1].unlink()
    return LOG, store.log.segment_bytes


@flip("files", "a segment is short")
def _(store: Patient) -> Place:
    os.truncate(store.log.files[1], 3_000)
    return LOG, store.log.segment_bytes + 3_000


@flip("message_sound", "a topic that no queue can have")
def _(store: Patient) -> Place:
    """Its bytes are a message's, with a checksum that matches."""
    message = next(m for m in store.messages.values() if m.topic == "default")
    message = replace(message, topic="t" * 256, magic=naive.MESSAGE_MAGIC_LONG_TOPIC, properties={})
    message = replace(message, offset=store.log_end, queue_offset=0)
    data = naive.encode_message(message)
    store.log.write(store.log_end, data)
    store.set_checkpoint(commitlog_flushed=store.log_end + len(data))
    store.set_flushed(store.log_end + len(data))
    return LOG, store.log_end


# --- the queues


def _in_entry(rule: str, index: int, at: int) -> None:
    @flip(rule, f"entry {index}, byte {at}")
    def _(store: Patient) -> Place:
        flip_bit(store.path / f"{TIMER_QUEUE}/{0:020d}", index * fmt.ENTRY_BYTES + at)
        return TIMER_QUEUE, index * fmt.ENTRY_BYTES


for index in (0, 13, 30):
    for at, rule in ((3, "entry"), (9, "entry"), (15, "entry_tags")):
        _in_entry(rule, index, at)


@flip("entry_message", "an entry behind a queue's end")
def _(store: Patient) -> Place:
    used = int((store.entries(TIMERS)["size"] > 0).sum())
    flip_bit(store.path / f"{TIMER_QUEUE}/{0:020d}", (used + 2) * fmt.ENTRY_BYTES + 7)
    return TIMER_QUEUE, (used + 2) * fmt.ENTRY_BYTES


@flip("entry", "a queue is missing")
def _(store: Patient) -> Place:
    shutil.rmtree(store.path / "consumequeue" / "second")
    return "consumequeue/second/0", 0


# --- the timer log


def _in_unit(which: int, name: str) -> None:
    @flip("unit_sound", f"unit {which}, {name}")
    def _(store: Patient) -> Place:
        offset = sorted(store.units)[which]
        kind, at = fmt.UNIT.fields[name][:2] if fmt.UNIT.fields else (fmt.UNIT, 0)
        store.units_log.flip(offset + int(at) + kind.itemsize - 1)
        return UNITS, offset


for which in (0, 25, -1):
    for name in fmt.UNIT.names or ():
        _in_unit(which, name)


@flip("closed", "a timer log's segment is not closed")
def _(store: Patient) -> Place:
    at = store.units_log.segment_bytes - 40
    store.units_log.flip(at)
    return UNITS, at


# --- the wheel


@flip("unreached", "a slot of zeros")
def _(store: Patient) -> Place:
    index = int(store.slots["time"].argmax())
    last = int(store.slots[index]["last"])
    with open(store.path / "timerwheel", "r+b") as file:
        file.seek(index * fmt.SLOT_BYTES)
        file.write(bytes(fmt.SLOT_BYTES))
    return UNITS, last


def _in_slot(rule: str, name: str, told_at: int) -> None:
    @flip(rule, f"a slot's {name}")
    def _(store: Patient) -> Place:
        place = int(store.slots["time"].argmax()) * fmt.SLOT_BYTES
        kind, at = fmt.SLOT.fields[name][:2] if fmt.SLOT.fields else (fmt.SLOT, 0)
        flip_bit(store.path / WHEEL, place + int(at) + kind.itemsize - 1)
        return WHEEL, place + told_at


for name, rule, told_at in (
    ("time", "slot_place", fmt.SLOT_TIME_AT),
    ("first", "slot_first", fmt.SLOT_FIRST_AT),
    ("last", "slot_last", fmt.SLOT_LAST_AT),
    ("magic", "slot_place", fmt.SLOT_TIME_AT),
):
    _in_slot(rule, name, told_at)


# --- the small files


def _in_file(rule: str, file: str, at: int) -> None:
    @flip(rule, f"{file}, byte {at}")
    def _(store: Patient) -> Place:
        flip_bit(store.path / file, at)
        return file, ANYWHERE


for at in (7, 15, 23, 31, 60, 150, 400, 600, 2_048 + 7, 2_048 + 100, 4_000):
    _in_file("cursor_copies", CURSORS_FILE, at)
for at in (3, 12, 20, 28, 39, 50, 4_000):
    _in_file("flush_times", FLUSH_TIMES_FILE, at)


def _in_json(name: str) -> None:
    @flip("json", f"{name} is no JSON")
    def _(store: Patient) -> Place:
        file = store.path / name
        file.write_text(file.read_text().replace(":", ";", 1))
        return name, ANYWHERE


for name in (IDENTITY_FILE, COUNTS_FILE, GROUPS_FILE):
    _in_json(name)
