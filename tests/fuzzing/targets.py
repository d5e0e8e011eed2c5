"""A target for each decoder; those that have an obvious twin must say what it says."""

import contextlib
import functools
import json
import socket
import struct
import tempfile
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import numpy as np

import timerstore
from tests import naive
from tests.buffers import as_array, table_of
from tests.naive_index import UNIT_BYTES, decode_unit, encode_unit, seal_unit
from tests.small_store import small
from tests.sparse_copy import copy_tree
from timerstore import Config, ManualClock, TimerStore, TimerStoreError
from timerstore.copies.catalog import piece_of, point_of, unpack_whole
from timerstore.copies.chains import chain_of, check_restores
from timerstore.copies.standby import read_standby
from timerstore.core.offsets import ConsumerOffsets
from timerstore.core.switches import Switches
from timerstore.recurring.when import JOB, cron, read_job
from timerstore.share import framecolumns
from timerstore.share.wire import LostError, Wire, error_from_json, from_json, to_json
from timerstore.tables import TABLES
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import decode_message
from timerstore.timelog.bytes.message import GOOD, MessageParts
from timerstore.timelog.bytes.unit import NO_UNIT, LoggedUnits, Units
from timerstore.timelog.files.checkpoint import (
    LevelOffsetFile,
    Stamp,
    decode_checkpoint,
    decode_identity,
    parse_identity,
    read_derived,
)
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import read_json, understood
from timerstore.timelog.reading.scan import LoggedMessages, LogPlace, ReadAs, scan_commitlog
from timerstore.timelog.reading.units import EVERY_UNIT, read_units
from timerstore.timelog.timerlog import scan_units, walk_chains
from timerstore.validation import validate
from timerstore.values.ids import format_id, parse_id, read_plain
from timerstore.values.times import parse_delay, parse_instant

Target = Callable[[bytes], None]
TARGETS: Final[dict[str, Target]] = {}
MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
_SEGMENT_BYTES: Final = 4_096
_TAG: Final = 7


def target(decode: Target) -> Target:
    """Enter a target, which may raise an error of ours."""

    def attack(data: bytes) -> None:
        with contextlib.suppress(TimerStoreError):
            decode(data)

    TARGETS[decode.__name__] = attack
    return attack


def with_crcs(data: bytes) -> bytes:
    """A message with the size and the checksums that it should have, if it has room for them."""
    if len(data) < fmt.MESSAGE_BYTES_MIN:
        return data
    data = struct.pack(">i", len(data)) + data[4:]
    flags = struct.unpack_from(">i", data, fmt.MESSAGE_SYSTEM_FLAG_AT)[0]
    at = fmt.MESSAGE_HEADER_BYTES + 12 * ((flags >> 4 & 1) + (flags >> 5 & 1))
    count = int.from_bytes(data[at - 4 : at], "big", signed=True)
    crc = naive.crc31(data[at : at + count] if count > 0 else b"")
    data = data[:8] + struct.pack(">i", crc) + data[12:]
    ends_in_crc = data[-21:-11] == b"\x02__CRC32#\x01"
    return data[:-20] + naive.crc_property(data[:-20]) if ends_in_crc else data


@target
def message(data: bytes) -> None:
    for content in (data, with_crcs(data)):
        offset = int.from_bytes(content[28:36], "big", signed=True)
        twin: naive.Message | None = None
        try:
            size = int.from_bytes(content[:4], "big", signed=True)
            twin = naive.decode_message(content[: max(0, size)], offset)
        except naive.DamageError:
            pass
        try:
            found = decode_message(as_array(content + bytes(8)), offset)
        except TimerStoreError:
            assert twin is None, twin
        else:
            assert twin is not None and (twin.topic, twin.body) == (found.topic, found.body)


@target
def log_segment(data: bytes) -> None:
    segment = data[:_SEGMENT_BYTES].ljust(_SEGMENT_BYTES, b"\0")
    table, rows = table_of({0: segment}, _SEGMENT_BYTES), LoggedMessages.room(64)
    levels = np.array([1_000, 5_000], np.int64)
    for verify in (True, False):
        place = LogPlace(MessageParts(), 0, _SEGMENT_BYTES, 2_048)
        count = scan_commitlog(table, place, ReadAs(_TAG, 1_000, levels, verify), rows[:63])
        assert 0 <= count <= 63 and 0 <= place.offset <= _SEGMENT_BYTES
        assert (rows.status[:count] == GOOD).all()
        assert (np.diff(rows.offset[:count]) > 0).all()
        for at, size in zip(rows.topic_at[:count], rows.topic_bytes[:count], strict=True):
            assert 0 <= at <= at + size <= _SEGMENT_BYTES
        if verify:
            twin = naive.scan_commit_log({0: segment}, 0, 2_048)
            sound = [each.offset for each in twin.messages]
            assert sound[:count] == rows.offset[:count].tolist(), twin


@target
def units(data: bytes) -> None:
    for sealed in (False, True):
        content = bytearray(data[: _SEGMENT_BYTES - 8].ljust(_SEGMENT_BYTES, b"\0"))
        for at in range(0, _SEGMENT_BYTES - UNIT_BYTES if sealed else 0, UNIT_BYTES):
            unit = decode_unit(bytes(content[at : at + UNIT_BYTES]))
            content[at : at + UNIT_BYTES] = encode_unit(seal_unit(unit, at))
        table = table_of({0: bytes(content)}, _SEGMENT_BYTES)
        state = np.zeros(2, np.int64)
        read_units(table, _SEGMENT_BYTES, EVERY_UNIT, LoggedUnits.room(128), state)
        found, state = Units.room(128), np.zeros(2, np.int64)
        count = scan_units(table, _SEGMENT_BYTES, 0, 1_000, 39_000, found, state)
        heads = np.stack((found.ms[:count] // 1_000, found.offset[:count]), axis=1)
        lanes, where = np.full((4, 2), NO_UNIT, np.int64), np.zeros(3, np.int64)
        walked = walk_chains(table, heads, 1_000, 39_000, Units.room(256), lanes, where)
        assert 0 <= walked <= 256


@target
def checkpoint(data: bytes) -> None:
    decode_identity(data)
    decode_identity(data[fmt.IDENTITY_AT :])
    first = _sealed(data, 56, fmt.CHECKPOINT_EXTENSION.itemsize)
    second = _sealed(first, fmt.CHECKPOINT_COPY_AT + 56, fmt.CHECKPOINT_EXTENSION.itemsize)
    for content in (data, first, second, _sealed(second, fmt.IDENTITY_AT, fmt.IDENTITY.itemsize)):
        decode_identity(content[fmt.IDENTITY_AT :])
        if (found := decode_checkpoint(content)) is not None and not found.by_broker:
            again = decode_checkpoint(found.encode())
            assert again == found, again


def _sealed(data: bytes, at: int, count: int) -> bytes:
    """What ends in a little-endian CRC gets the right one."""
    content = data[at : at + count]
    if len(content) < count:
        return data
    crc = zlib.crc32(content[:-4]).to_bytes(4, "little")
    return data[: at + count - 4] + crc + data[at + count :]


@target
def json_files(data: bytes) -> None:
    """The first byte says which file it is."""
    kind, content = data[:1], data[1:]

    class Only(Disk):
        def read(self, path: Path) -> bytes | None:
            return None if path.suffix == ".bak" else content

    disk, path = Only(), Path("file.json")
    match kind:
        case b"o":
            ConsumerOffsets(disk, path).snapshot()
        case b"l":
            LevelOffsetFile(path).read(disk.read)
        case b"p":
            Switches(disk, path).find("putting", 0)
        case b"s":
            with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
                (Path(folder) / "standby.json").write_bytes(content)
                read_standby(Path(folder))
        case _:
            value = read_json(path, disk.read)
            if value is not None:
                with understood("file.json"):
                    {b"i": parse_identity, b"c": chain_of}.get(kind, lambda v: v)(value)
                with understood("file.json"):
                    check_restores(value.get("restores"))


@target
def derived(data: bytes) -> None:
    mended = data[:8] + zlib.crc32(data[12:]).to_bytes(4, "little") + data[12:]
    for content in (data, mended):

        class Only(Disk):
            def read(self, path: Path, content: bytes = content) -> bytes | None:
                return content

        pair = np.dtype("<i8"), np.dtype("<u4")
        if (arrays := read_derived(Only(), Path("file"), Stamp(1, 2, 3), *pair)) is not None:
            assert len(arrays) == 2


@target
def timer_id(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    found = parse_id(text)
    if found is not None:
        assert format_id(*found) == text.upper()
    plain = read_plain([text, text], found.tag if found is not None else _TAG)
    assert (plain is not None) == (found is not None and text == text.upper())


@target
def times(data: bytes) -> None:
    """Texts that people write: delays, instants, delay levels, cron expressions."""
    text = data[1:].decode("utf-8", "surrogateescape")
    match data[:1]:
        case b"d":
            parse_delay(text)
        case b"i":
            parse_instant(text, from_ms=1_800_000_000_000)
        case b"l":
            Config(delay_levels=text).delay_levels_ms()
        case b"c":
            schedule = cron(text, tz="Europe/Berlin")
            assert schedule.after(1_800_000_000_000, 0) > 1_800_000_000_000
        case _:
            read_job(b"body", None, {JOB: text})


@target
def frames(data: bytes) -> None:
    """What comes over a connection, and all that is made of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data[: 1 << 15])
        theirs.close()
        wire = Wire(ours)
        try:
            while True:
                header, parts = wire.receive(1 << 20)
                try:
                    error_from_json(header)
                    given = from_json(header.get("with"))
                    assert from_json(json.loads(json.dumps(to_json(given)))) == given
                except (TimerStoreError, RecursionError):  # as `answers.py` does
                    pass
                if parts:
                    framecolumns.read_table(parts)
        except LostError:
            pass


@target
def backup_object(data: bytes) -> None:
    name = data.decode("utf-8", "surrogateescape")
    if (piece := piece_of(name)) is not None:
        assert piece.name.endswith(name)
    point_of(name)
    unpack_whole(data, "object")


_START_MS: Final = 1_800_000_000_000
_CONFIG: Final = small(16_384, 400, 1_040, roll_window_slots=6, retention_ms=3_600_000)
_LATER: Final = timedelta(seconds=400)


@functools.cache
def _killed() -> dict[str, bytes]:
    """The files of a small store whose process was killed, by their names."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path, clock = Path(folder) / "s", ManualClock(_START_MS)
        with TimerStore(path, config=_CONFIG, clock=clock, disk=QuietDisk()) as store:
            due_ms = [_START_MS + ms for ms in (0, 1_000, 2_000, 3_000, 9_000, 9_000, 60_000)]
            ids = store.put_many([b"body"] * len(due_ms), topic="t", at_ms=due_ms)
            store.put(b"level", topic="t", delay_level=1)
            clock.advance(timedelta(seconds=2))
            store.pull("t", group="g", max_count=1, timeout=0).ack()
            store.cancel(ids[4])
            store.flush()
            killed = copy_tree(path, Path(folder) / "killed")
        files = sorted(each for each in killed.rglob("*") if each.is_file())
        left_out = "lock", "spare"
        named = {str(file.relative_to(killed)): file for file in files if file.name not in left_out}
        return {name: file.read_bytes() for name, file in named.items()}


def _edited(data: bytes) -> dict[str, bytes]:
    """Overwrite pieces of its files: the file, the place, the count, the bytes of each.

    The first byte of `data` says whether units, messages and the checkpoint then get the checksums
    that they should have.
    """
    files = {name: bytearray(content) for name, content in _killed().items()}
    names, sealed, data = list(files), data[:1] > b"\x7f", data[1:]
    while len(data) > 4:
        name = names[data[0] % len(names)]
        at = int.from_bytes(data[1:3], "big") % max(1, len(files[name]))
        piece = data[4 : 4 + data[3] % 32][: len(files[name]) - at]
        files[name][at : at + len(piece)] = piece
        data = data[4 + data[3] % 32 :]
    return {name: _mended(name, bytes(found)) if sealed else found for name, found in files.items()}


def _mended(name: str, content: bytes) -> bytes:
    """Give a file's parts the checksums that they should have."""
    was, kind = _killed()[name], name.partition("/")[0]
    if content != was and kind == "timerlog":
        for at in range(0, len(content) - UNIT_BYTES, UNIT_BYTES):
            if content[at : at + UNIT_BYTES] != was[at : at + UNIT_BYTES]:
                unit = seal_unit(
                    decode_unit(content[at : at + UNIT_BYTES]), int(Path(name).name) + at
                )
                content = content[:at] + encode_unit(unit) + content[at + UNIT_BYTES :]
    if content != was and kind == "commitlog":
        for each in naive.scan_commit_log({int(Path(name).name): was}, 0, len(was)).messages:
            begin = each.offset - int(Path(name).name)
            end = begin + each.size_bytes
            content = content[:begin] + with_crcs(content[begin:end]) + content[end:]
    return _sealed(content, 56, fmt.CHECKPOINT_EXTENSION.itemsize) if "check" in name else content


@target
def directory(data: bytes) -> None:
    """A whole store, read by all that reads one, then opened: each names its error, or goes on."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path, clock = Path(folder) / "s", ManualClock(_START_MS)
        for name, content in _edited(data).items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        for table in TABLES:
            with contextlib.suppress(TimerStoreError):
                timerstore.read(path, table=table)
        for look in (timerstore.verify, validate):
            with contextlib.suppress(TimerStoreError):
                look(path)
        for _ in range(2):  # what it made of itself can be opened again
            with TimerStore(path, config=_CONFIG, clock=clock, disk=QuietDisk()) as store:
                clock.advance(_LATER)
                list(store.pending())
                store.pull("t", group="g", timeout=0).ack()
