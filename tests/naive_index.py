"""Slow, obvious twins of the indexes: consume queue, timer log, timer wheel, cursors, JSON."""

import json
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any, NamedTuple

from tests.naive_message import BLANK_MAGIC, INT32_MAX, DamageError, Message, java_hash

LEVEL_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"

ENTRY_BYTES = 20

UNIT_BYTES = 52
UNIT_ROLL = 2
UNIT_DELETE = 4
TIMER_LOG_BLANK_BYTES = 16

SLOT_BYTES = 32


# ---------------------------------------------------------------------- consume queue


class Entry(NamedTuple):
    """One entry of a consume queue."""

    message_offset: int
    message_bytes: int
    tags_code: int


QUEUE_BLANK = Entry(0, INT32_MAX, 0)


def encode_entry(entry: Entry) -> bytes:
    """20 bytes."""
    return struct.pack(">qiq", *entry)


def decode_entry(data: bytes) -> Entry:
    """Inverse of `encode_entry`."""
    return Entry(*struct.unpack(">qiq", data))


def durable_count(entries: Iterable[Entry], durable_end: int) -> int:
    """How many messages lie before `durable_end`, before the first that does not."""
    return len(
        list(
            takewhile(lambda each: each.message_offset + each.message_bytes <= durable_end, entries)
        )
    )


def scan_queue(segments: Mapping[int, bytes]) -> dict[int, Entry]:
    """Entries by index, up to the first that is all zero; blanks at the front are left out."""
    entries: dict[int, Entry] = {}
    for begin in sorted(segments):
        for at in range(0, len(segments[begin]), ENTRY_BYTES):
            entry = decode_entry(segments[begin][at : at + ENTRY_BYTES])
            if entry.message_bytes == 0:
                return entries
            if entry != QUEUE_BLANK:
                entries[(begin + at) // ENTRY_BYTES] = entry
    return entries


def tags_code(message: Message, level_delays_ms: list[int]) -> int:
    """The third field of a message's entry: the hash of its tag, or when its level is over."""
    if message.topic == LEVEL_TOPIC and "DELAY" in message.properties:
        level = min(int(message.properties["DELAY"]), len(level_delays_ms))
        if level > 0:
            return message.stored_ms + level_delays_ms[level - 1]
    return java_hash(message.properties.get("TAGS", ""))


# -------------------------------------------------------------------------- timer log


class Unit(NamedTuple):
    """One unit of the timer log; crc and extra are the reserved field, 0 in a broker's."""

    unit_bytes: int
    prev_pos: int
    magic: int
    write_ms: int
    delta_ms: int
    message_offset: int
    message_bytes: int
    topic_hash: int
    crc: int = 0
    extra: int = 0

    @property
    def time_ms(self) -> int:
        """The unit's time; its slot is this rounded down."""
        return self.write_ms + self.delta_ms

    @property
    def is_roll(self) -> bool:
        """Whether the message is to be appended again when its slot has begun."""
        return bool(self.magic & UNIT_ROLL)

    @property
    def is_delete(self) -> bool:
        """Whether the message takes another timer back."""
        return bool(self.magic & UNIT_DELETE)


def encode_unit(unit: Unit) -> bytes:
    """52 bytes, the CRC as it stands in the unit."""
    return struct.pack(">iqiqiqiiII", *unit)


def decode_unit(data: bytes) -> Unit:
    """Inverse of `encode_unit`; checks nothing."""
    return Unit(*struct.unpack(">iqiqiqiiII", data))


def unit_crc(unit: Unit, offset: int) -> int:
    """CRC-32 of the own offset and all bytes of the unit but the CRC itself."""
    data = encode_unit(unit)
    return zlib.crc32(struct.pack(">q", offset) + data[:44] + data[48:])


def seal_unit(unit: Unit, offset: int) -> Unit:
    """The unit with the CRC that it has at this offset."""
    return unit._replace(crc=unit_crc(unit, offset))


def check_unit(unit: Unit, offset: int) -> None:
    """Raise where this is neither a broker's unit nor one of ours at its own offset."""
    if unit.unit_bytes != UNIT_BYTES:
        raise DamageError(offset, f"a unit of {unit.unit_bytes} bytes")
    if unit.magic | 0xF != 0xF:
        raise DamageError(offset, f"unit magic {unit.magic}")
    if not -1 <= unit.prev_pos < offset:
        raise DamageError(offset, f"previous unit at {unit.prev_pos}")
    by_broker = (unit.crc, unit.extra) == (0, 0)
    late = by_broker and unit.time_ms >= 0  # a broker that starts writes what was due before
    if (unit.delta_ms < 0 and not late) or not 0 <= unit.write_ms < 1 << 48:
        raise DamageError(offset, f"write time {unit.write_ms} and {unit.delta_ms}")
    if not by_broker and unit.crc != unit_crc(unit, offset):
        raise DamageError(offset, "CRC of the unit")


def blank_unit(remaining: int) -> bytes:
    """The end of a timer log segment."""
    return struct.pack(">iqI", remaining, 0, BLANK_MAGIC) + bytes(remaining - TIMER_LOG_BLANK_BYTES)


def next_unit_offset(segment_bytes: int, end: int) -> int:
    """Where the next unit goes: at `end`, or at the next segment's start."""
    left = segment_bytes - end % segment_bytes
    return end + left if UNIT_BYTES + TIMER_LOG_BLANK_BYTES > left else end


class TimerLogScan(NamedTuple):
    """What a timer log holds: units by offset, blanks as (offset, bytes), and where it ends."""

    units: dict[int, Unit]
    blanks: list[tuple[int, int]]
    end: int
    damage: DamageError | None


def scan_timer_log(segments: Mapping[int, bytes]) -> TimerLogScan:
    """Read all segments up to the first zero or bad unit."""
    units: dict[int, Unit] = {}
    blanks: list[tuple[int, int]] = []
    end = min(segments, default=0)
    for begin in sorted(segments):
        segment = segments[begin]
        for at in range(0, len(segment), UNIT_BYTES):
            end = begin + at
            remaining = len(segment) - at
            if not any(segment[at : at + UNIT_BYTES]):
                return TimerLogScan(units, blanks, end, None)
            if remaining < UNIT_BYTES + TIMER_LOG_BLANK_BYTES:
                if segment[at : at + TIMER_LOG_BLANK_BYTES] != blank_unit(remaining)[:16]:
                    return TimerLogScan(units, blanks, end, DamageError(end, "no blank"))
                blanks.append((end, remaining))
                end += remaining
                break
            unit = decode_unit(segment[at : at + UNIT_BYTES])
            try:
                check_unit(unit, end)
            except DamageError as damage:
                return TimerLogScan(units, blanks, end, damage)
            units[end] = unit
    return TimerLogScan(units, blanks, end, None)


# ------------------------------------------------------------------------ timer wheel


class Slot(NamedTuple):
    """One slot of the timer wheel: `number` is its time divided by the precision, `net_count` its
    units less two for each delete.
    """

    number: int
    first_offset: int
    last_offset: int
    net_count: int
    magic: int = 0


def encode_slot(slot: Slot) -> bytes:
    """32 bytes."""
    return struct.pack(">qqqii", *slot)


def decode_slot(data: bytes) -> Slot:
    """Inverse of `encode_slot`."""
    return Slot(*struct.unpack(">qqqii", data))


def used_slots(wheel: bytes) -> dict[int, Slot]:
    """Slots that are not all zero, by their index in the wheel."""
    slots = {}
    for index in range(len(wheel) // SLOT_BYTES):
        data = wheel[index * SLOT_BYTES : (index + 1) * SLOT_BYTES]
        if data != bytes(SLOT_BYTES):
            slots[index] = decode_slot(data)
    return slots


# ---------------------------------------------------------------------------- cursors


class TimerCheck(NamedTuple):
    """The 56 bytes of `config/timercheck` that a broker reads and writes."""

    read_ms: int
    timer_log_flushed_offset: int
    queue_offset: int
    master_queue_offset: int
    state_version: int
    timestamp_ms: int
    counter: int


def encode_timercheck(check: TimerCheck) -> bytes:
    """56 bytes."""
    return struct.pack(">7q", *check)


def decode_timercheck(data: bytes) -> TimerCheck:
    """Inverse of `encode_timercheck`; what follows the 56 bytes is left alone."""
    return TimerCheck(*struct.unpack_from(">7q", data))


class Checkpoint(NamedTuple):
    """The 40 bytes of `checkpoint`."""

    commit_log_ms: int
    consume_queue_ms: int
    index_ms: int
    master_flushed_offset: int
    confirmed_offset: int


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """40 bytes."""
    return struct.pack(">5q", *checkpoint)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Inverse of `encode_checkpoint`."""
    return Checkpoint(*struct.unpack_from(">5q", data))


# ------------------------------------------------------------------------------- JSON


def parse_json(text: str) -> Any:
    """JSON in both forms: strict, and a broker's with integer keys that are not quoted."""
    string_or_key = re.compile(r'"(?:[^"\\]|\\.)*"|(-?[0-9]+)(?=\s*:)')
    strict = string_or_key.sub(lambda m: f'"{m[1]}"' if m[1] else m[0], text)
    return json.loads(strict)


def write_json(value: Any) -> str:
    """The strict form, which a broker reads too; keys become strings."""
    return json.dumps(value, separators=(",", ":"))
