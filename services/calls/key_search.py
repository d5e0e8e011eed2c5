"""Looking for messages by their key, in the files of `index/`.

What an entry says only leads to a message, which is read and compared; whether its timer is pending
is for the caller to ask, by its id. What is certainly done with is cut out of its chain on the way,
so each is met once: a key that is put and fired again and again does not become long.

Certainly done with is a message before the floor; a level's that was delivered; a timer that had
its unit when the read cursor was not yet past some slot, if it is past that slot and the timer's
own by now. The reason: a unit's slot is its timer's own, or the read cursor's if that was later.

What is before the floor may be done with, or was copied: then its copy is in the index, if the
floor stood there before the index was brought up to date. If the floor came to a message of a
search only since, the index is brought up to date again.

Everything here goes under the lock of the index.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.intrinsics import (
    bytes_are,
    get_i32,
    get_i64,
    get_u8,
    prefetch,
    put_i32,
    view_bytes,
)
from timerstore.jit.kernel import caller_of, inlined, kernel_ahead
from timerstore.jit.objects import address_of
from timerstore.jit.record import Bytes, Words, observe, record, record_at
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, read_message
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.writing.keyindex import (
    LEVELS_PREFIX,
    TIMERS_PREFIX,
    KeyIndex,
    entry_at,
    index_entries,
    key_code,
    pass_keyless,
    slot_at,
    view_file,
    word_end,
    word_start,
)

# How a search is called.
BEGIN: Final = 0
BEGIN_BEHIND: Final = 1  # also if the index is not up to date
GO_ON: Final = 2
GO_ON_WITHOUT: Final = 3  # what was found last is not pending: it leaves its chain

# What a search says.
SEARCH_NOTHING_LEFT: Final = 0
SEARCH_FOUND: Final = 1
SEARCH_BEHIND: Final = 2  # the index has to catch up first
SEARCH_UNMAPPED: Final = 3  # the segment of MESSAGE must be mapped; then GO_ON
SEARCH_NO_WORD: Final = 4  # a key that has only blanks has no entry

# Words of `KeyPlace.state`.
MESSAGE: Final = 0  # what was found, or is to be mapped
ID_BYTES: Final = 1  # of the id in `KeyPlace.id`; 0: it is no usual one
_QUEUE: Final = 2  # 0: among timers, 1: in levels
_FILE: Final = 3
_ENTRY: Final = 4  # the next one to look at, 0: that of the file before
_KEPT: Final = 5  # the last one of this chain that stays, 0 for none
_CODE: Final = 6
_LEVEL_CODE: Final = 7
_LAST: Final = 8  # the entry that was found, 0 for none
_FLOOR: Final = 9  # the floor, before the index was brought up to date
_IS_MOVED: Final = 10  # 1: the floor came to a message since
_STATE_WORDS: Final = 16
_FILES_AHEAD: Final = 32
_FEW: Final = 64

# What a message is.
_OTHER: Final = 0
_MATCH: Final = 1
_SETTLED: Final = 2
_MISSING: Final = 3


@record
class KeyPlace:
    """What one search after the other works on."""

    world: World
    index: KeyIndex
    state: Words  # int64[_STATE_WORDS], see the constants above
    id: Bytes  # uint8[KEY_DIGITS], out


_place_at = record_at(KeyPlace)


@inlined
def note_progress(world: World, index: KeyIndex) -> None:
    """Remember the queue cursor, and a read cursor that was read after it.

    Two such pairs are kept; the read cursor is past that of the older one.
    """
    linked = observe(world.enqueue_put, "linked_index")
    passed = observe(world.dequeue_put, "passed_slot")
    if passed > index.new_passed:
        index.old_linked, index.old_passed = index.new_linked, index.new_passed
        index.new_linked, index.new_passed = linked, passed


@inlined
def _is_behind(world: World, index: KeyIndex, floor: int) -> bool:
    """Tell whether anything stands in a queue that may have a key and is not indexed.

    The last few timers are indexed here, if nothing has to be made for it: so does not each call
    that has put or cancelled one make the next one behind.
    """
    for level in range(min(world.levels.count, fmt.LEVEL_COUNT_MAX)):
        row = world.levels.row[level]
        if row >= 0 and pass_keyless(index, world.queues, 1 + level, row) > 0:
            return True
    left = pass_keyless(index, world.queues, 0, 0)
    if left == 0 or left > _FEW:
        return left > 0
    start = index.cursor[0] * fmt.ENTRY_BYTES
    entries = segment_at(world.timer_queue, start)
    at = start % world.timer_queue.segment_bytes
    if at + left * fmt.ENTRY_BYTES > len(entries):
        return True
    done = index_entries(index, world.commitlog, entries, at, left, 0, floor)
    return done < left


@inlined
def _look(place: KeyPlace, message: int, in_level: bool, key: Bytes, topic: Bytes) -> int:
    """Read a message; tell what it is to this search."""
    world, index, found = place.world, place.index, place.index.found
    if message < place.state[_FLOOR]:
        return _SETTLED
    if message < observe(world.cleaning, "floor"):
        place.state[_IS_MOVED] = 1
        return _OTHER
    log = world.commitlog
    if message >= observe(log, "end"):
        return _OTHER
    buf = segment_at(log, message)
    if len(buf) == 0:
        return _MISSING
    position = message % log.segment_bytes
    if read_message(buf, position, message, found, False) != GOOD or found.deletes_bytes >= 0:
        return _OTHER
    at = get_i64(buf, position + fmt.MESSAGE_QUEUE_INDEX_AT)
    if in_level:
        level = get_i32(buf, position + fmt.MESSAGE_QUEUE_ID_AT)
        if level >= 0 and level < fmt.LEVEL_COUNT_MAX and at < world.levels.offset[level]:
            return _SETTLED
    elif at < index.old_linked and index.old_passed < index.new_passed:
        slot = found.due_ms // world.settings.precision_ms
        if found.due_ms >= 0 and slot < index.new_passed:
            return _SETTLED
    if found.keys_bytes != len(key) or found.real_topic_bytes != len(topic):
        return _OTHER
    if not bytes_are(buf, found.keys_at, key, 0, len(key)):
        return _OTHER
    if not bytes_are(buf, found.real_topic_at, topic, 0, len(topic)):
        return _OTHER
    place.state[ID_BYTES] = 0
    if found.key_bytes == fmt.KEY_DIGITS:
        place.state[ID_BYTES] = fmt.KEY_DIGITS
        for i in range(fmt.KEY_DIGITS):
            place.id[i] = get_u8(buf, found.key_at + i)
    return _MATCH


@inlined
def _cut(place: KeyPlace, file: Bytes, room: int, previous: int) -> None:
    """Have what stays of this chain lead to `previous`."""
    state = place.state
    if state[_KEPT] > 0:
        put_i32(file, entry_at(state[_KEPT], room) + fmt.KEY_PREVIOUS_AT, previous)
    else:
        put_i32(file, slot_at(state[_CODE + state[_QUEUE]], room), previous)


@inlined
def _has_any(index: KeyIndex, number: int, queue: int) -> bool:
    """Tell whether a file has any entry of a timer, 0, or of a level, 1."""
    found: int = index.last_index[number] if queue == 0 else index.last_level[number]
    return found >= 0


@inlined
def _ask_ahead(index: KeyIndex, code: int, level_code: int) -> None:
    """Ask for the slots of the newest files, which would come one after the other."""
    last = index.file_count - 1
    for number in range(max(0, last - _FILES_AHEAD), last + 1):
        file, room = view_file(index, number), index.room[number]
        if _has_any(index, number, 0):
            prefetch(file, slot_at(code, room))
        if _has_any(index, number, 1):
            prefetch(file, slot_at(level_code, room))


@inlined
def _begin_file(place: KeyPlace, number: int) -> None:
    """Go on with the chain of this file; below 0 there is none any more."""
    index, state = place.index, place.state
    state[_FILE], state[_KEPT], state[_LAST], state[_ENTRY] = number, 0, 0, 0
    if number >= 0 and _has_any(index, number, state[_QUEUE]):
        room = index.room[number]
        head = get_i32(view_file(index, number), slot_at(state[_CODE + state[_QUEUE]], room))
        state[_ENTRY] = head if 0 < head < index.next_entry[number] else 0


@kernel_ahead
def _search(address: int, key: int, key_bytes: int, topic: int, topic_bytes: int, how: int) -> int:
    """Find the next message with a key that may wait for a topic; see the constants above."""
    place = _place_at(address)
    index, state, world = place.index, place.state, place.world
    wanted, of = view_bytes(key, key_bytes), view_bytes(topic, topic_bytes)
    if how <= BEGIN_BEHIND:
        if how == BEGIN:
            state[_FLOOR] = observe(world.cleaning, "floor")
            if _is_behind(world, index, state[_FLOOR]):
                return SEARCH_BEHIND
        start = word_start(wanted, 0, key_bytes)
        if start == key_bytes:
            return SEARCH_NO_WORD
        count = word_end(wanted, start, key_bytes) - start
        note_progress(world, index)
        state[_IS_MOVED] = 0
        state[_CODE] = key_code(TIMERS_PREFIX, wanted, start, count)
        state[_LEVEL_CODE] = key_code(LEVELS_PREFIX, wanted, start, count)
        _ask_ahead(index, state[_CODE], state[_LEVEL_CODE])
        state[_QUEUE] = 0
        _begin_file(place, index.file_count - 1)
    elif state[_LAST] > 0:
        if how == GO_ON_WITHOUT:
            number = state[_FILE]
            _cut(place, view_file(index, number), index.room[number], state[_ENTRY])
        else:
            state[_KEPT] = state[_LAST]
        state[_LAST] = 0
    while True:
        number = state[_FILE]
        if number < 0:
            if state[_QUEUE] == 1:
                if state[_IS_MOVED] == 0:
                    return SEARCH_NOTHING_LEFT
                state[_IS_MOVED], state[_FLOOR] = 0, observe(world.cleaning, "floor")
                return SEARCH_BEHIND
            state[_QUEUE] = 1
            _begin_file(place, index.file_count - 1)
            continue
        file, room = view_file(index, number), index.room[number]
        code = state[_CODE + state[_QUEUE]]
        while state[_ENTRY] > 0:
            entry = state[_ENTRY]
            at = entry_at(entry, room)
            previous = get_i32(file, at + fmt.KEY_PREVIOUS_AT)
            if previous < 0 or previous >= entry:
                previous = 0
            kind = _OTHER
            if get_i32(file, at + fmt.KEY_HASH_AT) == code:
                message = get_i64(file, at + fmt.KEY_OFFSET_AT)
                kind = _look(place, message, state[_QUEUE] == 1, wanted, of)
                if kind >= _MISSING or kind == _MATCH:
                    state[MESSAGE] = message
            if kind == _MISSING:
                return SEARCH_UNMAPPED
            state[_ENTRY] = previous
            if kind == _MATCH:
                state[_LAST] = entry
                return SEARCH_FOUND
            if kind == _SETTLED:
                _cut(place, file, room, previous)
            else:
                state[_KEPT] = entry
        _begin_file(place, number - 1)


class KeySearch:
    """Searches in one store, one after the other, each by who holds the index's lock.

    The caller is inside `reading()` of the commit log, and of the timer topic's queue.
    """

    def __init__(self, world: World, index: KeyIndex) -> None:
        self.place = place = KeyPlace(
            *(world, index, np.zeros(_STATE_WORDS, np.int64), np.zeros(fmt.KEY_DIGITS, np.uint8))
        )
        # Looking into an array of a record costs three times as much.
        self._state = memoryview(place.state)  # type: ignore[arg-type]
        self._id = memoryview(place.id)  # type: ignore[arg-type]
        self._address = int(self.place.block_address)  # type: ignore[attr-defined]
        self._call = caller_of(_search)

    def next(self, key: bytes, topic: bytes, how: int) -> int:
        """Return what `_search` says."""
        return self._call(
            self._address, address_of(key), len(key), address_of(topic), len(topic), how
        )

    @property
    def message(self) -> int:
        """The offset of what was found, or is to be mapped."""
        message: int = self._state[MESSAGE]
        return message

    @property
    def id(self) -> str | None:
        """The id of what was found; None if its key is no usual one."""
        return str(self._id, "latin-1") if self._state[ID_BYTES] else None
