"""The small numbers of a store: cursors, offsets of levels, of groups, the count of timers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from timerstore.core.offsets import read_table
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.files.checkpoint import LevelOffsetFile
from timerstore.timelog.files.jsonfile import parse_json, understood, whole
from timerstore.timelog.reading.reader import Fault, StoreReader

CURSORS_FILE: Final = "config/timercheck"
LEVELS_FILE: Final = "config/delayOffset.json"
GROUPS_FILE: Final = "config/consumerOffset.json"
COUNTS_FILE: Final = "config/timermetrics"
_YEAR_9999_MS: Final = 1 << 48


def cursor_faults(reader: StoreReader, log_end: int, units_end: int, queue_end: int) -> list[Fault]:
    """Return the cursors of the last checkpoint that lie outside of what they point into.

    `log_end`, `units_end`: where the commit log and the timer log end. `queue_end`: the index
    behind the timer topic's last entry.
    """
    checkpoint = reader.checkpoint
    if checkpoint is None:
        return []
    slot = checkpoint.read_ms // reader.precision_ms
    bounds = {
        "read_ms": (0, _YEAR_9999_MS),
        "timerlog_flushed": (reader.timerlog.start, units_end),
        "queue_index": (0, queue_end),
    }
    if not checkpoint.by_broker:
        bounds |= {
            "commitlog_flushed": (reader.commitlog.start, log_end),
            "scan_from": (reader.commitlog.start, checkpoint.commitlog_flushed),
            "floor": (reader.commitlog.start, checkpoint.commitlog_flushed),
            "claimed_slot": (slot, slot + len(reader.slots)),
            "cancelled_count": (0, _YEAR_9999_MS),
        }
    faults = []
    for name, (low, high) in bounds.items():
        value = getattr(checkpoint, name)
        if not low <= value <= high:
            reason = f"the cursor {name} is {value}, not within {low} to {high}"
            faults.append(Fault(CURSORS_FILE, cursor_at(name), reason))
    if not checkpoint.by_broker and checkpoint.read_ms % reader.precision_ms:
        reason = f"read_ms is {checkpoint.read_ms}, which is no slot's beginning"
        faults.append(Fault(CURSORS_FILE, 0, reason))
    if not (checkpoint.by_broker or reader.sizes.by_broker):
        if checkpoint.store_tag != reader.store_tag:
            reason = "the store's tag is not the one in timerstore.json"
            faults.append(Fault(CURSORS_FILE, cursor_at("store_tag"), reason))
    return faults


def cursor_at(name: str) -> int:
    """Return where a cursor stands in its file."""
    for fields, base in (
        (fmt.TIMER_CHECKPOINT.fields, 0),
        (fmt.CHECKPOINT_EXTENSION.fields, fmt.TIMER_CHECKPOINT.itemsize),
    ):
        if fields is not None and name in fields:
            return base + int(fields[name][1])
    raise KeyError(name)


def level_faults(reader: StoreReader, queue_ends: Mapping[tuple[str, int], int]) -> list[Fault]:
    """Return the delay levels that stand outside their queues: opening corrects them.

    A clean close writes the same into both files. Raises CorruptStoreError if `delayOffset.json`
    cannot be read.
    """
    checkpoint, faults = reader.checkpoint, list[Fault]()
    files = {LEVELS_FILE: LevelOffsetFile(reader.path / LEVELS_FILE).read(reader.steady.read)}
    if checkpoint is not None and not checkpoint.by_broker:
        files[CURSORS_FILE] = checkpoint.level_offsets
        closed = checkpoint.clean and not reader.is_open
        if closed and files[LEVELS_FILE] != checkpoint.level_offsets:
            reason = "it differs from the checkpoint, though the store was closed cleanly"
            faults.append(Fault(LEVELS_FILE, 0, reason))
    for file, offsets in files.items():
        for level, offset in enumerate(offsets):
            end = queue_ends.get((text(fmt.LEVEL_TOPIC), level), 0)
            if not 0 <= offset <= end:
                reason = f"delay level {level + 1} is at {offset} of a queue that ends at {end}"
                at = 0 if file == LEVELS_FILE else cursor_at("level_offsets") + 8 * level
                faults.append(Fault(file, at, reason))
    return faults


def committed_offsets(reader: StoreReader) -> dict[tuple[str, int], int]:
    """Return what groups have committed, by (topic@group, queue). Raises CorruptStoreError."""
    data = reader.steady.read(reader.path / GROUPS_FILE)
    if data is None:
        return {}
    with understood(GROUPS_FILE):
        table = read_table(parse_json(data.decode("utf-8"))["offsetTable"])
        return {
            (name, int(queue)): index
            for name, queues in table.items()
            for queue, index in queues.items()
        }


def group_faults(reader: StoreReader, queue_ends: Mapping[tuple[str, int], int]) -> list[Fault]:
    """Return the groups that are outside of a queue: opening corrects them. See `committed`."""
    faults = []
    for (name, queue), index in committed_offsets(reader).items():
        end = queue_ends.get((name.rpartition("@")[0], queue), 0)
        if not 0 <= index <= end:
            reason = f"{name} has committed {index} of queue {queue}, which ends at {end}"
            faults.append(Fault(GROUPS_FILE, 0, reason))
    return faults


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
