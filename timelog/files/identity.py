"""What a store was made with: its tag, its sizes, none of which ever changes.

`timerstore.json` says it in a form that people can read. A copy with a CRC stands behind each copy
of the checkpoint in `config/timercheck`, if a broker leaves it alone: without any of them a store
would be taken for a broker's, whose timers nobody here has cancelled.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError, NotAStoreError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import read_json, understood, whole, write_json
from timerstore.timelog.files.reader_end import read_file
from timerstore.timelog.files.smallfile import At, by_path, read_head

FORMAT_VERSION: Final = 2
IDENTITY_FILE: Final = "timerstore.json"
_CRC_AT: Final = fmt.IDENTITY.itemsize - fmt.IDENTITY["crc"].itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What a store of ours was made with."""

    version: int = field(default=FORMAT_VERSION, compare=False)
    store_tag: int
    precision_ms: int
    roll_window_slots: int
    wheel_slot_count: int
    commitlog_segment_bytes: int
    consumequeue_segment_bytes: int
    timerlog_segment_bytes: int
    roll_hop_slots: int = 0
    """How far a roll hops, so on which grid an id finds its timer; 0: the longest that leads ahead
    from a slot that has begun, as in each store that is new."""

    def __post_init__(self) -> None:
        if not self.roll_hop_slots:
            object.__setattr__(self, "roll_hop_slots", max(1, self.roll_window_slots - 1))

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
    each.name
    for each in fields(Identity)
    if each.name not in ("version", "store_tag", "roll_hop_slots")
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a store was made with. `precision_ms` is None in a broker's without a used slot."""

    commitlog_segment_bytes: int
    consumequeue_segment_bytes: int
    timerlog_segment_bytes: int
    wheel_slot_count: int
    precision_ms: int | None = None
    roll_window_slots: int | None = None
    roll_hop_slots: int = 0
    store_tag: int = -1
    by_broker: bool = True

    @property
    def hop_ms(self) -> int:
        """How far a roll of ours hops; 0 in a broker's store."""
        return self.roll_hop_slots * (self.precision_ms or 0)


def decode_identity(data: bytes) -> Identity | None:
    """Decode one copy; None if there is none, or a damaged one."""
    if len(data) < fmt.IDENTITY.itemsize or not data.startswith(fmt.IDENTITY_MARK):
        return None
    block = np.frombuffer(data, fmt.IDENTITY, 1)[0]
    if int(block["crc"]) != zlib.crc32(data[:_CRC_AT]):
        return None
    return Identity(**{each.name: int(block[each.name]) for each in fields(Identity)})


def read_copy(path: Path, at: At = by_path) -> Identity | None:
    """Return what `config/timercheck` says, by either of its copies."""
    try:
        data = read_head(path / "config" / "timercheck", 2 * fmt.CHECKPOINT_BYTES, at)
    except FileNotFoundError:
        return None
    first = decode_identity(data[fmt.IDENTITY_AT :])
    return first or decode_identity(data[fmt.CHECKPOINT_COPY_AT + fmt.IDENTITY_AT :])


def parse_identity(described: dict[str, Any]) -> Identity:
    """Take what `timerstore.json` holds; raises CorruptStoreError."""
    with understood(IDENTITY_FILE):
        at_least = dict.fromkeys((*SIZES, "roll_hop_slots"), 1)
        values = {
            each.name: whole(described[each.name], at_least.get(each.name, 0), (1 << 48) - 1)
            for each in fields(Identity)
        }
    if values["consumequeue_segment_bytes"] % fmt.ENTRY_BYTES:
        reason = "consumequeue_segment_bytes is no multiple of an entry"
        raise CorruptStoreError(IDENTITY_FILE, 0, reason)
    return Identity(**values)


def find_identity(path: Path, at: At = by_path) -> tuple[Identity | None, CorruptStoreError | None]:
    """Return what a store was made with, and what is wrong with `timerstore.json`.

    None and None: no store of ours, as far as these files tell. The copy has a CRC, so if the
    two differ, it holds. Raises NotAStoreError if another version made the store.
    """
    found, fault = None, None
    try:
        described = read_json(path / IDENTITY_FILE, lambda file: read_file(file, at))
        if described is not None:
            found = parse_identity(described)
    except CorruptStoreError as e:
        fault = e
    copy = read_copy(path, at)
    if copy is not None and copy != found:
        if fault is None:
            reason = (
                "it is missing or damaged"
                if found is None
                else ("it differs from its copy in config/timercheck")
            )
            fault = CorruptStoreError(IDENTITY_FILE, 0, reason)
        found = copy
    if found is not None and found.version != FORMAT_VERSION:
        raise NotAStoreError(
            f"{path / IDENTITY_FILE} has version {found.version}, and this timerstore knows "
            f"version {FORMAT_VERSION}. Open the store with the timerstore that made it."
        )
    return found, fault


def write_identity(disk: Disk, path: Path, identity: Identity) -> None:
    """Write `timerstore.json`; durable on return."""
    write_json(disk, path / IDENTITY_FILE, asdict(identity))
