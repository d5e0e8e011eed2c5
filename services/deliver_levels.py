"""Deliver-levels: appends the messages of the delay levels whose time has come.

One loop for each level, in the order of arrival; its offset passes a message once its copy is
appended, or once it turned out cancelled, copied by an earlier life, or unreadable. After
RocketMQ's `ScheduleMessageService` and its `DeliverDelayedMessageTimerTask`.
"""

from __future__ import annotations

from typing import Any, Final

from timerstore.services.dequeue_put import count_lateness
from timerstore.services.enqueue_put import find_done
from timerstore.services.levels import (
    CLAMP_SLACK_MS,
    COUNT_CLAMPED,
    COUNT_DELIVERED,
    COUNT_SKIPPED,
    LEVEL_BATCH_MAX,
    LEVEL_CANCELLED,
    LEVEL_COUNT,
    LEVEL_FAILED,
    LEVEL_HELD,
    LEVEL_HELD_FROM,
    LEVEL_STOP,
    LEVEL_TURN,
    NO_OFFSET,
    RETRY_WAIT_MS_MAX,
)
from timerstore.timelog.append import (
    BATCH_BYTES,
    NEED_COMMITLOG,
    NEED_ROW,
    QUEUE_COUNT_MAX,
    QUEUE_SEGMENT_ENTRIES,
    STAGE_BYTES,
    STAGE_COUNT_MAX,
    STORED_MS,
    append,
)
from timerstore.timelog.append import NEED as APPEND_NEED
from timerstore.timelog.consumequeue import find_row
from timerstore.timelog.format import (
    ENTRY_BYTES,
    ENTRY_OFFSET_AT,
    ENTRY_SIZE_AT,
    ENTRY_TAGS_AT,
    LEVEL_MARK,
    QUEUE_BLANK_SIZE,
)
from timerstore.timelog.frame import COPY_EXTRA_BYTES, DELIVERED, frame_copy
from timerstore.timelog.intrinsics import (
    get_i32,
    get_i64,
    load_acquire,
    prefetch,
    view_bytes,
    view_words,
)
from timerstore.timelog.kernel import inlined, inlined_view
from timerstore.timelog.message import (
    GOOD,
    IDENTITY_HELD,
    IDENTITY_HIGH,
    IDENTITY_LOW,
    IDENTITY_OURS,
    REAL_QUEUE,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    SIZE,
    TAGS_AT,
    TAGS_BYTES,
    identify_timer,
    is_ours,
    java_hash,
    read_message,
)
from timerstore.timelog.segments import SEGMENT_BYTES, segment_at
from timerstore.timelog.system import clock_ms
from timerstore.wheel.sets import set_contains, set_remove
from timerstore.wheel.state import (
    CANCELLED_ADDRESS,
    CANCELLED_COUNT,
    CANCELLED_LENGTH,
    COMMITLOG_READ,
    COMMITLOG_SEGMENT,
    COUNT_DROPPED,
    COUNT_FIRED,
    COUNT_UNREADABLE,
    DONE_COUNT,
    LAST_UNREADABLE,
    LEVEL_READ,
    NEED,
    NEED_OFFSET,
    QUEUE_SEGMENT,
    STORE_TAG,
    TOPIC,
)

NEVER: Final = 1 << 62
_AHEAD: Final = 4

# What becomes of an entry; kept in `world.outcome`.
_COPIED: Final = 0
_CANCELLED: Final = -1
_UNREADABLE: Final = -2
_WAIT: Final = -3  # NEED is set; nothing was done
_SKIPPED: Final = -4  # an earlier life made its copy, or the entry is a blank


@inlined
def deliver_levels(world: Any, now_ms: int, resident: bool) -> int:
    """Deliver a batch of one level; return the work done. Under the step lock. O(bytes)."""
    levels = world.levels
    if levels.words[LEVEL_STOP] != 0:
        return 0
    count = levels.words[LEVEL_COUNT]
    for i in range(count):
        level = (levels.words[LEVEL_TURN] + i) % count
        due_ms = level_event_ms(world, level, now_ms)
        if due_ms > now_ms:
            continue
        if resident and levels.head_index[level] == levels.offset[level]:
            # Whoever put it may have seen a later clock than we: look again before it is clamped.
            now_ms = max(now_ms, clock_ms(world.clock))
            if level_event_ms(world, level, now_ms) > now_ms:
                continue
        done = _deliver(world, level, now_ms)
        if done > 0 or world.words[NEED] != 0:
            levels.words[LEVEL_TURN] = level + 1
            return done
    return 0


@inlined
def level_event_ms(world: Any, level: int, now_ms: int) -> int:
    """Return when a level has something to do next: NEVER, or `now_ms` at the earliest. O(1)."""
    levels = world.levels
    row, index = levels.row[level], levels.offset[level]
    if row < 0 or index >= load_acquire(world.queues.next_index, row):
        return NEVER
    retry_ms = levels.retry_ms[level]
    if retry_ms > now_ms + RETRY_WAIT_MS_MAX:  # the clock went back
        retry_ms = now_ms
    if levels.head_index[level] != index:
        buf = _entries(world, level, index)
        if len(buf) == 0:
            return max(now_ms, retry_ms)
        levels.head_ms[level] = get_i64(buf, _entry_at(world, index) + ENTRY_TAGS_AT)
        levels.head_index[level] = index
    due_ms = clamped_ms(levels.head_ms[level], levels.level_ms[level], now_ms)
    return max(max(now_ms, due_ms), retry_ms)


@inlined
def clamped_ms(due_ms: int, level_ms: int, now_ms: int) -> int:
    """Return when a level's message is due: now, where it lies further ahead than it can."""
    if due_ms > now_ms + level_ms + CLAMP_SLACK_MS:
        return now_ms
    return due_ms


@inlined_view
def _entries(world: Any, level: int, index: int) -> Any:
    """Return the segment of a level's queue that holds `index`; of length 0 where unmapped."""
    entries = world.queues.words[QUEUE_SEGMENT_ENTRIES]
    if world.levels.number[level] != index // entries:
        return view_bytes(0, 0)
    return view_bytes(world.levels.address[level], entries * ENTRY_BYTES)


@inlined
def _entry_at(world: Any, index: int) -> int:
    return index % world.queues.words[QUEUE_SEGMENT_ENTRIES] * ENTRY_BYTES


@inlined
def _deliver(world: Any, level: int, now_ms: int) -> int:
    """Stage what is due of one level, append it, and move its offset; return how far."""
    levels, words, stage = world.levels, world.words, world.stage
    first = levels.offset[level]
    count = load_acquire(world.queues.next_index, levels.row[level]) - first
    count = min(count, min(levels.words[LEVEL_BATCH_MAX], STAGE_COUNT_MAX))
    seen, staged, staged_bytes = 0, 0, 0
    while seen < count and staged_bytes < BATCH_BYTES:
        buf = _entries(world, level, first + seen)
        if len(buf) == 0:
            if seen == 0:
                levels.wanted[level] = first // world.queues.words[QUEUE_SEGMENT_ENTRIES]
                words[NEED] = LEVEL_READ
                words[NEED_OFFSET] = level
            break
        at = _entry_at(world, first + seen)
        due_ms = get_i64(buf, at + ENTRY_TAGS_AT)
        due_ms = clamped_ms(due_ms, levels.level_ms[level], now_ms)
        if due_ms > now_ms:
            break
        _prefetch_message(world, buf, at + _AHEAD * ENTRY_BYTES)
        message, size = get_i64(buf, at + ENTRY_OFFSET_AT), get_i32(buf, at + ENTRY_SIZE_AT)
        outcome = _SKIPPED
        if size != QUEUE_BLANK_SIZE:
            room = size + 256 + COPY_EXTRA_BYTES
            if staged_bytes + room > STAGE_BYTES and staged > 0:
                break
            outcome = _stage(world, message, size, due_ms, staged, staged_bytes)
        if outcome == _WAIT:
            break
        world.outcome[seen] = outcome
        if outcome == _COPIED:
            staged_bytes += stage.size[staged]
            staged += 1
        seen += 1
    appended = 0
    if staged > 0:
        appended = append(
            world.commitlog, world.queues, world.append_lock, stage, staged, now_ms, False
        )
        if appended < staged:
            words[NEED] = QUEUE_SEGMENT
            if world.queues.words[APPEND_NEED] == NEED_COMMITLOG:
                words[NEED] = COMMITLOG_SEGMENT
            words[NEED_OFFSET] = world.queues.words[NEED_ROW]
    levels.words[LEVEL_FAILED] = level if words[NEED] != 0 else -1
    return _settle(world, level, seen, appended)


@inlined
def _prefetch_message(world: Any, entries: Any, at: int) -> None:
    if at + ENTRY_BYTES > len(entries):
        return
    message = get_i64(entries, at + ENTRY_OFFSET_AT)
    buf = segment_at(world.commitlog, message)
    position = message % world.commitlog.words[SEGMENT_BYTES]
    for line in range(0, 384, 64):
        prefetch(buf, position + line)


@inlined
def _stage(world: Any, message: int, size: int, due_ms: int, i: int, at: int) -> int:
    """Decide about one message, and frame its copy as number `i` of the stage, at `at`."""
    words, stage, found = world.words, world.stage, world.found
    if words[DONE_COUNT] > 0 and find_done(words, message) >= 0:
        return _SKIPPED
    buf = segment_at(world.commitlog, message)
    if len(buf) == 0:
        words[NEED] = COMMITLOG_READ
        words[NEED_OFFSET] = message
        return _WAIT
    position = message % world.commitlog.words[SEGMENT_BYTES]
    status = read_message(buf, position, found, True)
    size_agrees = found[SIZE] == size and found[SIZE] + 512 <= STAGE_BYTES
    if status != GOOD or not size_agrees or found[REAL_TOPIC_BYTES] <= 0:
        words[LAST_UNREADABLE] = message
        return _UNREADABLE
    if world.levels.words[LEVEL_CANCELLED] > 0 and _find_cancelled(world, buf, message) != 0:
        return _CANCELLED
    topic_at, topic_bytes = found[REAL_TOPIC_AT], found[REAL_TOPIC_BYTES]
    queue_id = max(0, found[REAL_QUEUE])
    row = find_row(world.queues, buf, topic_at, topic_bytes, queue_id)
    if row < 0:
        words[NEED] = TOPIC
        words[NEED_OFFSET] = message
        return _WAIT
    asked_ms = due_ms  # a broker's key says nothing about it
    if is_ours(buf, found, words[STORE_TAG]):
        asked_ms = -1
    copied = frame_copy(
        stage.buffer,
        at,
        buf,
        found,
        DELIVERED,
        buf,
        topic_at,
        topic_bytes,
        queue_id,
        message,
        due_ms,
        asked_ms,
    )
    if copied < 0:
        words[LAST_UNREADABLE] = message
        return _UNREADABLE
    stage.size[i] = copied
    stage.row[i] = row
    stage.pending_row[i] = row + QUEUE_COUNT_MAX
    stage.pending_change[i] = -1
    stage.key_at[i] = -1
    stage.tags_code[i] = 0
    if found[TAGS_BYTES] > 0:
        stage.tags_code[i] = java_hash(buf, found[TAGS_AT], found[TAGS_BYTES])
    world.staged_due[i] = due_ms
    return _COPIED


@inlined
def _find_cancelled(world: Any, buf: Any, message: int) -> int:
    """Return the high word of a cancelled message's entry in the set, 0 where it has none."""
    words, found = world.words, world.found
    identify_timer(buf, found, words[STORE_TAG])
    # A message that was sent back has its first message's key, and is not meant.
    if found[IDENTITY_HIGH] != IDENTITY_OURS or found[IDENTITY_LOW] != message | LEVEL_MARK:
        return 0
    table = view_words(words[CANCELLED_ADDRESS], words[CANCELLED_LENGTH])
    if set_contains(table, IDENTITY_OURS, message | LEVEL_MARK):
        return IDENTITY_OURS
    if set_contains(table, IDENTITY_HELD, message | LEVEL_MARK):
        return IDENTITY_HELD
    return 0


@inlined
def _settle(world: Any, level: int, seen: int, appended: int) -> int:
    """Move the offset over what is done of `seen` entries, up to the last that was appended."""
    levels, words = world.levels, world.words
    stored_ms = world.queues.words[STORED_MS]
    first = levels.offset[level]
    staged, done = 0, 0
    while done < seen:
        outcome = world.outcome[done]
        if outcome == _COPIED:
            if staged == appended:
                break
            words[COUNT_FIRED] += 1
            levels.words[COUNT_DELIVERED] += 1
            if world.staged_due[staged] != _field(world, level, first + done, ENTRY_TAGS_AT):
                levels.words[COUNT_CLAMPED] += 1
            count_lateness(world, stored_ms - world.staged_due[staged])
            staged += 1
        elif outcome == _CANCELLED:
            words[COUNT_DROPPED] += 1
            _forget(world, _field(world, level, first + done, ENTRY_OFFSET_AT) | LEVEL_MARK)
        elif outcome == _UNREADABLE:
            words[COUNT_UNREADABLE] += 1
        else:
            levels.words[COUNT_SKIPPED] += 1
        done += 1
    levels.offset[level] = first + done
    if done > 0:
        levels.fail_count[level] = 0
        levels.retry_ms[level] = 0
    return done


@inlined
def _field(world: Any, level: int, index: int, at: int) -> int:
    return get_i64(_entries(world, level, index), _entry_at(world, index) + at)


@inlined
def _forget(world: Any, low: int) -> None:
    """Take a cancelled message that its loop has passed out of the cancelled set."""
    words, level_words = world.words, world.levels.words
    table = view_words(words[CANCELLED_ADDRESS], words[CANCELLED_LENGTH])
    if not set_remove(table, IDENTITY_OURS, low):
        set_remove(table, IDENTITY_HELD, low)
        level_words[LEVEL_HELD] -= 1
        if level_words[LEVEL_HELD] == 0:
            level_words[LEVEL_HELD_FROM] = NO_OFFSET
    words[CANCELLED_COUNT] -= 1
    level_words[LEVEL_CANCELLED] -= 1
