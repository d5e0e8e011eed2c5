"""A call on one timer by its id, `get`, `cancel` or `reschedule`, in a kernel or two.

A caller with many ids has arrays; one with a single id would pay for making them. So these kernels
take only integers, and read the id where Python has it. They go without the GIL: they may wait long
for fire.

Each passes the store's gate by itself, and asks whether the store is open, as a call does that has
passed it in Python. There it takes as long as the kernel. What `get` hands to Python is a copy,
which is there when the store is closed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.jit.intrinsics import copy_bytes, get_i64, put_u8, view_bytes
from timerstore.jit.kernel import caller_of, inlined, kernel_ahead
from timerstore.jit.locks import Gate, gate_enter, gate_leave, lock_acquire, lock_release
from timerstore.jit.numpylayout import TEXT_DATA_AT
from timerstore.jit.objects import ascii_at, bytes_at, object_at
from timerstore.jit.record import Bytes, Words, act_as, observe, record, record_at
from timerstore.jit.system import clock_ms
from timerstore.services.calls.appending import DELETE_BODY
from timerstore.services.calls.cancel import CANCELLED_BEFORE, CANCELLED_NOW, NOT_JUDGED, is_ahead
from timerstore.services.calls.first_puts import row_of_first_put
from timerstore.services.looking.read_units import (
    SPAN_BODY,
    SPAN_BORN_MS,
    SPAN_COLUMNS,
    SPAN_KEY,
    SPAN_PROPERTIES_END,
    note_parts,
)
from timerstore.services.world.state import CANCEL
from timerstore.services.world.world import NO_HURRY_MS, World, wake_for
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import id_is, put_id
from timerstore.timelog.bytes.limits import content_bytes_max
from timerstore.timelog.bytes.message import (
    GOOD,
    IDENTITY_OURS,
    MessageParts,
    is_plain,
    java_hash,
    read_message,
)
from timerstore.timelog.bytes.text import get_hex_12
from timerstore.timelog.files.segmenttable import segment_at
from timerstore.timelog.writing.append import Stage, append, new_stage
from timerstore.timelog.writing.frame import NewSays, Template, frame_new
from timerstore.wheel.cancelled import (
    cancelled_add,
    cancelled_contains,
    cancelled_has_room,
    cancelled_remove,
)
from timerstore.wheel.timerwheel import may_have_rolled

# What `get` says: NOT_JUDGED, or one of these.
ID_CANCELLED: Final = -1  # and still ahead
ID_PENDING: Final = 1
ID_PENDING_ROLLED: Final = 2  # a later copy may be the one that waits
# What `cancel` says: NOT_JUDGED, CANCELLED_NOW, CANCELLED_BEFORE, or one of these.
ID_PASSED: Final = 3  # cancelled before, and its time has passed
ID_OTHER_TOPIC: Final = -2
"""And less: −2 − row, if the templates are of another topic."""
NOT_PLAIN: Final = -1
"""Of `reschedule`: Python has to say what describes the new timer."""
_FOUND: Final = 1
_NOT_FOUND: Final = -1

# What is told of a timer, behind the parts of its message.
ID_DUE_MS: Final = SPAN_COLUMNS
ID_OFFSET: Final = SPAN_COLUMNS + 1
ID_ROW: Final = SPAN_COLUMNS + 2  # of the real topic's queue
ID_INDEX: Final = SPAN_COLUMNS + 3  # of its entry in the timer topic's queue
_ID_WORDS: Final = SPAN_COLUMNS + 4

_REPLACES: Final = fmt.PROPERTY_REPLACES + b"\x01"
_REPLACES_BYTES: Final = len(_REPLACES)
REPLACED_BYTES: Final = _REPLACES_BYTES + fmt.KEY_DIGITS + 1
"""The property that names the timer in whose place another one comes."""
_EXTRA_BYTES_MAX: Final = 1_024
"""What describes a timer that is moved without Python, with that property."""


@record
class Place:
    """What a call on one timer works on; each call has one for itself."""

    world: World
    gate: Words
    stage: Stage  # to append; or the message that was got, from its first byte on
    found: MessageParts
    key: Bytes  # uint8[KEY_DIGITS], scratch
    extra: Bytes  # uint8[_EXTRA_BYTES_MAX], scratch: `_REPLACES`, then what comes behind it
    told: Words  # int64[_ID_WORDS], out
    clock: Words  # int64[8]: scratch of clock_ms and wake_for
    text_kind: int = 0  # the address of `str`
    text_data_at: int = 0  # TEXT_DATA_AT
    bytes_kind: int = 0  # the address of `bytes`
    content_bytes_max: int = 0
    tags_code: int = 0  # of the new timer, if Python says what describes it


@record
class Templates:
    """Those of one topic."""

    timer: Template
    delete: Template


_place_at, _templates_at = record_at(Place), record_at(Templates)


def new_place(world: World, gate: Gate) -> Place:
    """Return what one call at a time works on."""
    extra = np.zeros(_EXTRA_BYTES_MAX, np.uint8)
    extra[:_REPLACES_BYTES] = np.frombuffer(_REPLACES, np.uint8)
    return Place(
        *(world, gate.words, new_stage(2), MessageParts(), np.zeros(fmt.KEY_DIGITS, np.uint8)),
        *(extra, np.zeros(_ID_WORDS, np.int64), np.zeros(8, np.int64)),
        text_kind=object_at(str),
        text_data_at=TEXT_DATA_AT,
        bytes_kind=object_at(bytes),
        content_bytes_max=content_bytes_max(world.commitlog.segment_bytes),
    )


@inlined
def _is_open(place: Place) -> bool:
    """Tell whether a call may go the short way. Inside the gate: so it stays open."""
    return observe(place.world.callers, "short_way_ended") == 0


@inlined
def _read_id(place: Place, id: int) -> bool:
    """Tell due time and offset that an id names; False if it can be no timer's of this store.

    `id`: the address of any object.
    """
    digits = ascii_at(id, place.text_kind, place.text_data_at, fmt.KEY_DIGITS)
    if len(digits) == 0:
        return False
    due_ms, offset = get_hex_12(digits, 0), get_hex_12(digits, 12)
    if not id_is(digits, 0, due_ms, offset, place.world.settings.store_tag):
        return False  # no digits, or lower-case ones
    place.told[ID_DUE_MS] = due_ms
    place.told[ID_OFFSET] = offset
    return offset < fmt.LEVEL_MARK and offset < observe(place.world.commitlog, "end")


@inlined
def _find_first_put(place: Place, buf: Bytes) -> int:
    """Read the message that was told of, in its segment, into `found`; return its topic's row.

    Below 0: go the long way. Born time and index in the queue are told.
    """
    world, found = place.world, place.found
    due_ms, offset = place.told[ID_DUE_MS], place.told[ID_OFFSET]
    at = offset % world.commitlog.segment_bytes
    if len(buf) == 0 or read_message(buf, at, offset, found, True) != GOOD:
        return _NOT_FOUND
    place.told[SPAN_BORN_MS] = get_i64(buf, at + fmt.MESSAGE_BORN_AT)
    place.told[ID_INDEX] = get_i64(buf, at + fmt.MESSAGE_QUEUE_INDEX_AT)
    tag = world.settings.store_tag
    row: int = row_of_first_put(world.queues, buf, found, due_ms, offset, tag)
    return row


@inlined
def _find_of_topic(place: Place, templates: Templates, buf: Bytes) -> int:
    """Read the message that was told of, if its topic has these templates: _FOUND.

    Else what the call says: NOT_JUDGED, or less: see ID_OTHER_TOPIC.
    """
    row = _find_first_put(place, buf)
    if row < 0:
        return NOT_JUDGED
    return _FOUND if row == templates.delete.pending_row else ID_OTHER_TOPIC - row


@inlined
def _frame_delete(place: Place, i: int, at: int, template: Template, now_ms: int) -> None:
    """Frame the delete of the timer that was told of as message `i` of the stage."""
    due_ms, offset = place.told[ID_DUE_MS], place.told[ID_OFFSET]
    put_id(place.key, 0, due_ms, offset, place.world.settings.store_tag)
    frame_new(place.stage, i, at, template, NewSays(DELETE_BODY, place.key, due_ms), now_ms)
    place.stage.born_ms[i] = place.told[SPAN_BORN_MS]
    place.stage.body_bytes[i] = place.found.body_bytes


@inlined
def _append_staged(place: Place, count: int, now_ms: int, soonest_ms: int) -> int:
    """Cancel the timer that was told of, and append the `count` messages that are staged for that.

    They are noticed, the first of them due at `soonest_ms`. CANCELLED_NOW, CANCELLED_BEFORE, or
    NOT_JUDGED; only with the first was anything done.
    """
    world, log = place.world, place.world.commitlog
    due_ms, offset = place.told[ID_DUE_MS], place.told[ID_OFFSET]
    index, verdict, before = place.told[ID_INDEX], NOT_JUDGED, act_as(CANCEL)
    lock_acquire(world.fire_lock)
    if cancelled_contains(world.cancelled, IDENTITY_OURS, offset):
        verdict = CANCELLED_BEFORE
    elif is_ahead(world, due_ms, index, offset) and cancelled_has_room(world.cancelled):
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


@inlined
def _copy_out(place: Place, buf: Bytes, row: int) -> None:
    """Copy the message that was read to the stage, and tell where its parts lie there."""
    found, told = place.found, place.told
    at = found.at
    copy_bytes(place.stage.buffer, 0, buf, at, found.size)
    note_parts(buf, at, found, row, told, 0)
    told[ID_ROW] = row
    for i in range(SPAN_BODY, SPAN_PROPERTIES_END + 1):
        told[i] -= at
    for i in range(SPAN_KEY, SPAN_COLUMNS):  # −1 for none stays below 0
        told[i] -= at


@inlined
def _get_inside(place: Place, id: int) -> int:
    world = place.world
    if not _read_id(place, id):
        return NOT_JUDGED
    due_ms, offset = place.told[ID_DUE_MS], place.told[ID_OFFSET]
    buf = segment_at(world.commitlog, offset)
    row = _find_first_put(place, buf)
    if row < 0 or place.found.size > len(place.stage.buffer):
        return NOT_JUDGED
    _copy_out(place, buf, row)
    rolled = may_have_rolled(world.settings, due_ms, place.told[SPAN_BORN_MS])
    index, verdict = place.told[ID_INDEX], NOT_JUDGED
    lock_acquire(world.fire_lock)
    if is_ahead(world, due_ms, index, offset):
        verdict = ID_PENDING_ROLLED if rolled else ID_PENDING
        if cancelled_contains(world.cancelled, IDENTITY_OURS, offset):
            verdict = ID_CANCELLED
    lock_release(world.fire_lock)
    return verdict


@kernel_ahead
def _get(address: int, id: int) -> int:
    """Read a timer's message into `found`, copy it, tell its parts: ID_PENDING, what is beside it.

    NOT_JUDGED: go the long way.
    """
    place = _place_at(address)
    verdict, word = NOT_JUDGED, gate_enter(place.gate)
    if _is_open(place):
        verdict = _get_inside(place, id)
    gate_leave(place.gate, word)
    return verdict


@inlined
def _cancel_inside(place: Place, templates: Templates, id: int, now_ms: int) -> int:
    if not _read_id(place, id):
        return NOT_JUDGED
    buf = segment_at(place.world.commitlog, place.told[ID_OFFSET])
    said: int = _find_of_topic(place, templates, buf)
    if said != _FOUND:
        return said
    _frame_delete(place, 0, 0, templates.delete, now_ms)
    verdict: int = _append_staged(place, 1, now_ms, now_ms + NO_HURRY_MS)
    if verdict == CANCELLED_BEFORE and place.told[ID_DUE_MS] <= now_ms:
        return ID_PASSED
    return verdict


@kernel_ahead
def _cancel(address: int, templates: int, id: int, now_ms: int) -> int:
    """Cancel a timer, append its delete, wake who must see it: CANCELLED_NOW, what is beside it.

    NOT_JUDGED: nothing done, go the long way; below: see ID_OTHER_TOPIC. `now_ms`: 0 if the kernel
    is to ask the clock.
    """
    place = _place_at(address)
    verdict, word = NOT_JUDGED, gate_enter(place.gate)
    if _is_open(place):
        if now_ms == 0:
            now_ms = clock_ms(place.clock)
        verdict = _cancel_inside(place, _templates_at(templates), id, now_ms)
    gate_leave(place.gate, word)
    return verdict


@inlined
def _described_at(buf: Bytes, found: MessageParts) -> int:
    """Return where key and tag of a message that was read begin, which end at its CRC.

    −1 if it has more of its own: Python looks at that. O(size).
    """
    if found.whole_crc != 1 or not is_plain(buf, found):
        return -1
    at = found.usual_end
    if found.replaces_at < 0:
        return at
    is_first = found.replaces_at == at + _REPLACES_BYTES
    return found.replaces_at + found.replaces_bytes + 1 if is_first else -1


@inlined
def _compose_extra(place: Place, buf: Bytes) -> int:
    """Compose what describes the timer that comes in the place of the one that was read.

    Return its size without the last property's end; −1 if Python has to compose it. O(size).
    """
    found, extra = place.found, place.extra
    at, end = _described_at(buf, found), found.properties_at + found.properties_bytes
    count = end - fmt.CRC_PROPERTY_BYTES - at
    if at < 0 or count < 0 or count > _EXTRA_BYTES_MAX - REPLACED_BYTES:
        return -1
    tag = place.world.settings.store_tag
    put_id(extra, _REPLACES_BYTES, place.told[ID_DUE_MS], place.told[ID_OFFSET], tag)
    put_u8(extra, REPLACED_BYTES - 1, fmt.VALUE_END)
    if count > 0:
        copy_bytes(extra, REPLACED_BYTES, buf, at, count)
    return REPLACED_BYTES + count - 1


@inlined
def _reschedule_inside(
    place: Place,
    templates: Templates,
    id: int,
    due_ms: int,
    body: int,
    extra: int,
    now_ms: int,
) -> int:
    if not _read_id(place, id):
        return NOT_JUDGED
    buf = segment_at(place.world.commitlog, place.told[ID_OFFSET])
    said: int = _find_of_topic(place, templates, buf)
    if said != _FOUND:
        return said
    found, stage = place.found, place.stage
    data = view_bytes(buf.ctypes.data + found.body_at, found.body_bytes)
    if body != 0:
        data = bytes_at(body, place.bytes_kind)
    described, tags_code = view_bytes(0, 0), place.tags_code
    if extra != 0:
        given = bytes_at(extra, place.bytes_kind)
        described = view_bytes(given.ctypes.data, len(given) - 1)
    else:
        count = _compose_extra(place, buf)
        if count < 0:
            return NOT_PLAIN
        described = view_bytes(place.extra.ctypes.data, count)
        tags_code = java_hash(buf, found.tags_at, found.tags_bytes) if found.tags_at >= 0 else 0
    if len(data) + len(described) + 1 - REPLACED_BYTES > place.content_bytes_max:
        return NOT_JUDGED
    says = NewSays(data, described, due_ms)
    size = frame_new(stage, 0, 0, templates.timer, says, now_ms)
    stage.tags_code[0] = tags_code
    _frame_delete(place, 1, size, templates.delete, now_ms)
    done = _append_staged(place, 2, now_ms, due_ms) == CANCELLED_NOW
    return stage.offset[0] if done else NOT_JUDGED


@kernel_ahead
def _reschedule(
    address: int,
    templates: int,
    id: int,
    due_ms: int,
    body: int,
    extra: int,
    now_ms: int,
) -> int:
    """Append a timer in the place of another one, with that one's delete; return its offset.

    Both are noticed. NOT_JUDGED, which is 0: nothing done, go the long way; below: see
    ID_OTHER_TOPIC, NOT_PLAIN. `body`, `extra`: the addresses of bytes, the new one's body and
    properties; 0: as they were.
    """
    place = _place_at(address)
    result, word = NOT_JUDGED, gate_enter(place.gate)
    if _is_open(place) and place.world.callers.puts_paused == 0:
        result = _reschedule_inside(
            place, _templates_at(templates), id, due_ms, body, extra, now_ms
        )
    gate_leave(place.gate, word)
    return result


class Kernels:
    """The kernels on one timer, for Python; `id`: any object.

    Their caller is inside `commitlog.reading()`.
    """

    def __init__(self) -> None:
        self._get, self._cancel = caller_of(_get), caller_of(_cancel)
        self._reschedule = caller_of(_reschedule)

    def get(self, place: Place, id: object) -> int:
        """Tell the parts of a timer's message: ID_PENDING, _ROLLED, ID_CANCELLED or NOT_JUDGED."""
        return self._get(place.block_address, object_at(id))  # type: ignore[attr-defined]

    def cancel(self, place: Place, templates: Templates, id: object, now_ms: int) -> int:
        """Cancel a timer that lies ahead: CANCELLED_NOW, CANCELLED_BEFORE, ID_PASSED, NOT_JUDGED.

        Less: ID_OTHER_TOPIC − the row of the topic whose templates it takes. `now_ms`: 0 for the
        system's clock.
        """
        return self._cancel(
            place.block_address,  # type: ignore[attr-defined]
            templates.block_address,  # type: ignore[attr-defined]
            object_at(id),
            now_ms,
        )

    def reschedule(
        self,
        place: Place,
        templates: Templates,
        id: object,
        due_ms: int,
        body: bytes | None,
        described: tuple[bytes, int] | None,
        now_ms: int,
    ) -> int:
        """Move a timer that lies ahead; return its new offset, NOT_JUDGED, NOT_PLAIN, or less.

        Less: as of `cancel`. `body`: the new one; None: as it was. `described`: the new properties,
        of which the first says whom it replaces, and the tag as a number; None: as they were.
        """
        extra = None
        if described is not None:
            extra, place.tags_code = described
        return self._reschedule(
            place.block_address,  # type: ignore[attr-defined]
            templates.block_address,  # type: ignore[attr-defined]
            object_at(id),
            due_ms,
            0 if body is None else object_at(body),
            0 if extra is None else object_at(extra),
            now_ms,
        )
