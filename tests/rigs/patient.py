"""A closed store whose records can be written again, with checksums that match.

What a fault does is then what it says, and no more: a unit with a wrong pointer has the CRC of a
unit with that pointer.
"""

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests import naive
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import (
    WHEEL_FILE,
    Stamp,
    TimerCheckpoint,
    decode_checkpoint,
    write_derived,
)
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import sealed

TIMERS = fmt.TIMER_TOPIC.decode()


class Folder:
    """The segments of one log."""

    def __init__(self, path: Path) -> None:
        self.files = sorted(path.iterdir())
        self.segment_bytes = self.files[0].stat().st_size
        self.start = int(self.files[0].name)

    def read(self, offset: int, count: int) -> bytes:
        number, position = divmod(offset - self.start, self.segment_bytes)
        return self.files[number].read_bytes()[position : position + count]

    def write(self, offset: int, data: bytes) -> None:
        number, position = divmod(offset - self.start, self.segment_bytes)
        assert position + len(data) <= self.segment_bytes, "it would cross a segment's end"
        with open(self.files[number], "r+b") as file:
            file.seek(position)
            file.write(data)

    def flip(self, offset: int, bit: int = 1) -> None:
        self.write(offset, bytes([self.read(offset, 1)[0] ^ bit]))


class Patient:
    """One store."""

    def __init__(self, path: Path, precision_ms: int = 1_000) -> None:
        self.path, self.precision_ms = path, precision_ms
        self.log, self.units_log = Folder(path / "commitlog"), Folder(path / "timerlog")
        self.reread()

    def reread(self) -> None:
        """Look at everything again."""
        segments = {int(file.name): file.read_bytes() for file in self.log.files}
        scanned = naive.scan_commit_log(segments, self.log.start)
        assert scanned.damage is None
        self.log_end = scanned.end
        self.messages = {message.offset: message for message in scanned.messages}
        self.units = dict(self._read_units())
        self.slots = np.fromfile(self.path / "timerwheel", fmt.SLOT)

    def _read_units(self) -> Iterator[tuple[int, Any]]:
        log = self.units_log
        for number, file in enumerate(log.files):
            data, at = file.read_bytes(), 0
            while at + fmt.UNIT_BYTES + fmt.TIMERLOG_BLANK_BYTES <= len(data):
                unit = np.frombuffer(data[at : at + fmt.UNIT_BYTES], fmt.UNIT)[0]
                if unit["size"] == fmt.UNIT_BYTES:
                    yield log.start + number * log.segment_bytes + at, unit
                at += fmt.UNIT_BYTES

    @property
    def checkpoint(self) -> TimerCheckpoint:
        found = decode_checkpoint((self.path / "config" / "timercheck").read_bytes())
        assert found is not None
        return found

    @property
    def read_slot(self) -> int:
        return self.checkpoint.read_ms // self.precision_ms

    def slot_of(self, unit: Any) -> int:
        return (int(unit["write_ms"]) + int(unit["delta_ms"])) // self.precision_ms

    def chains(self, *, ahead: bool, at_least: int = 1) -> list[list[int]]:
        """The units of slots that are in the wheel and whole, oldest first."""
        chains: dict[int, list[int]] = {}
        for offset, unit in sorted(self.units.items()):
            chains.setdefault(self.slot_of(unit), []).append(offset)
        return [
            chain
            for slot, chain in sorted(chains.items())
            if (slot >= self.read_slot) == ahead
            and self.slots[self.index_of(slot)]["time"] == slot
            and self.units[chain[0]]["prev_pos"] == -1
            and len(chain) >= at_least
        ]

    def index_of(self, slot: int) -> int:
        return slot % len(self.slots)

    # --- changing

    def set_unit(self, offset: int, **fields: int) -> None:
        """Write a unit again with other fields, and its CRC."""
        unit = np.array([self.units[offset]], fmt.UNIT)
        for name, value in fields.items():
            unit[name] = value
        data = unit.tobytes()
        covered = offset.to_bytes(8, "big") + data[:44] + data[48:]
        unit["crc"] = zlib.crc32(covered)
        self.units_log.write(offset, unit.tobytes())

    def set_slot(self, index: int, **fields: int) -> int:
        """Write a slot again with other fields; return where it stands."""
        slot = np.array([self.slots[index]], fmt.SLOT)
        for name, value in fields.items():
            slot[name] = value
        with open(self.path / "timerwheel", "r+b") as file:
            file.seek(index * fmt.SLOT_BYTES)
            file.write(slot.tobytes())
        self.sum_wheel()
        return index * fmt.SLOT_BYTES

    def sum_wheel(self) -> None:
        """Note the checksums of the wheel's pages anew."""
        wheel = (self.path / "timerwheel").read_bytes()
        sums = [zlib.crc32(wheel[at : at + 4_096]) for at in range(0, len(wheel), 4_096)]
        last = decode_checkpoint((self.path / "config" / "timercheck").read_bytes())
        assert last is not None
        stamp = Stamp(last.store_tag, last.sequence, last.commitlog_flushed)
        write_derived(Disk(), self.path / WHEEL_FILE, stamp, np.array(sums, "<u4"))

    def set_message(self, offset: int, **fields: Any) -> None:
        """Write a message again, of the same size."""
        message = replace(self.messages[offset], **fields)
        data = naive.encode_message(message)
        assert len(data) == self.messages[offset].size_bytes
        self.log.write(offset, data)

    def append(self, message: naive.Message) -> int:
        """Append a message with its queue entry, as if it had been there when the store closed."""
        entries = self.entries(message.topic, message.queue_id)
        used = int((entries["size"] > 0).sum())
        message = replace(message, offset=self.log_end, queue_offset=used)
        data = naive.encode_message(message)
        self.log.write(self.log_end, data)
        hash_of = naive.java_hash(message.properties["TAGS"]) if "TAGS" in message.properties else 0
        self.set_entry(
            message.topic, used, offset=message.offset, size=len(data), tags_code=hash_of
        )
        self.set_checkpoint(commitlog_flushed=self.log_end + len(data))
        self.set_flushed(self.log_end + len(data))
        return message.offset

    def set_flushed(self, offset: int) -> None:
        """Write up to where the log was flushed, as RocketMQ's file says it."""
        with open(self.path / "checkpoint", "r+b") as file:
            file.seek(32)
            file.write(offset.to_bytes(8, "big"))

    def entries(self, topic: str, queue_id: int = 0) -> np.ndarray[Any, Any]:
        files = Folder(self.path / "consumequeue" / topic / str(queue_id)).files
        return np.concatenate([np.fromfile(file, fmt.QUEUE_ENTRY) for file in files])

    def set_entry(self, topic: str, index: int, **fields: int) -> int:
        """Write an entry again with other fields; return where it stands."""
        folder = Folder(self.path / "consumequeue" / topic / "0")
        at = index * fmt.ENTRY_BYTES
        entry = np.frombuffer(folder.read(at, fmt.ENTRY_BYTES), fmt.QUEUE_ENTRY).copy()
        for name, value in fields.items():
            entry[name] = value
        folder.write(at, entry.tobytes())
        return at

    def set_checkpoint(self, **fields: Any) -> None:
        """Write other cursors, in both copies."""
        data = replace(self.checkpoint, **fields).encode()
        whole = data.ljust(fmt.CHECKPOINT_COPY_AT, b"\0") + data
        (self.path / "config" / "timercheck").write_bytes(whole.ljust(fmt.CHECKPOINT_BYTES, b"\0"))

    def set_level(self, level: int, offset: int) -> None:
        """Move the offset of a delay level, counted from 0, wherever it stands."""
        offsets = list(self.checkpoint.level_offsets)
        offsets[level] = offset
        self.set_checkpoint(level_offsets=offsets)

        def move(content: Any) -> None:
            content["offsetTable"][str(level + 1)] = offset

        self.change_json("config/delayOffset.json", move)

    def change_json(self, name: str, change: Callable[[Any], None]) -> None:
        file = self.path / name
        content = json.loads(file.read_text())
        is_sealed = sealed({}).keys() <= content.keys()
        change(content)
        file.write_text(json.dumps(sealed(content) if is_sealed else content))
