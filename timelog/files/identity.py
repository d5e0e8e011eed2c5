"""What a store was made with: its tag, its sizes, none of which ever changes.

`timerstore.json` says it, for people to read. A copy with a CRC stands behind each copy of the
checkpoint in `config/timercheck`, where a broker leaves it alone: without any of them a store would
be taken for a broker's, whose timers nobody here has cancelled.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError, NotAStoreError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import read_json, understood, whole, write_json
from timerstore.timelog.files.smallfile import read_head

FORMAT_VERSION: Final = 1
IDENTITY_FILE: Final = "timerstore.json"
_CRC_AT: Final = fmt.IDENTITY.itemsize - 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What a store of ours was made with."""

    version: int = FORMAT_VERSION
    store_tag: int
    precision_ms: int
    roll_window_slots: int
    wheel_slot_count: int
    commitlog_segment_bytes: int
    consumequeue_segment_bytes: int
    timerlog_segment_bytes: int

    def sizes(self) -> dict[str, int]:
        """Return what the configuration has a setting for."""
        values = asdict(self)
        return {name: values[name] for name in SIZES}

    def encode(self) -> bytes:
        """Return the copy that stands in `config/timercheck`."""
        block = np.zeros(1, fmt.IDENTITY)
        block["mark"] = fmt.IDENTITY_MARK
        for name, value in asdict(self).items():
            block[name] = value
        block["crc"] = zlib.crc32(block.tobytes()[:_CRC_AT])
        return block.tobytes()


SIZES: Final = tuple(
    field.name for field in fields(Identity) if field.name not in ("version", "store_tag")
)


def decode_identity(data: bytes) -> Identity | None:
    """Decode one copy; None where there is none, or a damaged one."""
    if len(data) < fmt.IDENTITY.itemsize:
        return None
    block = np.frombuffer(data[: fmt.IDENTITY.itemsize], fmt.IDENTITY)[0]
    if block["mark"] != fmt.IDENTITY_MARK or int(block["crc"]) != zlib.crc32(data[:_CRC_AT]):
        return None
    return Identity(**{field.name: int(block[field.name]) for field in fields(Identity)})


def read_copy(path: Path) -> Identity | None:
    """Return what `config/timercheck` says, by either of its copies."""
    try:
        data = read_head(path / "config" / "timercheck", 2 * fmt.CHECKPOINT_BYTES)
    except FileNotFoundError:
        return None
    first = decode_identity(data[fmt.IDENTITY_AT :])
    return first or decode_identity(data[fmt.CHECKPOINT_COPY_AT + fmt.IDENTITY_AT :])


def parse_identity(described: dict[str, Any]) -> Identity:
    """Take what `timerstore.json` holds; raises CorruptStoreError."""
    with understood(IDENTITY_FILE):
        values = {
            field.name: whole(described[field.name], int(field.name in SIZES), (1 << 48) - 1)
            for field in fields(Identity)
        }
    if values["consumequeue_segment_bytes"] % fmt.ENTRY_BYTES:
        reason = "consumequeue_segment_bytes is no multiple of an entry"
        raise CorruptStoreError(IDENTITY_FILE, 0, reason)
    return Identity(**values)


def find_identity(path: Path) -> tuple[Identity | None, CorruptStoreError | None]:
    """Return what a store was made with, and what is wrong with `timerstore.json`.

    None and None: no store of ours, as far as these files tell. The copy has a CRC, so where the
    two differ, it holds. Raises NotAStoreError where another version made the store.
    """
    found, fault = None, None
    try:
        described = read_json(path / IDENTITY_FILE)
        if described is not None:
            found = parse_identity(described)
    except CorruptStoreError as e:
        fault = e
    copy = read_copy(path)
    if copy is not None and copy != found:
        if fault is None:
            reason = "it is lost" if found is None else "it is not what config/timercheck says"
            fault = CorruptStoreError(IDENTITY_FILE, 0, reason)
        found = copy
    if found is not None and found.version != FORMAT_VERSION:
        raise NotAStoreError(
            f"{path / IDENTITY_FILE} has version {found.version}; this program knows "
            f"{FORMAT_VERSION}. Open it with the version that made it."
        )
    return found, fault


def write_identity(disk: Disk, path: Path, identity: Identity) -> None:
    """Write `timerstore.json`; durable on return."""
    write_json(disk, path / IDENTITY_FILE, asdict(identity))
