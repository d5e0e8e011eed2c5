"""Looking at the small files: JSON, cursors, offsets of levels and groups, times of flushes."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from timerstore.core.offsets import Ranges, read_tables
from timerstore.errors import CorruptStoreError, TimerStoreError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.files.checkpoint import LevelOffsetFile, decode_checkpoint, decode_identity
from timerstore.timelog.files.jsonfile import parse_json, understood, whole
from timerstore.timelog.files.reader_end import list_names
from timerstore.timelog.files.smallfile import At, is_there, read_head, read_small
from timerstore.timelog.reading.reader import Fault, StoreReader
from timerstore.validation.facts import Findings

FLUSH_TIMES_FILE: Final = "checkpoint"
_BASE_BYTES: Final = fmt.TIMER_CHECKPOINT.itemsize
_COPY_BYTES: Final = _BASE_BYTES + fmt.CHECKPOINT_EXTENSION.itemsize
_IDENTITIES_AT: Final = (fmt.IDENTITY_AT, fmt.CHECKPOINT_COPY_AT + fmt.IDENTITY_AT)
_TIME_MAX: Final = 1 << 48


def look_at_json(findings: Findings) -> None:
    """Look whether every JSON file parses, and is an object. O(files)."""
    reader = findings.scope.view.reader
    path, at = reader.path, reader.at
    names = sorted(list_names(path / "config", at))
    files = [path / COUNTS_FILE, *(path / "config" / each for each in names if _is_json(each))]
    files += [path / each for each in sorted(list_names(path, at)) if each.endswith(".json")]
    for file in files:
        if not is_there(file, at, stat.S_ISREG):
            continue
        findings.tally.check("json", 1)
        found = _json_fault(file, at)
        if found is not None:
            findings.fault("json", Fault(str(file.relative_to(path)), *found))


def _is_json(name: str) -> bool:
    return name.endswith((".json", ".bak"))


def _json_fault(file: Path, at: At) -> tuple[int, str] | None:
    """Return where a file is no JSON object, and why; None if it is one."""
    try:
        data = read_small(file, at=at)
    except CorruptStoreError as e:
        return e.offset, e.reason
    except TimerStoreError as e:
        return 0, str(e)
    if not data.strip():
        return None  # a broker's `.bak` before anything was written
    try:
        if not isinstance(parse_json(data.decode("utf-8")), dict):
            return 0, "this is no JSON object"
    except UnicodeDecodeError as e:
        return e.start, "this is no UTF-8"
    except json.JSONDecodeError as e:
        return min(e.pos, len(data)), f"this is no JSON: {e.msg}"
    except ValueError as e:  # a number, or a name, that nothing can have
        return 0, f"this is no JSON that a store has: {e}"
    except RecursionError:
        return 0, "this is nested too deep for a store's JSON"
    return None


# --- the cursors


def look_at_copies(findings: Findings) -> None:
    """Look at both copies of the cursors, and that nothing else is in their file. O(1)."""
    scope, tally = findings.scope, findings.tally
    view, data = scope.view, scope.view.reader.checkpoint_data
    tally.check("cursor_copies", 2)
    if not data:
        # Ours has them before its first message, so what is torn is the making of a store.
        is_new = scope.by_broker or view.log_stop == view.reader.commitlog.start
        fault = Fault(CURSORS_FILE, 0, "there are no cursors")
        findings.fault("cursor_copies", fault, torn=scope.is_unclean and is_new)
        return
    if len(data) != fmt.CHECKPOINT_BYTES:
        at = min(len(data), fmt.CHECKPOINT_BYTES)
        findings.fault("cursor_copies", Fault(CURSORS_FILE, at, f"it has {len(data)} bytes"))
    for at in _strange_bytes(data):
        reason = "these bytes belong to no cursor"
        findings.fault("cursor_copies", Fault(CURSORS_FILE, at, reason))
    for at, reason in _copy_faults(data) + _identity_faults(data):
        fault = Fault(CURSORS_FILE, at, reason)
        findings.fault("cursor_copies", fault, torn=scope.is_unclean)


def _identity_faults(data: bytes) -> list[tuple[int, str]]:
    """Return which copies of `timerstore.json` are damaged."""
    copies = {at: data[at : at + fmt.IDENTITY.itemsize] for at in _IDENTITIES_AT}
    return [
        (at, "the copy of timerstore.json is damaged")
        for at, copy in copies.items()
        if any(copy) and decode_identity(copy) is None
    ]


def _strange_bytes(data: bytes) -> list[int]:
    """Return where the first byte stands behind each copy that is none of it."""
    strange = np.frombuffer(data, np.uint8) != 0
    for at in _IDENTITIES_AT:
        strange[at : at + fmt.IDENTITY.itemsize] = False
    strange[: _COPY_BYTES if any(data[_BASE_BYTES:_COPY_BYTES]) else _BASE_BYTES] = False
    strange[fmt.CHECKPOINT_COPY_AT : fmt.CHECKPOINT_COPY_AT + _COPY_BYTES] = False
    found = np.flatnonzero(strange)
    firsts = np.unique(found >= fmt.CHECKPOINT_COPY_AT, return_index=True)[1]
    return [int(at) for at in found[firsts]]


def _copy_faults(data: bytes) -> list[tuple[int, str]]:
    """Return which of the two copies is damaged; the other one holds then."""
    first, second = (data[at : at + _COPY_BYTES] for at in (0, fmt.CHECKPOINT_COPY_AT))
    if not any(first[_BASE_BYTES:]) and not any(second):
        return []  # only a broker's: 56 bytes without any checksum
    # Only one copy, in the place of the first: valid and its echo equal, or none of ours.
    one, other = decode_checkpoint(first), decode_checkpoint(second)
    faults = []
    if other is None or other.by_broker:
        faults.append((fmt.CHECKPOINT_COPY_AT, "the second copy is damaged"))
    if one is None or one.by_broker:
        base = np.frombuffer(first[:_BASE_BYTES], ">i8")
        echo = np.frombuffer(second[:_BASE_BYTES], ">i8")
        both = other is not None and not other.by_broker and len(base) == len(echo)
        # A broker moves at least its counter and the time beside the cursors.
        if both and int((base != echo).sum()) <= 1:
            at = int(np.argmax(base != echo)) * 8 if (base != echo).any() else _BASE_BYTES
            faults.append((at, "the first copy is damaged"))
        elif decode_checkpoint(first + bytes(fmt.CHECKPOINT_COPY_AT)) is None:
            faults.append((0, "the first copy is damaged"))
    elif other is not None and not other.by_broker and first != second:
        faults.append((fmt.CHECKPOINT_COPY_AT, "the two copies differ"))
    return faults


# --- flushes


def look_at_flush_times(findings: Findings) -> None:
    """Look at RocketMQ's file of flush times. O(1)."""
    scope, view = findings.scope, findings.scope.view
    path, at = view.reader.path / FLUSH_TIMES_FILE, view.reader.at
    if not is_there(path, at, stat.S_ISREG):
        return
    data, start = read_head(path, 2 * fmt.CHECKPOINT_BYTES, at), fmt.STORE_CHECKPOINT.itemsize
    faults = []
    if len(data) != fmt.CHECKPOINT_BYTES:
        faults.append((min(len(data), fmt.CHECKPOINT_BYTES), f"it has {len(data)} bytes"))
    strange = np.flatnonzero(np.frombuffer(data[start:], np.uint8))
    if len(strange):
        faults.append((start + int(strange[0]), "these bytes belong to no time"))
    values = np.frombuffer(data[:start].ljust(start, b"\0"), ">i8")
    for i in np.flatnonzero((values < 0) | (values >= _TIME_MAX)).tolist():
        faults.append((8 * i, f"{values[i]} is neither a time nor an offset"))
    checkpoint = view.checkpoint
    if checkpoint is not None and view.ours and not scope.is_unclean:
        expected = (values[1], values[1], 0, 0, checkpoint.commitlog_flushed, 0)  # as we write
        for i in np.flatnonzero(values != np.array(expected)).tolist():
            faults.append((8 * i, f"{values[i]} is not the value that a clean close writes here"))
    findings.tally.check("flush_times", len(values))
    for offset, reason in faults:
        findings.fault("flush_times", Fault(FLUSH_TIMES_FILE, offset, reason))


CURSORS_FILE: Final = "config/timercheck"
LEVELS_FILE: Final = "config/delayOffset.json"
GROUPS_FILE: Final = "config/consumerOffset.json"
COUNTS_FILE: Final = "config/timermetrics"


def look_at_cursors(findings: Findings, queue_ends: Mapping[tuple[str, int], int]) -> None:
    """Look whether the last checkpoint's cursors lie in what they point into. O(1).

    `queue_ends`: the index behind the last entry of each queue.
    """
    view, reader = findings.scope.view, findings.scope.view.reader
    checkpoint = view.checkpoint
    if checkpoint is None:
        return

    def wrong(name: str, reason: str) -> None:
        findings.fault("cursors", Fault(CURSORS_FILE, cursor_at(name), reason))

    used_end = reader.timerlog.used_end()
    # It may end with zeros.
    used_end += -(used_end % reader.timerlog.segment_bytes) % fmt.UNIT_BYTES
    units_end, flushed = max(used_end, reader.timerlog.start), checkpoint.timerlog_flushed
    slot = checkpoint.read_ms // reader.precision_ms
    bounds = {
        "read_ms": (0, _TIME_MAX),
        "timerlog_flushed": (reader.timerlog.start, units_end),
        "queue_index": (0, queue_ends.get((text(fmt.TIMER_TOPIC), 0), 0)),
    }
    if not checkpoint.by_broker:
        log_start, log_end = reader.commitlog.start, min(view.log_stop, reader.commitlog.files_end)
        bounds |= {
            "commitlog_flushed": (log_start, log_end),
            "scan_from": (log_start, checkpoint.commitlog_flushed),
            "floor": (log_start, checkpoint.commitlog_flushed),
            "claimed_slot": (slot, slot + len(reader.slots)),
            "cancelled_count": (0, _TIME_MAX),
        }
    findings.tally.check("cursors", len(bounds))
    for name, (low, high) in bounds.items():
        value = getattr(checkpoint, name)
        if not low <= value <= high:
            wrong(name, f"the cursor {name} is {value}, not within {low} to {high}")
    if checkpoint.by_broker:
        return
    if checkpoint.read_ms % reader.precision_ms:
        wrong("read_ms", f"read_ms is {checkpoint.read_ms}, which is no slot's beginning")
    if not reader.sizes.by_broker and checkpoint.store_tag != reader.store_tag:
        wrong("store_tag", "the store's tag is not the one in timerstore.json")
    if checkpoint.clean and not view.cut.is_open and flushed < used_end and flushed <= units_end:
        reason = f"there are units behind the cursor timerlog_flushed, up to {used_end}"
        wrong("timerlog_flushed", reason)


def cursor_at(name: str) -> int:
    """Return where a cursor stands in its file."""
    for fields, base in (
        (fmt.TIMER_CHECKPOINT.fields, 0),
        (fmt.CHECKPOINT_EXTENSION.fields, fmt.TIMER_CHECKPOINT.itemsize),
    ):
        if fields is not None and name in fields:
            return base + int(fields[name][1])
    raise KeyError(name)


def look_at_levels(findings: Findings, queue_ends: Mapping[tuple[str, int], int]) -> None:
    """Look whether delay levels stand in their queues: else opening corrects them. O(levels).

    A clean close writes the same into both files. Raises CorruptStoreError if `delayOffset.json`
    cannot be read.
    """
    reader = findings.scope.view.reader
    checkpoint, topic = reader.checkpoint, text(fmt.LEVEL_TOPIC)
    findings.tally.check("level_offsets", sum(each == topic for each, _ in queue_ends))
    files = {LEVELS_FILE: LevelOffsetFile(reader.path / LEVELS_FILE).read(reader.steady.read)}
    if checkpoint is not None and not checkpoint.by_broker:
        files[CURSORS_FILE] = checkpoint.level_offsets
        closed = checkpoint.clean and not reader.is_open
        if closed and files[LEVELS_FILE] != checkpoint.level_offsets:
            reason = "it differs from the checkpoint, though the store was closed cleanly"
            findings.fault("level_offsets", Fault(LEVELS_FILE, 0, reason))
    for file, offsets in files.items():
        for level, offset in enumerate(offsets):
            end = queue_ends.get((topic, level), 0)
            if not 0 <= offset <= end:
                reason = f"delay level {level + 1} is at {offset} of a queue that ends at {end}"
                at = 0 if file == LEVELS_FILE else cursor_at("level_offsets") + 8 * level
                findings.fault("level_offsets", Fault(file, at, reason))


def look_at_groups(
    findings: Findings, queue_ends: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], tuple[int, Ranges]]:
    """Look whether groups stand in their queues: else opening corrects them. O(groups).

    Return what they have committed, and done behind that, by (topic@group, queue). Raises
    CorruptStoreError.
    """
    committed = _committed_offsets(findings.scope.view.reader)
    findings.tally.check("group_offsets", len(committed))
    for (name, queue), (index, _) in committed.items():
        end = queue_ends.get((name.rpartition("@")[0], queue), 0)
        if not 0 <= index <= end:
            reason = f"{name} has committed {index} of queue {queue}, which ends at {end}"
            findings.fault("group_offsets", Fault(GROUPS_FILE, 0, reason))
    return committed


def _committed_offsets(reader: StoreReader) -> dict[tuple[str, int], tuple[int, Ranges]]:
    data = reader.steady.read(reader.path / GROUPS_FILE)
    if data is None:
        return {}
    with understood(GROUPS_FILE):
        table, ahead = read_tables(parse_json(data.decode("utf-8")))
        return {
            (name, int(queue)): (index, ahead.get(name, {}).get(queue, []))
            for name, queues in table.items()
            for queue, index in queues.items()
        }


def stored_pending_count(reader: StoreReader) -> int | None:
    """Return the count that a clean close stored; None if none did. Raises CorruptStoreError."""
    checkpoint = reader.checkpoint
    if checkpoint is None or checkpoint.by_broker or not checkpoint.clean or reader.is_open:
        return None
    data = reader.steady.read(reader.path / COUNTS_FILE)
    if data is None:
        return None
    with understood(COUNTS_FILE):
        metrics = parse_json(data.decode("utf-8"))
        counts = [*metrics["timingCount"].values(), *metrics.get("levelCount", {}).values()]
        return sum(whole(entry["count"]) for entry in counts)
