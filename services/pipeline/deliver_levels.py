"""Deliver-levels: appends the messages of the delay levels whose time has come.

One loop for each level, in the order of arrival; its offset passes a message once its copy is
appended, or once it turned out cancelled, copied by an earlier life, or unreadable. If an entry is
damaged, its message is looked for in the commit log (`services/damage/pass_by.py`). After
RocketMQ's `ScheduleMessageService` and its `DeliverDelayedMessageTimerTask`.

A level's offset is in the checkpoint; `delayOffset.json` is its copy for brokers. A message is due
when its queue entry says: stored + level, as the level was when it was put. If that is further
ahead than now + level + 1 s, and the message was stored later than now, the clock went back, and it
is due now. The end of a queue is read before the clock, so that what a put with a later clock
appends in between is not delivered early. An offset outside its queue is corrected to the nearest
end. A copy gets its due time as `TIMER_OUT_MS` and loses `DELAY`. If there is no room for one, the
level behind is next.

A cancelled message stays in the cancelled set until its loop drops it. If the read cursor passes
the slot of its delete before, the delete is *held*: the copies cursor stays there, so that recovery
finds it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from timerstore.jit.intrinsics import get_i32, get_i64, load_acquire, view_bytes
from timerstore.jit.kernel import inlined, inlined_view
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.mapping import lent_bytes
from timerstore.jit.record import Bytes, observe
from timerstore.jit.system import clock_ms
from timerstore.services.pipeline.copying import (
    SOURCE_CANCELLED,
    SOURCE_FOUND,
    SOURCE_UNREADABLE,
    SOURCE_WAIT,
    Counted,
    append_staged,
    count_fired,
    find_destination,
    find_source,
    prefetch_message,
    read_source,
    stage_copy,
    stage_is_full,
    touch_message,
)
from timerstore.services.world.floor import find_in
from timerstore.services.world.needs import BAD_LEVEL_ENTRY, COMMITLOG_READ, LEVEL_READ, LOST
from timerstore.services.world.state import (
    CLAMP_SLACK_MS,
    INFO_LEVEL,
    LEADS_NOWHERE,
    NOT_READ,
    tell_need,
)
from timerstore.services.world.world import World, note_lost
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import (
    GOOD,
    IDENTITY_OURS,
    MessageParts,
    identify_timer,
    is_ours,
    read_message,
    stored_at,
)
from timerstore.timelog.bytes.text import get_hex_12
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.reading.scan import is_half_topic
from timerstore.timelog.writing.append import BATCH_BYTES, QUEUE_COUNT_MAX, STAGE_COUNT_MAX
from timerstore.timelog.writing.frame import DELIVERED, CopySays
from timerstore.wheel.cancelled import cancelled_contains, cancelled_remove

NEVER: Final = 1 << 62
NOT_MAPPED: Final = -1
_AHEAD: Final = 4

_SKIPPED: Final = -4
"""What became of an entry, see copying.py: an earlier life made its copy, or it is a blank."""


@inlined
def deliver_levels(world: World, now_ms: int, resident: bool) -> int:
    """Deliver a batch of one level; return the work done. Takes fire. O(bytes)."""
    _touch_due(world, now_ms)
    lock_acquire(world.fire_lock)
    done = _deliver_any(world, now_ms, resident)
    lock_release(world.fire_lock)
    return done


@inlined
def _touch_due(world: World, now_ms: int) -> None:
    """Wait for the pages of what is delivered next, without a lock."""
    levels, count = world.levels, world.levels.count
    for i in range(count):
        level = (levels.turn + i) % count
        if level_event_ms(world, level, now_ms) > now_ms:
            continue
        index, touched_bytes = levels.offset[level], 0
        stop = index + min(levels.batch_max, STAGE_COUNT_MAX)
        stop = min(stop, load_acquire(world.queues.next_index, levels.row[level]))
        while index < stop and touched_bytes < BATCH_BYTES:
            buf = _entries(world, level, index)
            if len(buf) == 0:
                return
            at = _entry_at(world, index)
            if get_i64(buf, at + fmt.ENTRY_TAGS_AT) > now_ms:
                return
            message, size = (
                get_i64(buf, at + fmt.ENTRY_OFFSET_AT),
                get_i32(buf, at + fmt.ENTRY_SIZE_AT),
            )
            touched_bytes += touch_message(world.commitlog, message, size)
            index += 1
        return


@inlined
def _deliver_any(world: World, now_ms: int, resident: bool) -> int:
    levels = world.levels
    if now_ms < world.callers.fire_from_ms:
        return 0
    mine = world.deliver_levels.thread
    if mine.lost_count > 0:
        mine.need = LOST
        return 0
    count = levels.count
    for i in range(count):
        level = (levels.turn + i) % count
        _see_head(world, level, now_ms)
        if level_event_ms(world, level, now_ms) > now_ms:
            continue
        end = load_acquire(world.queues.next_index, levels.row[level])
        if resident:
            # Who put what is before that end may have seen a later clock than we: look again, or it
            # would be clamped, and come early.
            now_ms = max(now_ms, clock_ms(world.clock))
            if level_event_ms(world, level, now_ms) > now_ms:
                continue
        done = _deliver(world, level, end, now_ms)
        if done > 0 or mine.need != 0:
            levels.turn = level + 1
            return done
    return 0


@inlined
def level_event_ms(world: World, level: int, now_ms: int) -> int:
    """Return when a level has something to do next: NEVER, or `now_ms` at the earliest. O(1).

    Any service's thread may ask, at any time: so it looks only at words, not into a segment, whose
    map may go just then. `now_ms` if they do not say it; a step then looks, see `_see_head`. A word
    of the head before may stand beside one of this head, because they are plain words. That head
    was due sooner, so a step looks once for nothing.
    """
    levels = world.levels
    row, index = levels.row[level], levels.offset[level]
    if row < 0 or index >= load_acquire(world.queues.next_index, row):
        return NEVER
    due_ms, level_ms = now_ms, levels.level_ms[level]
    if levels.head_index[level] == index:
        due_ms = levels.head_ms[level]
    if due_ms > now_ms + level_ms + CLAMP_SLACK_MS:
        level_ms = levels.head_level_ms[level]
        if level_ms == NOT_READ:
            due_ms = now_ms
    return max(now_ms, clamped_ms(due_ms, level_ms, now_ms))


@inlined
def _see_head(world: World, level: int, now_ms: int) -> None:
    """Note for `level_event_ms` when the first message of a level is due. Under fire, in a step.

    Nothing is noted if a segment is not mapped; `_deliver` has it mapped.
    """
    levels = world.levels
    row, index = levels.row[level], levels.offset[level]
    if row < 0 or index >= load_acquire(world.queues.next_index, row):
        return
    if levels.head_index[level] != index:
        buf = _entries(world, level, index)
        if len(buf) == 0:
            return
        message, _, due_ms = _read_entry(world, level, buf, index)
        levels.head_ms[level], levels.head_message[level] = due_ms, message
        levels.head_level_ms[level] = NOT_READ
        levels.head_index[level] = index
    due_ms = levels.head_ms[level]
    is_far = due_ms > now_ms + levels.level_ms[level] + CLAMP_SLACK_MS
    if is_far and levels.head_level_ms[level] == NOT_READ:
        levels.head_level_ms[level] = _own_level_ms(world, levels.head_message[level], due_ms)


@inlined
def _due_ms(world: World, level: int, message: int, due_ms: int, now_ms: int) -> int:
    """Return when a message is due: at its entry's time, or now, if the clock went back.

    If its own level has to be read, and its segment is not mapped, NOT_MAPPED.
    """
    level_ms = world.levels.level_ms[level]
    if due_ms > now_ms + level_ms + CLAMP_SLACK_MS:
        level_ms = _own_level_ms(world, message, due_ms)
        if level_ms == NOT_READ:
            return NOT_MAPPED
    return clamped_ms(due_ms, level_ms, now_ms)


@inlined
def _own_level_ms(world: World, message: int, due_ms: int) -> int:
    """Return how long a message's level was when it was put: a broker's, say, may be another.

    NOT_READ: its segment is not mapped. LEADS_NOWHERE: it cannot be read, or says another time than
    its entry; so it is looked at now.
    """
    if message < 0 or message >= observe(world.commitlog, "end"):
        return LEADS_NOWHERE
    buf = segment_at(world.commitlog, message)
    if len(buf) == 0:
        return NOT_READ
    position = message % world.commitlog.segment_bytes
    whole = position + fmt.MESSAGE_BYTES_MIN + fmt.HOST_V6_EXTRA_BYTES <= len(buf)
    if not whole or get_i64(buf, position + fmt.MESSAGE_OFFSET_AT) != message:
        return LEADS_NOWHERE
    found = world.deliver_levels.thread.found
    if read_message(buf, position, message, found, False) == GOOD:
        if _says_otherwise(world, buf, found, message, due_ms):
            return LEADS_NOWHERE
    return max(0, due_ms - get_i64(buf, stored_at(buf, position)))


@inlined
def _says_otherwise(
    world: World, buf: Bytes, found: MessageParts, message: int, entry_ms: int
) -> bool:
    """Tell whether a message that was read says another due time than its entry.

    Only the key that we gave it says one; what was sent back has the key of its first message.
    """
    if not is_ours(buf, found, world.settings.store_tag):
        return False
    if get_hex_12(buf, found.key_at + 12) != message | fmt.LEVEL_MARK:
        return False
    return get_hex_12(buf, found.key_at) != entry_ms


@inlined
def clamped_ms(due_ms: int, level_ms: int, now_ms: int) -> int:
    """Return when a level's message is due: now, if it lies further ahead than it can."""
    if due_ms > now_ms + level_ms + CLAMP_SLACK_MS:
        return now_ms
    return due_ms


@inlined_view
def _entries(world: World, level: int, index: int) -> Any:
    """Return the segment of a level's queue that holds `index`; of length 0 if unmapped."""
    entries = world.queues.segment_entries
    if world.levels.number[level] != index // entries:
        return view_bytes(0, 0)
    return lent_bytes(world.levels.lent, level, entries * fmt.ENTRY_BYTES)


@inlined
def _entry_at(world: World, index: int) -> int:
    return index % world.queues.segment_entries * fmt.ENTRY_BYTES


@inlined
def _read_entry(world: World, level: int, entries: Bytes, index: int) -> tuple[int, int, int]:
    """Return what an entry says: message, size, due time; if it is damaged, what it should say."""
    levels, at = world.levels, _entry_at(world, index)
    message = get_i64(entries, at + fmt.ENTRY_OFFSET_AT)
    size, due_ms = (
        get_i32(entries, at + fmt.ENTRY_SIZE_AT),
        get_i64(entries, at + fmt.ENTRY_TAGS_AT),
    )
    if levels.said_index[level] == index:
        message, size = levels.said_message[level], levels.said_size[level]
        due_ms = levels.said_ms[level]
    return message, size, due_ms


@inlined
def _deliver(world: World, level: int, end: int, now_ms: int) -> int:
    """Stage what is due of one level before `end`, append it, move its offset; return how far."""
    levels, stage, mine = world.levels, world.stage, world.deliver_levels.thread
    first = levels.offset[level]
    count = min(end - first, min(levels.batch_max, STAGE_COUNT_MAX))
    seen, staged, staged_bytes = 0, 0, 0
    while seen < count and staged_bytes < BATCH_BYTES:
        buf = _entries(world, level, first + seen)
        if len(buf) == 0:
            if seen == 0:
                levels.wanted[level] = first // world.queues.segment_entries
                tell_need(mine, LEVEL_READ, level)
            break
        message, size, entry_ms = _read_entry(world, level, buf, first + seen)
        due_ms = _due_ms(world, level, message, entry_ms, now_ms)
        if due_ms == NOT_MAPPED:
            if seen == 0:
                tell_need(mine, COMMITLOG_READ, message)
            break
        if due_ms > now_ms:
            break
        _prefetch(world, buf, _entry_at(world, first + seen) + _AHEAD * fmt.ENTRY_BYTES)
        outcome = _SKIPPED
        if size != fmt.QUEUE_BLANK_SIZE:
            if stage_is_full(staged, staged_bytes, size):
                break
            place = Place(level, first + seen, message, size)
            outcome = _stage(world, place, due_ms, entry_ms, staged, staged_bytes)
        if outcome == SOURCE_UNREADABLE and levels.said_index[level] != first + seen:
            if seen == 0:
                tell_need(mine, BAD_LEVEL_ENTRY, level)
            break
        if outcome == SOURCE_WAIT:
            break
        world.outcome[seen] = outcome
        if outcome == DELIVERED:
            staged_bytes += stage.size[staged]
            staged += 1
        seen += 1
    appended = append_staged(world, mine, staged, now_ms)
    return _settle(world, level, seen, appended)


@inlined
def _prefetch(world: World, entries: Bytes, at: int) -> None:
    if at + fmt.ENTRY_BYTES > len(entries):
        return
    prefetch_message(world, get_i64(entries, at + fmt.ENTRY_OFFSET_AT))


class Place(NamedTuple):
    """Where a message waits, and lies."""

    level: int
    entry: int  # its index
    message: int
    size: int


@inlined
def _stage(world: World, place: Place, due_ms: int, entry_ms: int, i: int, at: int) -> int:
    """Decide about one message, and frame its copy as number `i` of the stage, at `at`.

    `entry_ms`: when its entry says that it is due.
    """
    mine, found = world.deliver_levels.thread, world.deliver_levels.thread.found
    message, size = place.message, place.size
    if world.done.count > 0 and find_in(world.done, message) >= 0:
        return _SKIPPED
    buf = segment_at(world.commitlog, message)
    outcome = find_source(world, mine, buf, message)
    if outcome != SOURCE_FOUND:
        return outcome
    if not read_source(world, buf, found, message, size) or found.real_topic_bytes <= 0:
        return SOURCE_UNREADABLE
    if (
        get_i64(buf, found.at + fmt.MESSAGE_QUEUE_INDEX_AT) != place.entry
        or get_i32(buf, found.at + fmt.MESSAGE_QUEUE_ID_AT) != place.level
    ):
        return SOURCE_UNREADABLE
    if _says_otherwise(world, buf, found, message, entry_ms):
        return SOURCE_UNREADABLE
    if is_half_topic(buf, found.real_topic_at, found.real_topic_bytes):
        return _SKIPPED
    if world.cancelled.level_count > 0 and _is_cancelled(world, buf, message):
        return SOURCE_CANCELLED
    row = find_destination(world, mine, buf, message)
    if row < 0:
        return SOURCE_WAIT
    asked_ms = due_ms  # a broker's key says nothing about it
    if is_ours(buf, found, world.settings.store_tag):
        asked_ms = -1
    says = CopySays(DELIVERED, message, due_ms, asked_ms)
    counts = Counted(row, row + QUEUE_COUNT_MAX, due_ms, entry_ms)
    return stage_copy(world, buf, found, says, counts, i, at)


@inlined
def _is_cancelled(world: World, buf: Bytes, message: int) -> bool:
    """Tell whether a message was cancelled. One that was sent back has its first one's key."""
    found = world.deliver_levels.thread.found
    identify_timer(buf, found, world.settings.store_tag)
    if found.identity_high != IDENTITY_OURS or found.identity_low != message | fmt.LEVEL_MARK:
        return False
    return cancelled_contains(world.cancelled, IDENTITY_OURS, message | fmt.LEVEL_MARK)


@inlined
def _settle(world: World, level: int, seen: int, appended: int) -> int:
    """Move the offset over what is done of `seen` entries, up to the last that was appended."""
    levels, counts = world.levels, world.deliver_levels.counts
    first = levels.offset[level]
    staged, done = 0, 0
    while done < seen:
        outcome = world.outcome[done]
        if outcome == DELIVERED:
            if staged == appended:
                break
            levels.delivered_count += 1
            if world.staged_due[staged] != _entry(world, level, first + done)[1]:
                levels.clamped_count += 1
            count_fired(world, counts, staged)
            staged += 1
        elif outcome == SOURCE_CANCELLED:
            counts.dropped_count += 1
            message = _entry(world, level, first + done)[0]
            cancelled_remove(world.cancelled, IDENTITY_OURS, message | fmt.LEVEL_MARK)
        elif outcome == SOURCE_UNREADABLE:
            note_lost(
                world.deliver_levels.thread, _entry(world, level, first + done)[0], INFO_LEVEL
            )
        else:
            levels.skipped_count += 1
        done += 1
    levels.offset[level] = first + done
    return done


@inlined
def _entry(world: World, level: int, index: int) -> tuple[int, int]:
    """Return the message of an entry whose segment is mapped, and when that is due."""
    message, _, due_ms = _read_entry(world, level, _entries(world, level, index), index)
    return message, due_ms
