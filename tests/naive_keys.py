"""The key index in its plainest form: RocketMQ's IndexFile, searched with `struct`.

What its own writer made of the same messages is in tests/golden/index.json.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from timerstore.timelog.bytes import format as fmt

HEADER = struct.Struct(">qqqqii")  # begin ms, end ms, begin offset, end offset, used slots, count
ENTRY = struct.Struct(">iqii")  # hash, commit log offset, seconds since begin, previous entry


def java_hash(text: str) -> int:
    """Return |h| of `String.hashCode`, 0 where that has no positive counterpart."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", units):
        code = (code * 31 + unit) & 0xFFFFFFFF
    if code >= 1 << 31:
        code -= 1 << 32
    return abs(code) if code != -(1 << 31) else 0


def words_of(keys: str | None) -> list[str]:
    """Return the keys that a message is found by: what blanks separate."""
    return [word for word in (keys or "").split(" ") if word]


@dataclass
class NaiveIndexFile:
    """One file, in memory."""

    slot_count: int
    entry_count_max: int
    end_ms: int = 0
    end_offset: int = 0
    begin_ms: int = field(init=False)
    begin_offset: int = field(init=False)
    slots: list[int] = field(init=False)
    entries: list[tuple[int, int, int, int]] = field(init=False)

    def __post_init__(self) -> None:
        """Begin where the file before ended."""
        self.begin_ms, self.begin_offset = self.end_ms, self.end_offset
        self.slots, self.entries = [0] * self.slot_count, []

    @property
    def is_full(self) -> bool:
        """Entries count from 1, so a file holds one less than it has room for."""
        return len(self.entries) + 1 >= self.entry_count_max

    def put(self, key: str, offset: int, stored_ms: int) -> None:
        """Add an entry at the head of its slot's chain."""
        code = java_hash(key)
        seconds = (stored_ms - self.begin_ms) // 1_000 if self.begin_ms > 0 else 0
        seconds = min(max(seconds, 0), 0x7FFFFFFF)
        slot = code % self.slot_count
        self.entries.append((code, offset, seconds, self.slots[slot]))
        self.slots[slot] = len(self.entries)
        if len(self.entries) == 1:
            self.begin_ms, self.begin_offset = stored_ms, offset
        self.end_ms, self.end_offset = stored_ms, offset

    def find(self, key: str) -> list[int]:
        """Return the offsets that a key may be at, the newest first."""
        found, code = [], java_hash(key)
        at = self.slots[code % self.slot_count]
        while at:
            each, offset, _, at = self.entries[at - 1]
            if each == code:
                found.append(offset)
        return found

    def encode(self) -> bytes:
        """Return the file's bytes."""
        used = sum(slot != 0 for slot in self.slots)
        count = len(self.entries) + 1
        head = HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, used, count
        )
        data = head + struct.pack(f">{self.slot_count}i", *self.slots) + bytes(ENTRY.size)
        data += b"".join(ENTRY.pack(*each) for each in self.entries)
        return data.ljust(HEADER.size + 4 * self.slot_count + 20 * self.entry_count_max, b"\0")


def entries_of(view: Any, start: int, stop: int) -> Any:
    """Return entries [start, stop) in a file's bytes: KEY_ENTRY[n]."""
    room = (len(view) - fmt.KEY_HEADER_BYTES) // (fmt.KEY_SLOT_BYTES + fmt.KEY_ENTRY_BYTES)
    at = fmt.KEY_HEADER_BYTES + fmt.KEY_SLOT_BYTES * room
    return view[at + fmt.KEY_ENTRY_BYTES * start : at + fmt.KEY_ENTRY_BYTES * stop].view(
        fmt.KEY_ENTRY
    )
