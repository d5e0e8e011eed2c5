"""A call on one timer by its id, `get`, `cancel` or `reschedule`, in a kernel or two.

A caller with many ids has arrays; one with a single id would pay for making them. So these kernels
take only integers (`timelog/jit/entrypoint.py`), and read the id's digits in place. They
go without the GIL, because they wait for fire, which Python may hold while it waits for the GIL.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.services.calls.cancel_ahead import (
    CANCELLED_BEFORE,
    CANCELLED_NOW,
    NOT_JUDGED,
    is_ahead,
)
from timerstore.services.calls.deletes import DELETE_BODY
from timerstore.services.calls.first_puts import row_of_first_put
from timerstore.services.looking.timer_parts import SPAN_BORN_MS, SPAN_COLUMNS, note_parts
from timerstore.services.world.state import CANCEL
from timerstore.services.world.waking import NO_HURRY_MS, wake_for
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.idtext import id_is, put_id
from timerstore.timelog.bytes.message import GOOD, IDENTITY_OURS, MessageParts, read_message
from timerstore.timelog.bytes.text import get_hex_12
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.jit.acting import act_as
from timerstore.timelog.jit.entrypoint import entry_ahead, entry_point
from timerstore.timelog.jit.intrinsics import get_i64, view_bytes
from timerstore.timelog.jit.kernel import inlined
from timerstore.timelog.jit.locks import lock_acquire, lock_release
from timerstore.timelog.jit.objects import address_of
from timerstore.timelog.jit.record import Bytes, Words, observe, record, record_at
from timerstore.timelog.writing.append import Stage, append, new_stage
from timerstore.timelog.writing.frame import Template, frame_new
from timerstore.wheel.cancelled import (
    cancelled_add,
    cancelled_contains,
    cancelled_has_room,
    cancelled_remove,
)
from timerstore.wheel.place import may_have_rolled

# What `get_by_id` says: NOT_JUDGED, or one of these.
CANCELLED: Final = -1  # and still ahead
PENDING: Final = 1
PENDING_ROLLED: Final = 2  # a later copy may be the one that waits
_NOT_FOUND: Final = -1
OTHER_TOPIC: Final = -2
"""And less: −2 − row, if the template is of another topic."""

# What is told of a timer, behind the parts of its message.
TOLD_DUE_MS: Final = SPAN_COLUMNS
TOLD_OFFSET: Final = SPAN_COLUMNS + 1
TOLD_ROW: Final = SPAN_COLUMNS + 2  # of the real topic's queue
TOLD_INDEX: Final = SPAN_COLUMNS + 3  # of its entry in the timer topic's queue
_TOLD_WORDS: Final = SPAN_COLUMNS + 4


@record
class Place:
    """What a call on one timer works on; each call has one for itself."""

    world: World
    stage: Stage
    found: MessageParts
    key: Bytes  # uint8[KEY_DIGITS]
    body: Bytes  # of a delete
    told: Words  # int64[_TOLD_WORDS], out
    clock: Words  # int64[8]: scratch of wake_for


_place_at, _template_at = record_at(Place), record_at(Template)


def new_place(world: World) -> Place:
    """Return what one call at a time works on."""
    found, key = MessageParts(), np.zeros(fmt.KEY_DIGITS, np.uint8)
    told, clock = np.zeros(_TOLD_WORDS, np.int64), np.zeros(8, np.int64)
    return Place(world, new_stage(2), found, key, DELETE_BODY, told, clock)


@inlined
def _read_id(place: Place, digits: Bytes) -> bool:
    """Tell due time and offset that an id names; False if it can be no timer's of this store."""
    due_ms, offset = get_hex_12(digits, 0), get_hex_12(digits, 12)
    if not id_is(digits, 0, due_ms, offset, place.world.settings.store_tag):
        return False  # no digits, or lower-case ones
    place.told[TOLD_DUE_MS] = due_ms
    place.told[TOLD_OFFSET] = offset
    return offset < fmt.LEVEL_MARK and offset < observe(place.world.commitlog, "end")


@inlined
def _find_first_put(place: Place, buf: Bytes) -> int:
    """Read the message that was told of, in its segment, into `found`; return its topic's row.

    Below 0: go the long way. Born time and index in the queue are told.
    """
    world, found = place.world, place.found
    due_ms, offset = place.told[TOLD_DUE_MS], place.told[TOLD_OFFSET]
    at = offset % world.commitlog.segment_bytes
    if len(buf) == 0 or read_message(buf, at, found, True) != GOOD:
        return _NOT_FOUND
    place.told[SPAN_BORN_MS] = get_i64(buf, at + fmt.MESSAGE_BORN_AT)
    place.told[TOLD_INDEX] = get_i64(buf, at + fmt.MESSAGE_QUEUE_INDEX_AT)
    tag = world.settings.store_tag
    row: int = row_of_first_put(world.queues, buf, found, due_ms, offset, tag)
    return row


@inlined
def _frame_delete(place: Place, i: int, at: int, template: Template, now_ms: int) -> None:
    """Frame the delete of the timer that was told of as message `i` of the stage."""
    due_ms, offset = place.told[TOLD_DUE_MS], place.told[TOLD_OFFSET]
    put_id(place.key, 0, due_ms, offset, place.world.settings.store_tag)
    frame_new(place.stage, i, at, template, place.body, place.key, due_ms, now_ms)
    place.stage.born_ms[i] = place.told[SPAN_BORN_MS]
    place.stage.body_bytes[i] = place.found.body_bytes


@inlined
def _append_staged(place: Place, count: int, now_ms: int, soonest_ms: int) -> int:
    """Cancel the timer that was told of, and append the `count` messages that are staged for that.

    They are noticed, the first of them due at `soonest_ms`. CANCELLED_NOW, CANCELLED_BEFORE, or
    NOT_JUDGED; only with the first was anything done.
    """
    world, log = place.world, place.world.commitlog
    due_ms, offset = place.told[TOLD_DUE_MS], place.told[TOLD_OFFSET]
    index, verdict, before = place.told[TOLD_INDEX], NOT_JUDGED, act_as(CANCEL)
    lock_acquire(world.fire_lock)
    if cancelled_contains(world.cancelled, IDENTITY_OURS, offset):
        verdict = CANCELLED_BEFORE
    elif is_ahead(world, due_ms, index) and cancelled_has_room(world.cancelled):
        cancelled_add(world.cancelled, IDENTITY_OURS, offset)
        if append(log, world.queues, world.append_lock, place.stage, count, now_ms, True) == count:
            verdict = CANCELLED_NOW
        else:
            cancelled_remove(world.cancelled, IDENTITY_OURS, offset)
    lock_release(world.fire_lock)
    act_as(before)
    if verdict == CANCELLED_NOW:
        eventfd = world.enqueue_get.thread.eventfd
        wake_for(world.queues, world.enqueue_get, soonest_ms, eventfd, place.clock)
    return verdict


def _get(address: int, digits: int) -> int:
    """Read a timer's message into `found`, and tell its parts: PENDING, and what is beside it.

    NOT_JUDGED: go the long way.
    """
    place = _place_at(address)
    world = place.world
    if not _read_id(place, view_bytes(digits, fmt.KEY_DIGITS)):
        return NOT_JUDGED
    due_ms, offset = place.told[TOLD_DUE_MS], place.told[TOLD_OFFSET]
    buf = segment_at(world.commitlog, offset)
    row = _find_first_put(place, buf)
    if row < 0:
        return NOT_JUDGED
    place.told[TOLD_ROW] = row
    at = offset % world.commitlog.segment_bytes
    note_parts(buf, at, place.found, row, place.told, 0)
    rolled = may_have_rolled(world.settings, due_ms, place.told[SPAN_BORN_MS])
    index, verdict = place.told[TOLD_INDEX], NOT_JUDGED
    lock_acquire(world.fire_lock)
    if is_ahead(world, due_ms, index):
        verdict = PENDING_ROLLED if rolled else PENDING
        if cancelled_contains(world.cancelled, IDENTITY_OURS, offset):
            verdict = CANCELLED
    lock_release(world.fire_lock)
    return verdict


def _cancel(address: int, delete: int, digits: int, now_ms: int) -> int:
    """Cancel a timer, append its delete, wake who must see it: CANCELLED_NOW, CANCELLED_BEFORE.

    NOT_JUDGED: nothing done, go the long way; below: see OTHER_TOPIC.
    """
    place, template = _place_at(address), _template_at(delete)
    if not _read_id(place, view_bytes(digits, fmt.KEY_DIGITS)):
        return NOT_JUDGED
    buf = segment_at(place.world.commitlog, place.told[TOLD_OFFSET])
    row = _find_first_put(place, buf)
    if row < 0:
        return NOT_JUDGED
    if template.pending_row != row:
        return OTHER_TOPIC - row
    _frame_delete(place, 0, 0, template, now_ms)
    return _append_staged(place, 1, now_ms, now_ms + NO_HURRY_MS)


def _reschedule(
    address: int,
    timer: int,
    delete: int,
    new_due_ms: int,
    body: int,
    body_bytes: int,
    extra: int,
    extra_bytes: int,
    tags_code: int,
    now_ms: int,
) -> int:
    """Append a timer in the place of the one that `_get` found, with that one's delete.

    Both are noticed. `body`: the address of the new one's, 0 for that of the old one; `extra`: its
    properties without the last one's end. Return the new one's offset; NOT_JUDGED, which is 0:
    nothing done, go the long way.
    """
    place = _place_at(address)
    world, found, stage = place.world, place.found, place.stage
    if body == 0:
        old = segment_at(world.commitlog, place.told[TOLD_OFFSET])
        if len(old) == 0:
            return NOT_JUDGED
        body, body_bytes = old.ctypes.data + found.body_at, found.body_bytes
    data, properties = view_bytes(body, body_bytes), view_bytes(extra, extra_bytes)
    template = _template_at(timer)
    size = frame_new(stage, 0, 0, template, data, properties, new_due_ms, now_ms)
    stage.tags_code[0] = tags_code
    _frame_delete(place, 1, size, _template_at(delete), now_ms)
    verdict = _append_staged(place, 2, now_ms, new_due_ms)
    return stage.offset[0] if verdict == CANCELLED_NOW else NOT_JUDGED


for _each in (_get, _cancel, _reschedule):
    entry_ahead(_each)


class Kernels:
    """The kernels on one timer, for Python; `digits`: of an id, KEY_DIGITS bytes.

    Their caller is inside `commitlog.reading()`.
    """

    def __init__(self) -> None:
        """Load them."""
        self._get, self._cancel = entry_point(_get), entry_point(_cancel)
        self._reschedule = entry_point(_reschedule)

    def get(self, place: Place, digits: bytes) -> int:
        """Tell the parts of a timer's message: PENDING, PENDING_ROLLED, CANCELLED or NOT_JUDGED."""
        return self._get(_address(place), address_of(digits))

    def cancel(self, place: Place, delete: Template, digits: bytes, now_ms: int) -> int:
        """Cancel a timer that lies ahead: CANCELLED_NOW, CANCELLED_BEFORE, NOT_JUDGED, or less.

        Less: OTHER_TOPIC − the row of the topic whose template it takes.
        """
        return self._cancel(_address(place), _address(delete), address_of(digits), now_ms)

    def reschedule(
        self,
        place: Place,
        templates: tuple[Template, Template],
        new_due_ms: int,
        body: bytes | None,
        extra: bytes,
        tags_code: int,
        now_ms: int,
    ) -> int:
        """Move the timer that `get` found; return its new offset, or NOT_JUDGED.

        `body`: the new one; None: as it was.
        """
        timer, delete = map(_address, templates)
        return self._reschedule(
            _address(place),
            timer,
            delete,
            new_due_ms,
            0 if body is None else address_of(body),
            0 if body is None else len(body),
            address_of(extra),
            len(extra) - 1,
            tags_code,
            now_ms,
        )


def _address(record: Any) -> int:
    return record.block_address
