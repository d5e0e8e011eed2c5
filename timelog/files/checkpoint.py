"""The checkpoint files: which cursors are durable.

`config/timercheck` begins with the 56 bytes that RocketMQ reads and writes. Behind them stand ours,
with an echo of the 56 and a CRC. Two copies are written one after the other, each made durable, so
that a torn write leaves one that holds. `checkpoint` is RocketMQ's file of flush times.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError, NotAStoreError, TimerStoreError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.blank import SEALED_NOWHERE
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import read_json, sealed, understood, whole, write_json
from timerstore.timelog.files.names import INT64_MAX
from timerstore.timelog.files.reader_end import Read, read_file
from timerstore.timelog.files.smallfile import At, by_path, read_head

# --- What a store was made with: its tag, its sizes, none of which ever changes.
#
# `timerstore.json` says it in a form that people can read. A copy with a CRC stands behind each
# copy of the checkpoint in `config/timercheck`, if a broker leaves it alone: without any of them a
# store would be taken for a broker's, whose timers nobody here has cancelled.

FORMAT_VERSION: Final = 2
IDENTITY_FILE: Final = "timerstore.json"
_IDENTITY_CRC_AT: Final = fmt.IDENTITY.itemsize - fmt.IDENTITY["crc"].itemsize


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
        block["crc"] = zlib.crc32(block.tobytes()[:_IDENTITY_CRC_AT])
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
    if int(block["crc"]) != zlib.crc32(data[:_IDENTITY_CRC_AT]):
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


# --- The checkpoint itself.

_BASE_BYTES = fmt.TIMER_CHECKPOINT.itemsize
_NUMBERS: Final = (
    *("sequence", "scan_from", "commitlog_flushed", "claimed_slot", "frontier_ms"),
    *("cancelled_count", "store_tag", "floor", "hops_from", "timerlog_from"),
)
"""Fields of ours that stand in the extension as they are."""
_CRC_AT = fmt.CHECKPOINT_EXTENSION.itemsize - fmt.CHECKPOINT_EXTENSION["crc"].itemsize


@dataclass
class TimerCheckpoint:
    """Durable cursors. The first seven are RocketMQ's 56 bytes."""

    read_ms: int = 0
    timerlog_flushed: int = 0
    queue_index: int = 0
    state_version: int = 0
    state_timestamp: int = 0
    state_counter: int = 0
    # ours
    sequence: int = 0
    scan_from: int = 0  # the copies cursor: the oldest copy whose source is not settled
    floor: int = 0  # units whose message lies before it are superseded; 0: nobody said
    timerlog_from: int = INT64_MAX
    """Where the timer log begins at the latest: what lies before may go. INT64_MAX: nobody said."""
    hops_from: int = 0
    """The hops cursor: what hops linked from here on says which unit of a message counts."""
    commitlog_flushed: int = 0
    claimed_slot: int = 0
    """The claim cursor; a larger one of an earlier life while the hops cursor is of that life.

    From there on the hops cursor is of no use.
    """
    frontier_ms: int = 0
    clean: bool = False
    handed_over: bool = False
    """Closed cleanly by a handover: a broker can go on with the files."""
    cancelled_count: int = 0
    store_tag: int = 0
    identity: Identity | None = field(default=None, compare=False)
    """What the store was made with, to be written beside it."""
    level_offsets: list[int] = field(default_factory=lambda: [0] * 32)
    by_broker: bool = False
    """A broker wrote the 56 bytes last: they hold, and our cursors do not."""
    echo: bytes = field(default=b"", repr=False, compare=False)
    """The 56 bytes as our extension repeats them; of a checkpoint that was read."""

    @property
    def needed_offset(self) -> int:
        """Where the commit log begins at the latest: what lies from here on is never removed."""
        return min(self.floor, self.scan_from, self.commitlog_flushed)

    def lost_from(self, start: int) -> int | None:
        """Return the offset from which a log that begins at `start` lacks what is never removed.

        None if it lacks nothing, or a broker may have removed it.
        """
        lacks = not self.by_broker and start > self.needed_offset
        return self.needed_offset if lacks else None

    def base(self) -> np.ndarray:
        """Return RocketMQ's 56 bytes; the master's index equals ours, as on a master."""
        base = np.zeros(1, fmt.TIMER_CHECKPOINT)
        base[0] = (
            *(self.read_ms, self.timerlog_flushed, self.queue_index, self.queue_index),
            *(self.state_version, self.state_timestamp, self.state_counter),
        )
        return base

    def encode(self) -> bytes:
        """Return the 56 bytes with the extension behind them, and what the store was made with."""
        base = self.base()
        extension = np.zeros(1, fmt.CHECKPOINT_EXTENSION)
        extension["mark"] = fmt.CHECKPOINT_MARK
        extension["echo"] = base
        extension["clean"] = 2 if self.handed_over else int(self.clean)
        for name in (*_NUMBERS, "level_offsets"):
            extension[name] = getattr(self, name)
        extension["crc"] = zlib.crc32(extension.tobytes()[:_CRC_AT])
        data = base.tobytes() + extension.tobytes()
        if self.identity is None:
            return data
        return data.ljust(fmt.IDENTITY_AT, b"\0") + self.identity.encode()


def sealed_from(checkpoint: TimerCheckpoint | None, was_open: bool) -> int:
    """Return from which commit log offset on a blank must be sealed to count.

    Behind what was flushed a segment may hold a blank of an earlier use. Not if a broker may have
    written since, because its blanks have no seal: it wrote the checkpoint, or closed the store
    that we left open. After a clean close nothing old is left behind the log's end, and a broker
    that runs without a timer wheel goes on from there.
    """
    if checkpoint is None or checkpoint.by_broker or checkpoint.clean or not was_open:
        return SEALED_NOWHERE
    return checkpoint.commitlog_flushed


def _decode(data: bytes) -> tuple[TimerCheckpoint, bool] | None:
    """Decode one copy: the checkpoint, and whether its echo holds; None if it is torn."""
    content = data[_BASE_BYTES : _BASE_BYTES + fmt.CHECKPOINT_EXTENSION.itemsize]
    if content.startswith(fmt.CHECKPOINT_MARK_BEFORE):
        cut = _CRC_AT - 8
        if int.from_bytes(content[cut : cut + 4], "big") != zlib.crc32(content[:cut]):
            return None
        said = content[:cut] + INT64_MAX.to_bytes(8, "big")
        content = said + zlib.crc32(said).to_bytes(4, "big")
    elif not content.startswith(fmt.CHECKPOINT_MARK):
        return None
    if len(content) < fmt.CHECKPOINT_EXTENSION.itemsize:
        return None
    extension = np.frombuffer(content, fmt.CHECKPOINT_EXTENSION)[0]
    if int(extension["crc"]) != zlib.crc32(content[:_CRC_AT]):
        return None
    checkpoint = _from_base(data)
    for name in _NUMBERS:
        setattr(checkpoint, name, int(extension[name]))
    checkpoint.clean = bool(extension["clean"])
    checkpoint.handed_over = int(extension["clean"]) == 2
    checkpoint.level_offsets = extension["level_offsets"].tolist()
    checkpoint.echo = extension["echo"].tobytes()
    return checkpoint, checkpoint.echo == data[:_BASE_BYTES]


def _is_mix(data: bytes, old: TimerCheckpoint, new: TimerCheckpoint) -> bool:
    """Tell whether each of the 56 bytes is one of the older or of the newer checkpoint."""
    return all(data[i] in both for i, both in enumerate(zip(old.echo, new.echo, strict=True)))


def _is_damaged(base: bytes, echo: bytes) -> bool:
    """Tell whether the 56 bytes are what damage leaves, and no broker writes."""
    bits = int.from_bytes(base, "big") ^ int.from_bytes(echo, "big")
    return not any(base) or bits.bit_count() == 1


def _from_base(data: bytes) -> TimerCheckpoint:
    base = np.frombuffer(data[:_BASE_BYTES], fmt.TIMER_CHECKPOINT)[0]
    checkpoint = TimerCheckpoint()
    for name in ("read_ms", "timerlog_flushed", "queue_index"):
        setattr(checkpoint, name, int(base[name]))
    for name in ("state_version", "state_timestamp", "state_counter"):
        setattr(checkpoint, name, int(base[name]))
    return checkpoint


def decode_checkpoint(data: bytes) -> TimerCheckpoint | None:
    """Decide what a timercheck file says; None if it says nothing.

    - The first copy is valid and its echo equals the 56 bytes: it holds.
    - It is valid, but each of the 56 bytes is the echo's or that of a newer second copy: the write
      was torn within them, and the second copy holds.
    - It is valid, and the 56 bytes are zeros, or differ from the echo in one bit: no broker wrote
      them, because code that moves a cursor moves it by a multiple of 5, or moves two of them; the
      echo holds.
    - It is valid but the echo differs otherwise: a broker wrote the 56 bytes; they alone hold.
    - It is invalid: it was torn, and the second copy holds.
    - Neither was ever ours: a broker's file.
    """
    first = _decode(data)
    second = _decode(data[fmt.CHECKPOINT_COPY_AT :])
    if first is not None and first[1]:
        return first[0]
    if first is not None:
        if second is not None and second[1] and second[0].sequence > first[0].sequence:
            if _is_mix(data, first[0], second[0]):
                return second[0]
        if _is_damaged(data[:_BASE_BYTES], first[0].echo):
            whole = _decode(first[0].echo + data[_BASE_BYTES:])
            assert whole is not None
            return whole[0]
        checkpoint = _from_base(data)
        checkpoint.by_broker, checkpoint.store_tag = True, first[0].store_tag
        checkpoint.sequence = first[0].sequence
        return checkpoint
    if second is not None and second[1]:
        return second[0]
    if len(data) < _BASE_BYTES or not any(data[:_BASE_BYTES]):
        return None
    checkpoint = _from_base(data)
    checkpoint.by_broker = True
    return checkpoint


def standing(checkpoint: TimerCheckpoint | None, was_open: bool) -> TimerCheckpoint | None:
    """Return what holds of a checkpoint: of a handover's beside `abort`, what a broker knows of it.

    A broker that is killed soon has written messages, and no checkpoint yet.
    """
    if checkpoint is None or not was_open or not checkpoint.handed_over:
        return checkpoint
    known = _from_base(checkpoint.base().tobytes())
    known.sequence, known.store_tag = checkpoint.sequence, checkpoint.store_tag
    known.identity, known.by_broker = checkpoint.identity, True
    return known


def read_checkpoint(path: Path, read: Read = read_file) -> TimerCheckpoint | None:
    """Read config/timercheck; None if there is none. `read`: reads a file."""
    data = read(path)
    return None if data is None else decode_checkpoint(data)


def write_checkpoint(disk: Disk, path: Path, checkpoint: TimerCheckpoint) -> None:
    """Write both copies, the second first, each durable before the next; durable on return.

    Each with all of its half of the file, and what stands behind both is cut off: so nothing that
    damage put beside them stays.
    """
    disk.make_folder(path.parent)
    new = not disk.exists(path)
    fd = disk.open_file(path, create=True)
    try:
        data = checkpoint.encode().ljust(fmt.CHECKPOINT_COPY_AT, b"\0")
        if disk.writes and os.fstat(fd).st_size > fmt.CHECKPOINT_BYTES:
            os.ftruncate(fd, fmt.CHECKPOINT_BYTES)
        disk.write_at(fd, data, fmt.CHECKPOINT_COPY_AT, path)
        disk.sync(fd, path)
        disk.write_at(fd, data, 0, path)
        disk.sync(fd, path)
    finally:
        os.close(fd)
    if new:
        disk.sync_folder(path.parent)


def write_store_checkpoint(disk: Disk, path: Path, flushed_ms: int, confirmed_offset: int) -> None:
    """Write RocketMQ's `checkpoint`; durable on return."""
    content = np.zeros(1, fmt.STORE_CHECKPOINT)
    content[0] = (flushed_ms, flushed_ms, 0, 0, confirmed_offset, 0)
    disk.replace(path, content.tobytes().ljust(fmt.CHECKPOINT_BYTES, b"\0"))


# --- `config/delayOffset.json`: how far each delay level was delivered, as a broker reads it.
#
# It is written before the checkpoint and after the log was made durable, so everything of which it
# says that it was delivered is on disk; the larger one of its offset and the checkpoint's therefore
# always holds.


class LevelOffsetFile:
    """The file of one store; it is written if an offset has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: list[int] | None = None

    def read(self, read: Read = read_file) -> list[int]:
        """Return the offset of each level, 0 if the file says nothing; `read`: reads a file.

        Raises CorruptStoreError if it is damaged.
        """
        content = read_json(self._path, read) or {}
        offsets = [0] * fmt.LEVEL_COUNT_MAX
        with understood(self._path.name):
            for level, offset in content.get("offsetTable", {}).items():
                if 1 <= int(level) <= fmt.LEVEL_COUNT_MAX:
                    offsets[int(level) - 1] = whole(offset, -INT64_MAX)  # recovery judges it
        return offsets

    def write(self, disk: Disk, checkpoint: TimerCheckpoint) -> None:
        """Write the offsets of a checkpoint, if they have changed; durable on return."""
        offsets = checkpoint.level_offsets
        if offsets == self._written:
            return
        if self._written is None and not any(offsets) and not disk.exists(self._path):
            return
        table = {str(level): offset for level, offset in enumerate(offsets, 1) if offset}
        version = {
            "counter": checkpoint.sequence,
            "stateVersion": 0,
            "timestamp": checkpoint.state_timestamp,
        }
        content = {"dataVersion": version, "offsetTable": table}
        write_json(disk, self._path, sealed(content))
        self._written = list(offsets)


# --- Derived files: arrays that can be made anew, as a clean close left them.
#
# Such a file holds only if it was written by the close that wrote the checkpoint, whose *stamp* it
# bears. Otherwise it is as if it were not there, whatever it says: what it holds is made anew.

AHEAD_FILE: Final = "config/aheadcounts"
CANCELLED_FILE: Final = "config/cancelledset"
FIRST_FILE: Final = "config/firstpages"
KEYS_FILE: Final = "config/keyindex"
WHEEL_FILE: Final = "config/wheelsums"
DERIVED_FILES: Final = frozenset((AHEAD_FILE, CANCELLED_FILE, FIRST_FILE, KEYS_FILE, WHEEL_FILE))

_ARRAYS_MAX: Final = 2
_HEAD: Final = np.dtype(
    [
        ("mark", "S8"),
        ("crc", "<u4"),  # of what follows
        ("version", "<u4"),
        ("stamp", "<i8", 3),
        ("bytes", "<i8", _ARRAYS_MAX),  # of each array
    ]
)
_MARK: Final = b"TMDERIVE"
_VERSION: Final = 1
_CRC_FROM: Final = 12


class Stamp(NamedTuple):
    """Which clean close of which store: the checkpoint's number, and the commit log's end."""

    store_tag: int
    sequence: int
    log_end: int


def write_derived(disk: Disk, path: Path, stamp: Stamp, *arrays: Any) -> None:
    """Write arrays, of little-endian numbers. Durable on return."""
    head = np.zeros(1, _HEAD)
    head["mark"], head["version"], head["stamp"] = _MARK, _VERSION, stamp
    head["bytes"][0, : len(arrays)] = [each.nbytes for each in arrays]
    content = b"".join(each.tobytes() for each in (head, *arrays))
    head["crc"] = zlib.crc32(memoryview(content)[_CRC_FROM:])
    disk.replace(path, head.tobytes() + content[_HEAD.itemsize :])


def read_derived(disk: Disk, path: Path, stamp: Stamp, *kinds: np.dtype[Any]) -> list[Any] | None:
    """Return the arrays, one of each kind; None if they are not those of that close."""
    try:
        data = disk.read(path) or b""
    except TimerStoreError:
        return None
    if len(data) < _HEAD.itemsize:
        return None
    head = np.frombuffer(data, _HEAD, 1)[0]
    if (head["mark"], head["version"]) != (_MARK, _VERSION):
        return None
    if int(head["crc"]) != zlib.crc32(memoryview(data)[_CRC_FROM:]):
        return None
    lengths = head["bytes"].tolist()
    is_whole = min(lengths) >= 0 and _HEAD.itemsize + sum(lengths) == len(data)
    if not is_whole or tuple(head["stamp"].tolist()) != stamp:
        return None
    arrays, at = list[Any](), _HEAD.itemsize
    for kind, length in zip(kinds, lengths, strict=False):
        if length % kind.itemsize:
            return None
        arrays.append(np.frombuffer(data, kind, length // kind.itemsize, at))
        at += length
    return arrays
