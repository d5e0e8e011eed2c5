"""The short way of a call on one timer by its id, `get`, `cancel` or `reschedule`: a kernel or two.

A caller with many ids has arrays; one with a single id would pay for making them. What is out of
the ordinary (a delay level's message, a broker's key, a timer that may have been taken, or may have
rolled, a segment that is not mapped) goes the long way, `get.py`, `cancel.py`, `reschedule.py`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.ids import ID_DIGITS, TimerId, format_id, parse_id
from timerstore.pending.moved import encode_described
from timerstore.pending.timers import (
    PART_BORN_MS,
    PART_COLUMNS,
    PART_PROPERTIES,
    PART_PROPERTIES_END,
    PART_ROW,
    PART_TAG,
    PART_TAG_END,
    Timer,
    from_parts,
    note_parts,
)
from timerstore.pending.verdict import row_of_first_put
from timerstore.services.cancel_ahead import (
    CANCELLED_BEFORE,
    CANCELLED_NOW,
    NOT_JUDGED,
    is_ahead,
)
from timerstore.services.deletes import DELETE_BODY, delete_template
from timerstore.services.engine import Engine
from timerstore.services.state import CANCEL
from timerstore.services.world import World
from timerstore.timelog.acting import act_as
from timerstore.timelog.append import Stage, append, new_stage
from timerstore.timelog.decode import decode_properties, text
from timerstore.timelog.format import (
    CRC_PROPERTY_BYTES,
    LEVEL_MARK,
    MESSAGE_QUEUE_INDEX_AT,
    PROPERTY_REPLACES,
)
from timerstore.timelog.frame import (
    TEMPLATE_PENDING_ROW,
    Template,
    encode_property,
    frame_new,
    new_template,
)
from timerstore.timelog.intrinsics import get_i64, load_acquire, view_bytes
from timerstore.timelog.kernel import inlined, kernel_ahead
from timerstore.timelog.locks import lock_acquire, lock_release
from timerstore.timelog.message import (
    BODY_AT,
    BODY_BYTES,
    FOUND_WORDS,
    GOOD,
    IDENTITY_OURS,
    USUAL_END,
    WHOLE_CRC,
    read_message,
)
from timerstore.timelog.record import Bytes, ReadBytes, Words, record
from timerstore.timelog.segmenttable import END, SEGMENT_BYTES, TABLE_LENGTH, segment_at
from timerstore.timelog.text import java_hash_of, put_hex_8, put_hex_12
from timerstore.wheel.cancelled import (
    cancelled_add,
    cancelled_contains,
    cancelled_has_room,
    cancelled_remove,
)
from timerstore.wheel.place import may_have_rolled

TOPICS_MAX: Final = 1_024
"""Topics whose template of a delete is kept: 1 KB each."""
PENDING: Final = 1
_NOT_FOUND: Final = -1
_OTHER_TOPIC: Final = -2
"""And less: −2 − row, where the template is of another topic."""


@record
class Place:
    """What a call on one timer works on; each call has one for itself."""

    world: World
    stage: Stage
    found: Words  # int64[FOUND_WORDS]
    key: Bytes  # uint8[ID_DIGITS]
    body: Bytes  # of a delete
    parts: Words  # int64[PART_COLUMNS], out: of a message that was found
    has_rolled: int = 0  # out: 1, a later copy may be the one that waits
    row: int = 0  # out: of the real topic's queue


@inlined
def _find_first_put(place: Place, due_ms: int, offset: int, verify: bool) -> int:
    """Read the message that an id names into `found`; return its real topic's row.

    Below 0: go the long way. `verify`: check the CRC as well.
    """
    world, found = place.world, place.found
    log = world.commitlog
    if offset >= load_acquire(log.words, END):
        return _NOT_FOUND
    buf = segment_at(log, offset)
    if len(buf) == 0:
        return _NOT_FOUND
    if read_message(buf, offset % log.words[SEGMENT_BYTES], found, verify) != GOOD:
        return _NOT_FOUND
    tag = world.settings.store_tag
    row: int = row_of_first_put(world.queues, buf, found, due_ms, offset, tag)
    return row


@inlined
def _queue_index(world: World, offset: int) -> int:
    """Return a message's index in its queue; its segment is mapped."""
    at = offset % world.commitlog.words[SEGMENT_BYTES]
    index: int = get_i64(segment_at(world.commitlog, offset), at + MESSAGE_QUEUE_INDEX_AT)
    return index


@inlined
def _frame_delete(
    place: Place, i: int, at: int, template: Template, due_ms: int, offset: int, now_ms: int
) -> None:
    """Frame the delete of a timer as message `i` of the stage."""
    tag = place.world.settings.store_tag
    put_hex_12(place.key, 0, due_ms)
    put_hex_12(place.key, 12, offset)
    put_hex_8(place.key, 24, tag)
    frame_new(place.stage, i, at, template, place.body, place.key, due_ms, now_ms, tag)


@kernel_ahead
def _get(place: Place, due_ms: int, offset: int) -> int:
    """Read a pending timer's message into `found`, with its born time: PENDING.

    NOT_JUDGED: go the long way.
    """
    world = place.world
    row = _find_first_put(place, due_ms, offset, True)
    if row < 0:
        return NOT_JUDGED
    place.row = row
    at = offset % world.commitlog.words[SEGMENT_BYTES]
    note_parts(segment_at(world.commitlog, offset), at, place.found, row, place.parts, 0)
    rolled = may_have_rolled(world.settings, due_ms, place.parts[PART_BORN_MS])
    place.has_rolled = 1 if rolled else 0
    index, verdict = _queue_index(world, offset), NOT_JUDGED
    lock_acquire(world.fire_lock)
    if is_ahead(world, due_ms, index):
        if not cancelled_contains(world.cancelled, IDENTITY_OURS, offset):
            verdict = PENDING
    lock_release(world.fire_lock)
    return verdict


@kernel_ahead
def _cancel(place: Place, template: Template, due_ms: int, offset: int, now_ms: int) -> int:
    """Cancel a timer, and append its delete: CANCELLED_NOW, or CANCELLED_BEFORE.

    NOT_JUDGED: nothing done, go the long way; below: see _OTHER_TOPIC.
    """
    world, stage, log = place.world, place.stage, place.world.commitlog
    row = _find_first_put(place, due_ms, offset, False)
    if row < 0:
        return NOT_JUDGED
    if template.words[TEMPLATE_PENDING_ROW] != row:
        return _OTHER_TOPIC - row
    index = _queue_index(world, offset)
    _frame_delete(place, 0, 0, template, due_ms, offset, now_ms)
    verdict, before = NOT_JUDGED, act_as(CANCEL)
    lock_acquire(world.fire_lock)
    if cancelled_contains(world.cancelled, IDENTITY_OURS, offset):
        verdict = CANCELLED_BEFORE
    elif is_ahead(world, due_ms, index) and cancelled_has_room(world.cancelled):
        cancelled_add(world.cancelled, IDENTITY_OURS, offset)
        if append(log, world.queues, world.append_lock, stage, 1, now_ms, True) == 1:
            verdict = CANCELLED_NOW
        else:
            cancelled_remove(world.cancelled, IDENTITY_OURS, offset)
    lock_release(world.fire_lock)
    act_as(before)
    return verdict


@kernel_ahead
def _reschedule(
    place: Place,
    template: Template,
    delete: Template,
    due_ms: int,
    offset: int,
    new_due_ms: int,
    extra: ReadBytes,
    tags_code: int,
    now_ms: int,
) -> int:
    """Append a timer in the place of the one that `_get` found, with that one's delete.

    `extra`: uint8[n], its properties but for the last one's end. Return the new one's offset;
    NOT_JUDGED, which is 0: nothing done, go the long way.
    """
    world, found, stage = place.world, place.found, place.stage
    log, tag = world.commitlog, world.settings.store_tag
    index = _queue_index(world, offset)
    number = offset // log.words[SEGMENT_BYTES]
    body = view_bytes(log.address[number & (TABLE_LENGTH - 1)] + found[BODY_AT], found[BODY_BYTES])
    size = frame_new(stage, 0, 0, template, body, extra, new_due_ms, now_ms, tag)
    stage.tags_code[0] = tags_code
    _frame_delete(place, 1, size, delete, due_ms, offset, now_ms)
    new_offset, before = NOT_JUDGED, act_as(CANCEL)
    lock_acquire(world.fire_lock)
    if is_ahead(world, due_ms, index) and cancelled_has_room(world.cancelled):
        if cancelled_add(world.cancelled, IDENTITY_OURS, offset):  # else it was cancelled meanwhile
            if append(log, world.queues, world.append_lock, stage, 2, now_ms, True) == 2:
                new_offset = stage.offset[0]
            else:
                cancelled_remove(world.cancelled, IDENTITY_OURS, offset)
    lock_release(world.fire_lock)
    act_as(before)
    return new_offset


def _described(view: Bytes, found: Words, part: list[int]) -> tuple[int, bytes]:
    """Return a message's tag as a number, and what describes it, as it stands in a message."""
    properties_at, stop = part[PART_PROPERTIES], part[PART_PROPERTIES_END]
    if part[PART_ROW] >= 0 and found[WHOLE_CRC] == 1:  # nothing else stands there
        described = view[int(found[USUAL_END]) : stop - CRC_PROPERTY_BYTES].tobytes()
        tag = view[part[PART_TAG] : part[PART_TAG_END]].tobytes() if part[PART_TAG] >= 0 else b""
        return java_hash_of(text(tag)), described
    properties = decode_properties(view[properties_at:stop].tobytes())
    return java_hash_of(properties.get("TAGS", "")), encode_described(properties)


class ById:
    """The short way into one engine; any number of threads may use it."""

    def __init__(self, engine: Engine) -> None:
        """Begin with no topic known."""
        self._engine, self._tag = engine, engine.store_tag
        self._places: list[Place] = []
        self._templates: dict[int, tuple[Template, Template]] = {}
        self._delete = delete_template(b"t", -1)  # for the topic that came last

    def cancel(self, id: object, now_ms: int) -> bool | None:
        """Cancel a timer that lies ahead: True, or False where it is too late; None: the long way.

        Its delete is not durable yet.
        """
        parsed = self._parse(id)
        if parsed is None:
            return None
        due_ms, offset, place = parsed.due_ms, parsed.offset, self._take()
        try:
            with self._engine.commitlog.reading():
                verdict = _cancel(place, self._delete, due_ms, offset, now_ms)
                if verdict <= _OTHER_TOPIC:
                    _, delete = self._templates_of(_OTHER_TOPIC - verdict)
                    verdict = _cancel(place, delete, due_ms, offset, now_ms)
        finally:
            self._places.append(place)
        if verdict == CANCELLED_NOW:
            return True
        return due_ms > now_ms if verdict == CANCELLED_BEFORE else None

    def get(self, id: object) -> Timer | None:
        """Return a pending timer; None: go the long way."""
        parsed = self._parse(id)
        if parsed is None:
            return None
        log, place = self._engine.commitlog, self._take()
        try:
            with log.reading():
                verdict = _get(place, parsed.due_ms, parsed.offset)
                if verdict != PENDING or place.has_rolled:
                    return None
                view, part = (
                    log.existing(parsed.offset // log.segment_bytes).view,
                    place.parts.tolist(),
                )
                topic = text(self._engine.queues.topics[place.row])
                return from_parts(view, part, str(id), topic, parsed.due_ms)
        except CorruptStoreError:
            return None  # its segment was removed just now
        finally:
            self._places.append(place)

    def reschedule(self, id: object, due_ms: int, now_ms: int) -> str | None:
        """Move a timer that lies ahead; return its new id, or None: go the long way.

        Neither message is durable yet.
        """
        parsed = self._parse(id)
        if parsed is None:
            return None
        engine, place = self._engine, self._take()
        log, found = engine.commitlog, place.found
        try:
            with log.reading():
                if _get(place, parsed.due_ms, parsed.offset) != PENDING:
                    return None
                view = log.existing(parsed.offset // log.segment_bytes).view
                tags_code, described = _described(view, found, place.parts.tolist())
                if int(found[BODY_BYTES]) + len(described) > engine.content_bytes_max:
                    return None
                extra = encode_property(PROPERTY_REPLACES, str(id).encode()) + described
                template, delete = self._templates_of(place.row)
                offset = _reschedule(
                    place,
                    template,
                    delete,
                    parsed.due_ms,
                    parsed.offset,
                    due_ms,
                    np.frombuffer(extra, np.uint8, len(extra) - 1),
                    tags_code,
                    now_ms,
                )
            return format_id(due_ms, offset, self._tag) if offset != NOT_JUDGED else None
        except CorruptStoreError:
            return None  # its segment was removed just now
        finally:
            self._places.append(place)

    def _parse(self, id: object) -> TimerId | None:
        """Return the parts of the id of one of this store's timers; None for any other."""
        if type(id) is not str or not id.isalnum() or id.upper() != id:  # or as Python reads hex
            return None
        parsed = parse_id(id)
        if parsed is None or parsed.tag != self._tag or parsed.offset >= LEVEL_MARK:
            return None
        return parsed

    def _take(self) -> Place:
        try:
            return self._places.pop()
        except IndexError:
            stage, found = new_stage(2), np.zeros(FOUND_WORDS, np.int64)
            key = np.zeros(ID_DIGITS, np.uint8)
            parts = np.zeros(PART_COLUMNS, np.int64)
            return Place(self._engine.world, stage, found, key, DELETE_BODY, parts)

    def _templates_of(self, row: int) -> tuple[Template, Template]:
        """Return those of a timer and of a delete for a topic, by its queue's row."""
        found = self._templates.get(row)
        if found is None:
            if len(self._templates) >= TOPICS_MAX:
                self._templates.clear()
            topic = self._engine.queues.topics[row]
            timer = new_template(topic, pending_row=row, change=1, tags_code=0, extra=b"")
            found = self._templates[row] = timer, delete_template(topic, row)
        self._delete = found[1]
        return found
