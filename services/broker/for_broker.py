"""The timer index with which a store is handed over: made anew, of what waits alone.

A broker knows no floor, no copies, no hops: it fires what the slots from its read cursor on lead
to. So its index has one unit for each pending timer, placed as if it were put now, and one for each
delete that the read cursor has not passed: by these we know what was cancelled, once the store
comes back. A cancelled timer has none.

Units stand in the order of their messages, and the last one is of the last entry of the timer
topic's queue: a broker goes on behind that, and it removes the oldest file of its timer log once
the message of the file's last unit is gone.

The index is written in a folder of its own, and read there as a broker reads it; until then the
store is as it was. Then it takes the place of the old one, while `config/rebuild.json` asks for the
timer index: so the next opening makes it anew if a process is killed in between.
"""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError, TimerStoreError
from timerstore.jit.kernel import kernel_later
from timerstore.jit.record import Words, record
from timerstore.services.damage.scrub import Scrub
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import TIMERS, remove_files, remove_mark
from timerstore.services.looking.instant import capture_instant
from timerstore.services.looking.read_units import live_units, read_timers, reading_of
from timerstore.services.looking.timer_places import DueOrder, join_places
from timerstore.services.pipeline.enqueue_put import NewTimer, unit_in_slot
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.bytes.message import (
    GOOD,
    MessageParts,
    exact_due_ms,
    java_hash,
    read_message,
)
from timerstore.timelog.bytes.unit import NO_UNIT, unit_change
from timerstore.timelog.files.checkpoint import TimerCheckpoint, write_checkpoint
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.segmenttable import (
    MESSAGES_AHEAD,
    SegmentTable,
    prefetch_message,
    segment_at,
)
from timerstore.timelog.reading.pastdamage import Damage
from timerstore.timelog.timerlog import TimerLog, append_unit, find_unit_room
from timerstore.wheel import judge as pending
from timerstore.wheel.timerwheel import Settings, SlotArray, TimerWheel, link_unit, place, slot_last

FOLDER: Final = "handover"
_CHUNK_ROWS: Final = 65_536


class NewIndex(NamedTuple):
    """An index that was written and checked."""

    read_slot: int  # the read cursor
    timerlog_end: int
    first_slot: int  # the first in which a timer waits; −1 if none does
    last_slot: int  # the last


def make_index(engine: Engine, now_ms: int) -> NewIndex:
    """Write the index of what waits, and check it; durable on return.

    No service runs. O(units + bytes); it takes some 60 bytes of memory for each timer. Raises
    StoreFullError, CorruptStoreError; TimerStoreError if a broker would not fire each timer once.
    """
    remove_index(engine.disk, engine.path)
    read_slot = max(engine.read_slot, now_ms // engine.precision_ms)
    messages = _waiting(engine)
    end = _write(engine, messages, read_slot, now_ms)
    return NewIndex(read_slot, end, *_check(engine, messages, read_slot))


def use_index(engine: Engine, index: NewIndex, checkpoint: TimerCheckpoint) -> None:
    """Put the index in the place of the store's own, which is closed; durable on return.

    `checkpoint`: that of the clean close, which has ended.
    """
    disk, path, new = engine.disk, engine.path, engine.path / FOLDER
    engine.wanted.add(TIMERS)
    engine.timerlog.close()
    engine.wheel.close()
    remove_files(disk, path, frozenset((TIMERS,)))
    for name in ("timerwheel", *(f"timerlog/{name}" for name in disk.names(new / "timerlog"))):
        disk.move(new / name, path / name)
    disk.sync_folder(path / "timerlog")
    disk.sync_folder(path)
    handed_over = replace(
        checkpoint,
        read_ms=index.read_slot * engine.precision_ms,
        timerlog_flushed=index.timerlog_end,
        queue_index=engine.queues.next_index(0),
        hops_from=index.timerlog_end,
        claimed_slot=index.read_slot,
        sequence=checkpoint.sequence + 1,
        state_counter=checkpoint.sequence + 1,
        handed_over=True,
    )
    write_checkpoint(disk, path / "config" / "timercheck", handed_over)
    if not engine.keeps_mark:
        remove_mark(disk, path)
    remove_index(disk, path)


def remove_index(disk: Disk, path: Path) -> None:
    """Remove what is left of an index that was not put in its place."""
    for folder in (path / FOLDER / "timerlog", path / FOLDER / "config", path / FOLDER):
        for name in disk.names(folder):
            disk.remove(folder / name)
        name, above = disk.at(folder)
        with suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=above)


def _waiting(engine: Engine) -> Words:
    """Return the messages that get a unit, in the order of the log."""
    instant = capture_instant(engine)
    places = join_places(DueOrder(engine, instant).all())
    messages = np.unique(places.message[~places.in_level])
    found = [units.message[units.magic & fmt.UNIT_DELETE != 0] for units in live_units(engine)]
    reading = reading_of(engine, instant.cancelled, verify=False)
    for first in range(0, len(messages), _CHUNK_ROWS):
        part = messages[first : first + _CHUNK_ROWS]
        verdict = read_timers(engine, part, reading).verdict
        # What has no unit yet may be a delete.
        found.append(part[(verdict == pending.PENDING) | (verdict == pending.DELETE)])
    return np.unique(np.concatenate(found))


def _open(engine: Engine) -> tuple[TimerLog, TimerWheel]:
    folder, config = engine.path / FOLDER, engine.config
    log = TimerLog(engine.disk, folder / "timerlog", config.timerlog_segment_bytes, engine.maps)
    return log, TimerWheel(engine.disk, folder / "timerwheel", config.wheel_slot_count)


@record
class _Files:
    """What `_link_all` reads and writes."""

    settings: Settings
    commitlog: SegmentTable
    timerlog: SegmentTable
    wheel: SlotArray
    found: MessageParts  # scratch
    read_slot: int = 0
    now_ms: int = 0


def _write(engine: Engine, messages: Words, read_slot: int, now_ms: int) -> int:
    """Write the files of an index; return the timer log's end. Durable on return."""
    engine.disk.make_folder(engine.path / FOLDER)
    log, wheel = _open(engine)
    settings, found, done = engine.world.settings, MessageParts(), 0
    try:
        while True:
            with engine.commitlog.reading() as commitlog, log.reading() as timerlog:
                files = _Files(settings, commitlog, timerlog, wheel.array, found, read_slot, now_ms)
                done = _link_all(files, messages, done)
            if done == len(messages):
                break
            if done < 0:
                reason = "this is not the message that was written there"
                raise CorruptStoreError("commitlog", int(messages[-1 - done]), reason)
            engine.commitlog.readable(int(messages[done]) // engine.commitlog.segment_bytes)
            log.make_unit_room()
        log.flush(0, log.end)
        wheel.write()
        return log.end
    finally:
        log.close()
        wheel.close()


@kernel_later
def _link_all(files: _Files, messages: Words, start: int) -> int:
    """Link a unit for each message from `start` on; return how far it came. O(bytes).

    It stops at a message whose segment is not mapped, or for whose unit there is no room; −1 − i at
    message i if that is damaged.
    """
    commitlog, wheel, settings, found = files.commitlog, files.wheel, files.settings, files.found
    read_slot = files.read_slot
    for i in range(start, len(messages)):
        if i + MESSAGES_AHEAD < len(messages):
            prefetch_message(commitlog, messages[i + MESSAGES_AHEAD])
        message = messages[i]
        buf = segment_at(commitlog, message)
        if len(buf) == 0 or find_unit_room(files.timerlog) < 0:
            return i
        at = message % commitlog.segment_bytes
        if read_message(buf, at, message, found, True) != GOOD:
            return -1 - i
        due_ms = exact_due_ms(buf, found, settings.store_tag, settings.precision_ms)
        topic_hash = java_hash(buf, found.real_topic_at, found.real_topic_bytes)
        is_delete = found.deletes_bytes >= 0
        timer = NewTimer(message, found.size, topic_hash, found.due_ms, due_ms, is_delete)
        slot, hops = place(settings, read_slot, read_slot, found.due_ms)
        unit = unit_in_slot(settings, slot, hops, slot_last(wheel, slot), timer, files.now_ms)
        link_unit(wheel, slot, append_unit(files.timerlog, unit), unit_change(unit.magic))
    return len(messages)


def _check(engine: Engine, messages: Words, read_slot: int) -> tuple[int, int]:
    """Read an index as a broker does; return the first and the last slot in which timers wait."""
    log, wheel = _open(engine)
    try:
        used = wheel.slots[(wheel.slots["time"] >= read_slot) & (wheel.slots["last"] != NO_UNIT)]
        used = used[np.argsort(used["time"])]
        heads = np.stack((used["time"], used["last"]), axis=1).astype(np.int64)
        parts = [np.zeros((4, 0), np.int64)]
        for units in log.chains(heads, engine.precision_ms, engine.hop_ms):
            slot, is_delete = units.ms // engine.precision_ms, units.magic & fmt.UNIT_DELETE
            parts.append(np.stack((units.offset, units.message, slot, is_delete)))
    finally:
        log.close()
        wheel.close()
    offset, message, slot, is_delete = np.concatenate(parts, axis=1)
    if not np.array_equal(message[np.argsort(offset)], messages):
        _refuse(f"{len(message)} units are reached, and {len(messages)} were written")
    last = engine.queues.read(0, engine.queues.next_index(0) - 1, 1)[0]
    if messages[-1] != last["offset"]:
        _refuse(f"the last unit is of the message at {messages[-1]}, not of {last['offset']}")
    slots = slot[is_delete == 0]
    in_levels = int(engine.queues.table.pending.reshape(2, -1)[1].sum())
    if len(slots) != engine.pending_count() - in_levels:
        _refuse(f"{len(slots)} timers are reached, and {engine.pending_count() - in_levels} wait")
    return int(slots.min(initial=1 << 62)) if len(slots) else -1, int(slots.max(initial=-1))


def _refuse(reason: str) -> None:
    raise TimerStoreError(
        "The store was not handed over, because a broker would not fire each timer once: "
        f"{reason}. Close the store, run `timerstore validate`, and report what it finds."
    )


# --- Whether a broker could go on with all of a store, looked at before anything of it is changed.
#
# A broker that opens ends its commit log at the first message that does not fit, and its timer log
# at the first unit; what is behind that is gone. It passes a blank whose magic number is right, and
# never looks at what stands behind one.

_NAMED_MAX: Final = 20
"""So many places are in the error; `stats().damage` has them all."""
_TRIES: Final = 8


def check_whole(engine: Engine) -> None:
    """Read everything once; raise TimerStoreError if a broker would lose a part of it. O(bytes).

    Services may run. Nor is a store handed over of which the next opening makes an index anew.
    """
    damaged = list[tuple[Damage, int]]()
    scrub = Scrub(engine, lambda damage: damaged.append((damage, scrub.message_count)))
    hold = engine.holds.take()
    for _ in range(_TRIES):
        damaged.clear()
        while scrub.step():
            pass
        if scrub.pass_count:
            break
    else:
        raise TimerStoreError("The store was not handed over, because it could not be read whole.")
    del hold
    lost = [(damage, count) for damage, count in damaged if not _is_passed(engine, damage)]
    if lost:
        _refuse_damaged(engine, [damage for damage, _ in lost], scrub.message_count - lost[0][1])
    if engine.wanted.indexes:
        names = " and ".join(f"the {name}" for name in sorted(engine.wanted.indexes))
        raise TimerStoreError(
            f"The store was not handed over: damage was found in {names}, and a broker would lose "
            "timers or messages. The next opening makes that anew. Close the store, open it, and "
            "hand it over."
        )


def _is_passed(engine: Engine, damage: Damage) -> bool:
    """Tell whether a broker passes what stands there: what it takes for the end of a segment."""
    if damage.is_message or damage.following >= 0:
        return False
    segment_bytes = engine.commitlog.segment_bytes
    left = segment_bytes - damage.offset % segment_bytes
    if left < fmt.BLANK_BYTES:
        return False
    data = engine.commitlog.read(damage.offset, fmt.BLANK_BYTES)
    size = int.from_bytes(data[: fmt.BLANK_MAGIC_AT], "big", signed=True)
    return size <= left and data[fmt.BLANK_MAGIC_AT :] == fmt.BLANK_MAGIC.to_bytes(4, "big")


def _refuse_damaged(engine: Engine, damaged: list[Damage], behind_count: int) -> None:
    path = shlex.quote(str(engine.path))
    lines = [
        f"The store was not handed over, and nothing was changed: {len(damaged)} places of its "
        "commit log are damaged. A broker ends the log at the first of them, so it would lose the "
        f"{behind_count:,} messages behind that, with their timers. Close the store, make a sound "
        f"copy without what is damaged (`timerstore salvage {path} NEW`), and hand NEW over. To "
        "get back what is damaged, restore a backup that is older than the damage instead."
    ]
    lines += [_told(engine, each) for each in damaged[:_NAMED_MAX]]
    if len(damaged) > _NAMED_MAX:
        lines.append(f"… and {len(damaged) - _NAMED_MAX} more: see stats().damage")
    raise TimerStoreError("\n".join(lines))


def _told(engine: Engine, damage: Damage) -> str:
    """Name a place, and the message there as far as its bytes can be read."""
    place = f"commitlog at offset {damage.offset}: {damage.told(engine.commitlog.end)}"
    if not len(damage.framed):
        return place
    row, read = damage.framed, engine.commitlog.read
    topic_at, topic_bytes = row.real_topic_at[0], row.real_topic_bytes[0]
    if topic_bytes <= 0:
        topic_at, topic_bytes = row.topic_at[0], row.topic_bytes[0]
    topic = text(read(int(topic_at), int(topic_bytes)))
    key = text(read(int(row.key_at[0]), max(0, int(row.key_bytes[0]))))
    return f"{place} (topic {topic!r}, id {key!r})"
