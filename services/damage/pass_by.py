"""What is damaged is passed by: it stops nothing that is sound.

A message that is lost is taken off the count of what is pending. A damaged queue entry is named
until the next opening makes it anew. A message says its own index, so an entry that is made anew
stands at the same index. Until then a group hands out what is sound, and keeps the index of the
damaged entry as one that is not done.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.kernel import kernel_later
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Words
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import QUEUES, WRONG_ENTRY_REASON
from timerstore.services.looking.read_units import slot_units
from timerstore.services.world.state import INFO_LEVEL, LOST_COLUMNS, NO_HEAD, ServiceThread
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import NO_TAG, get_field, read_one
from timerstore.timelog.bytes.message import GOOD, IDENTITY_OURS, MessageParts
from timerstore.timelog.bytes.text import java_hash_of
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.reading.audit import (
    ENTRY_BLANK,
    ENTRY_GOOD,
    ENTRY_REMOVED,
    QueueRun,
    judge_entries,
)
from timerstore.timelog.reading.pastdamage import sound_messages
from timerstore.timelog.reading.scan import LoggedMessages, QueueNames, stored_in
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX
from timerstore.timelog.writing.consumequeue import find_rows
from timerstore.timelog.writing.tally import LOST_COUNT, TALLY_WORDS
from timerstore.wheel.near import place_of

# --- Passing by what is lost: messages that cannot be read are named, then taken off the count.


def pass_lost(engine: Engine, service: ServiceThread) -> None:
    """Name what a service passed by, and take it off the count of what is pending.

    A message of a level leaves the cancelled set as well: else a delete that is held for it would
    keep the commit log. Only the service's own thread calls this, which answers its needs, and
    calls it again if a full disk ends it.
    """
    found, uncounted = MessageParts(), 0
    count = service.lost_count
    lost = service.lost[: count * LOST_COLUMNS].reshape(-1, LOST_COLUMNS).tolist()
    for message, info in lost:
        if not name_lost(engine, message):
            uncounted += 1  # dropped, never counted
        elif not engine.count_lost:  # recovery counts without it
            engine.uncounted.add(message)
            uncounted += 1
        elif message not in engine.uncounted:
            if info == INFO_LEVEL or info < 0 or not info & fmt.UNIT_DELETE:
                _uncount(engine, message, info, found)
    of_levels = [message | fmt.LEVEL_MARK for message, info in lost if info == INFO_LEVEL]
    engine.cancelled.remove_ours(np.array(of_levels, np.int64))
    service.unreadable_count -= uncounted
    service.lost_count = 0


def name_lost(engine: Engine, message: int) -> bool:
    """Name a message that cannot be read; False if that is no damage.

    It was removed by a broker's clean-up; or lost before it was salvaged, told then, and not
    counted since. Any thread may call this.
    """
    if 0 <= message < engine.commitlog.start or _is_filler(engine, message):
        return False
    engine.damage.note("commitlog", message, "the message there cannot be read")
    return True


def leave_uncounted(engine: Engine, messages: Words) -> None:
    """Name messages that cannot be read, which recovery counts without."""
    for message in messages.tolist():
        if name_lost(engine, message):
            engine.uncounted.add(message)


def _is_filler(engine: Engine, message: int) -> bool:
    """Tell whether a salvage has put a message there in the place of what was lost.

    An entry that leads to nothing points to its second byte (`recover_log.py`).
    """
    if message < 1:
        return False
    found = MessageParts()
    number, at = divmod(message - 1, engine.commitlog.segment_bytes)
    view = engine.commitlog.readable(number).view
    if read_one(view, at, message - 1, NO_TAG, found, False) != GOOD:
        return False
    start, count = found.topic_at, found.topic_bytes
    return view[start : start + count].tobytes() == fmt.SALVAGED_TOPIC


def _uncount(engine: Engine, message: int, info: int, found: MessageParts) -> None:
    """Take one timer off the count, unless that was done when it was cancelled."""
    mark = fmt.LEVEL_MARK if info == INFO_LEVEL else 0
    high, low = np.array([IDENTITY_OURS]), np.array([message | mark])
    engine.uncounted.add(message)
    rows: list[int] = []
    if message >= 0:
        view = engine.commitlog.readable(message // engine.commitlog.segment_bytes).view
        at, tag = message % engine.commitlog.segment_bytes, engine.store_tag
        own = get_field(view, at + fmt.MESSAGE_OFFSET_AT, 8)  # that may be what is damaged
        is_read = read_one(view, at, own, tag, found, False) == GOOD
        if is_read and found.real_topic_bytes > 0 and not _is_displaced(engine.commitlog, message):
            high[0], low[0] = found.identity_high, found.identity_low
            start = found.real_topic_at
            topic = view[start : start + found.real_topic_bytes].tobytes()
            rows = engine.queues.rows(topic)
            queue_id = max(0, found.real_queue)
            rows = sorted(rows, key=lambda row: engine.queues.table.queue_id[row] != queue_id)
    if engine.cancelled.contains(high, low)[0]:
        return
    if not rows and info >= 0:
        rows = _rows_by_unit(engine, message, info)
    if not rows:
        engine.unattributed_count += 1
        return
    row = rows[0] + (QUEUE_COUNT_MAX if info == INFO_LEVEL else 0)
    _change_pending(engine.world, row, -1)


def _rows_by_unit(engine: Engine, message: int, info: int) -> list[int]:
    """Return the queues whose topic has the hash that stands in the message's unit."""
    first, places = engine.read_slot, len(engine.near.waiting)
    slot = first + (place_of(info) - first) % places
    if slot < engine.world.dequeue_get.claimed_slot:
        offset = _find_unit(engine, slot, message)
        if offset >= 0:
            data = engine.timerlog.read(offset + fmt.UNIT_HASH_AT, 4)
            return _rows_of_hash(engine, int.from_bytes(data, "big", signed=True))
    return []


def _find_unit(engine: Engine, slot: int, message: int) -> int:
    """Return the offset of a message's unit in a slot, or −1, also if a segment is missing."""
    try:
        for units in slot_units(engine, slot):
            mine = np.flatnonzero(units.message == message)
            if len(mine):
                return int(units.offset[mine[0]])
    except CorruptStoreError:
        pass
    return -1


def _rows_of_hash(engine: Engine, code: int) -> list[int]:
    topics = enumerate(engine.queues.topics)
    return [row for row, name in topics if java_hash_of(name.decode("utf-8", "replace")) == code]


@kernel_later
def _change_pending(world: World, row: int, change: int) -> None:
    """Change the count of a topic, as `append` does."""
    lock_acquire(world.append_lock)
    world.queues.pending[row] += change
    world.queues.tally.words[row % QUEUE_COUNT_MAX * TALLY_WORDS + LOST_COUNT] -= change
    lock_release(world.append_lock)


def is_sound(engine: Engine, row: int, index: int, entry: fmt.Entries) -> bool:
    """Tell whether an entry is that of a message, as far as that is still there."""
    log, offset = engine.commitlog, int(entry["offset"][0])
    if int(entry["size"][0]) == fmt.QUEUE_LOST_SIZE and 0 <= offset < log.files_end:
        return True
    if not 0 <= offset < log.files_end:
        return False
    verdicts, where = np.zeros(1, np.int64), np.zeros(2, np.int64)
    with log.reading() as table:
        log.readable(offset // log.segment_bytes)
        run = QueueRun(
            np.frombuffer(entry.tobytes(), np.uint8),
            0,
            index,
            np.frombuffer(engine.queues.topics[row], np.uint8),
            int(engine.queues.table.queue_id[row]),
        )
        judge_entries(table, run, log.start, log.files_end, MessageParts(), verdicts, where)
    return int(verdicts[0]) in (ENTRY_GOOD, ENTRY_BLANK, ENTRY_REMOVED)


def is_damaged(engine: Engine, row: int, index: int) -> bool:
    """Tell whether what cannot be read is an entry, and not the message that it leads to."""
    try:
        entry = engine.queues.read(row, index, 1)
        return not is_sound(engine, row, index, entry) and not _leads_to_damage(engine, entry)
    except CorruptStoreError:
        return False  # retention removed what was looked at


def leave_entries(engine: Engine, row: int, indexes: list[int]) -> None:
    """Name damaged entries; have the queues made anew. Durable on return."""
    for index in indexes:
        place = index * fmt.ENTRY_BYTES
        engine.damage.note(engine.queues.name(row), place, WRONG_ENTRY_REASON)
    engine.wanted.add(QUEUES, keep_from=_message_before(engine, row, min(indexes)))


def _message_before(engine: Engine, row: int, index: int) -> int:
    """Return the offset of the message before an entry's, if it has a sound entry; else 0."""
    if index <= engine.queues.first_index(row):
        return 0
    try:
        entry = engine.queues.read(row, index - 1, 1)
        return int(entry["offset"][0]) if is_sound(engine, row, index - 1, entry) else 0
    except CorruptStoreError:
        return 0


# --- An entry that leads to no message of its queue: what it should say, for the service that reads
#
# A message says its own index. So if the entry is damaged, its message is looked for behind that of
# the entry before, up to the next one of the queue. If the message is what is damaged, or gone, it
# is passed by.


def find_timer_message(engine: Engine, index: int) -> None:
    """Say which message an entry of the timer topic's queue should lead to.

    An opening raises CorruptStoreError if the entry is damaged, and begins again by making the
    queues anew.
    """
    get = engine.world.enqueue_get
    pass_lost(engine, get.thread)
    if get.said_index != index and is_damaged(engine, 0, index):
        if engine.world.settings.recovering != 0:
            place = index * fmt.ENTRY_BYTES
            raise CorruptStoreError(engine.queues.name(0), place, WRONG_ENTRY_REASON)
        leave_entries(engine, 0, [index])
        if found := _find_at_index(engine, 0, index):
            get.said_message, get.said_size, _ = found
            get.said_index = index
            return
    get.lost_index = index


def find_level_message(engine: Engine, level: int) -> None:
    """Say which message the next entry of a delay level should lead to."""
    levels = engine.levels
    row, index = int(levels.row[level]), int(levels.offset[level])
    (entry,) = engine.queues.read(row, index, 1)
    said = int(entry["offset"]), int(entry["size"]), int(entry["tags_code"])
    found = _find_at_index(engine, row, index)
    # Of a message that is sound only the time can have been wrong: a broker's is not asked for it.
    if is_damaged(engine, row, index) or (found is not None and found[:2] == said[:2]):
        leave_entries(engine, row, [index])
        said = found or said
    levels.said_message[level], levels.said_size[level], levels.said_ms[level] = said
    levels.head_index[level], levels.said_index[level] = NO_HEAD, index


def _find_at_index(engine: Engine, row: int, index: int) -> tuple[int, int, int] | None:
    """Return offset, size and tags code of the message with an index in a queue. O(log between)."""
    log = engine.commitlog
    start = max(log.start, _message_before(engine, row, index))
    for rows in sound_messages(engine.open_reader(), start, log.end):
        later = np.flatnonzero(rows.queue_index >= index)
        mine = later[queue_rows_of(engine, stored_in(rows[later])) == row]
        for i in mine[:1].tolist():
            found = int(rows.offset[i]), int(rows.size[i]), int(rows.tags_code[i])
            return found if rows.queue_index[i] == index else None
    return None


def _leads_to_damage(engine: Engine, entry: fmt.Entries) -> bool:
    """Tell whether an entry leads to a message that is damaged.

    Such a message still says its own offset, or another one begins where it ends. In the midst of
    many that are damaged neither may hold; then their entries count as damaged, too.
    """
    log, offset, size = engine.commitlog, int(entry["offset"][0]), int(entry["size"][0])
    if not log.start <= offset < log.end or size <= 0:
        return False
    if read_one(log.view(offset), 0, offset, NO_TAG, MessageParts(), True) == GOOD:
        return False
    following = offset + size
    return following == log.end or any(_says(log, at) == at for at in (offset, following))


def _is_displaced(log: SegmentedFile, at: int) -> bool:
    """Tell whether a message at a place is that of the same place of another segment's file."""
    own = _says(log, at)
    return own != at and log.start <= own < log.end and (own - at) % log.segment_bytes == 0


def _says(log: SegmentedFile, at: int) -> int:
    """Return the offset that the message at a place says of itself; −1 behind the log's end."""
    if at > log.end - fmt.MESSAGE_BYTES_MIN:
        return -1
    return int.from_bytes(log.read(at + fmt.MESSAGE_OFFSET_AT, 8), "big", signed=True)


def queue_rows_of(engine: Engine, names: QueueNames) -> Words:
    """Return the row of each of these queues, which gets one if it has none. O(n)."""
    result = np.empty(len(names.queue_id), np.int64)
    with engine.commitlog.reading() as commitlog:
        while (lost := find_rows(engine.queues.table, commitlog, names, result)) >= 0:
            at, count, queue_id = (int(column[lost]) for column in names)
            engine.queues.row(engine.commitlog.read(at, count), queue_id)
    return result


def wrong_entries(
    engine: Engine, rows: LoggedMessages, queue_rows: Words, which: Words
) -> Iterator[tuple[int, int]]:
    """Yield row and index of each entry that is not that of its message, among scanned messages.

    `queue_rows`: of their queues. `which`: the places of those that are asked about. O(those).
    """
    queues, log_start = engine.queues, engine.commitlog.start
    order = which[np.argsort(queue_rows[which], kind="stable")]
    for mine in np.split(order, np.flatnonzero(np.diff(queue_rows[order])) + 1):
        if not len(mine):
            continue
        row, index = int(queue_rows[mine[0]]), rows.queue_index[mine]
        kept = (index >= queues.first_index(row)) & (index < queues.next_index(row))
        mine, index = mine[kept], index[kept]
        if not len(mine):
            continue
        first, last = int(index.min()), int(index.max())
        entries = queues.read(row, first, last - first + 1)[index - first]
        wrong = (entries["offset"] != rows.offset[mine]) | (entries["size"] != rows.size[mine])
        # Of a level's message of ours the key says when it is due, and so must its entry.
        of_level = rows.identity_low[mine] == rows.offset[mine] | fmt.LEVEL_MARK
        of_level &= rows.identity_high[mine] == IDENTITY_OURS
        mistimed = of_level & (entries["tags_code"] != rows.tags_code[mine])
        for i in np.flatnonzero(wrong | mistimed).tolist():
            if not wrong[i]:
                yield row, int(index[i])
                continue
            entry = entries[i : i + 1]
            # Of two messages with one index, which an older version may have written, one counts.
            is_removed = int(entry["offset"][0]) < log_start
            if is_removed or not is_sound(engine, row, int(index[i]), entry):
                yield row, int(index[i])
