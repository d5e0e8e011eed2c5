"""Writing messages: kernels that frame new messages or copies of stored ones into a stage.

A framed message lacks only what its place decides (see `append.py`). A new message is made from a
*template*: the fixed bytes of one topic with one tag. A copy, fired or rolled, takes the source's
header, body and properties, leaves out those that no longer hold, and adds its own. What waits for
a time that was asked for goes to the timer topic, what waits in a delay level to that of levels.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from timerstore.jit.crc import crc32
from timerstore.jit.intrinsics import (
    as_word,
    copy_64,
    copy_bytes,
    copy_lines,
    get_u8,
    get_word,
    prefetch,
    put_i16,
    put_i32,
    put_i64,
    put_u8,
    view_bytes,
)
from timerstore.jit.kernel import inlined, inlined_always
from timerstore.jit.objects import Pieces, piece
from timerstore.jit.record import Bytes, Words, record
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import USUAL_KEPT_BYTES, MessageParts, find_byte, name_ends
from timerstore.timelog.bytes.text import (
    OFFSET_DIGITS,
    java_hash_of,
    put_decimal,
    put_decimal_13,
    put_decimal_20,
    put_hex_8,
    put_hex_12,
)
from timerstore.timelog.writing.append import BATCH_BYTES, STAGE_COUNT_MAX, Stage

ROLLED: Final = 0
FIRED: Final = 1
DELIVERED: Final = 2
"""Fired from a delay level."""


def _padded(data: bytes) -> Bytes:
    """Return bytes with zeros behind them, to a multiple of 64."""
    return np.frombuffer(data + b"\0" * (-len(data) % 64), np.uint8).copy()


_BODIES_AHEAD: Final = 8
_DIGITS_13_FROM = 1_000_000_000_000
_DIGITS_13_BELOW = 10_000_000_000_000
_CRC_PROPERTY: Final = fmt.PROPERTY_CRC + b"\x01" + b"0" * 10 + b"\x02"
_CRC_NAME = _padded(_CRC_PROPERTY)
_ENQUEUED_NAME = _padded(fmt.PROPERTY_ENQUEUED + b"\x01")
_DEQUEUED_NAME = _padded(fmt.PROPERTY_DEQUEUED + b"\x01")
_DUE_NAME = _padded(fmt.PROPERTY_DUE + b"\x01")
_DELIVER_NAME = _padded(fmt.PROPERTY_DELIVER + b"\x01")
_ROLL_NAME = _padded(fmt.PROPERTY_ROLL_TIMES + b"\x01")
_QUEUED_BYTES: Final = len(fmt.PROPERTY_ENQUEUED) + 1
_DUE_BYTES: Final = len(fmt.PROPERTY_DUE) + 1
_DELIVER_BYTES: Final = len(fmt.PROPERTY_DELIVER) + 1
_ROLL_BYTES: Final = len(fmt.PROPERTY_ROLL_TIMES) + 1
_ORIGIN_BYTES: Final = len(fmt.PROPERTY_ORIGIN) + 1
_LAST = _padded(fmt.PROPERTY_ORIGIN + b"\x01" + b"0" * OFFSET_DIGITS + b"\x02" + _CRC_PROPERTY)
_LAST_BYTES: Final = _ORIGIN_BYTES + OFFSET_DIGITS + 1 + fmt.CRC_PROPERTY_BYTES
"""The last two properties of every copy."""
_TIMER_TOPIC = np.frombuffer(fmt.TIMER_TOPIC, np.uint8).copy()

_CRC = as_word(fmt.PROPERTY_CRC)
_REAL = as_word(fmt.PROPERTY_REAL_TOPIC)
_REAL_QUEUE = as_word(fmt.PROPERTY_REAL_QUEUE)
_ORIGIN = as_word(fmt.PROPERTY_ORIGIN)
_ROLL = as_word(fmt.PROPERTY_ROLL_TIMES)
_ENQUEUED = as_word(fmt.PROPERTY_ENQUEUED)
_DEQUEUED = as_word(fmt.PROPERTY_DEQUEUED)
_CRC_END = as_word((fmt.PROPERTY_CRC + b"\x01")[-8:])
_REAL_END = as_word((fmt.PROPERTY_REAL_TOPIC + b"\x01")[-8:])
_REAL_QUEUE_END = as_word((fmt.PROPERTY_REAL_QUEUE + b"\x01")[-8:])
_ORIGIN_END = as_word((fmt.PROPERTY_ORIGIN + b"\x01")[-8:])
_ROLL_2 = as_word(fmt.PROPERTY_ROLL_TIMES[8:])
_ROLL_END = as_word((fmt.PROPERTY_ROLL_TIMES + b"\x01")[-8:])
_QUEUED_2 = as_word(fmt.PROPERTY_ENQUEUED[8:])
_QUEUED_END = as_word((fmt.PROPERTY_ENQUEUED + b"\x01")[-8:])
assert fmt.PROPERTY_ENQUEUED[8:] == fmt.PROPERTY_DEQUEUED[8:]
_LEVEL = as_word(fmt.PROPERTY_LEVEL + b"\x01")
_MASK_6 = (1 << 48) - 1
_DUE = as_word(fmt.PROPERTY_DUE)
_DUE_END = as_word((fmt.PROPERTY_DUE + b"\x01")[-8:])
_DELIVER = as_word(
    fmt.PROPERTY_DELIVER
)  # the same eight bytes begin the three ways to ask for a delay
_DELIVER_2 = as_word(fmt.PROPERTY_DELIVER[8:])
_DELIVER_END = as_word((fmt.PROPERTY_DELIVER + b"\x01")[-8:])
_DELAY_SEC_END = as_word((fmt.PROPERTY_DELAY_SEC + b"\x01")[-8:])
_DELAY_MS_END = as_word((fmt.PROPERTY_DELAY_MS + b"\x01")[-8:])
assert fmt.PROPERTY_DELAY_SEC[:8] == fmt.PROPERTY_DELAY_MS[:8] == fmt.PROPERTY_DELIVER[:8]


def encode_property(name: bytes, value: bytes) -> bytes:
    """Return one property as it stands in a message."""
    return name + b"\x01" + value + b"\x02"


def encode_expires(expires_ms: int | None) -> bytes:
    """Return when a message expires as it stands in one, beside its flag; nothing for None."""
    return b"" if expires_ms is None else encode_property(fmt.PROPERTY_EXPIRES, b"%d" % expires_ms)


def encode_tag(tag: str) -> bytes:
    """Return a tag as a property."""
    return encode_property(fmt.PROPERTY_TAGS, tag.encode())


def encode_waiting(first: bytes, due: bytes, key: bytes, real_topic: bytes) -> bytes:
    """Return the properties with which every message begins that waits.

    `first`: the property that says when it is due, `due` its value. Without `key` it has none.
    """
    text = encode_property(first, due)
    if key:
        text += encode_property(fmt.PROPERTY_UNIQUE_KEY, key)
    text += encode_property(fmt.PROPERTY_REAL_QUEUE, b"0")
    return text + encode_property(fmt.PROPERTY_REAL_TOPIC, real_topic)


def encode_head(
    topic: bytes, *, queue_id: int = 0, flag: int = 0, reconsume_times: int = 0
) -> bytes:
    """Return the header of a new message; what depends on its parts `close_message` writes."""
    head = np.zeros(1, fmt.MESSAGE_HEADER)
    head["magic"] = fmt.MESSAGE_MAGIC_LONG_TOPIC if len(topic) > 127 else fmt.MESSAGE_MAGIC
    head["queue_id"], head["flag"], head["reconsume_times"] = queue_id, flag, reconsume_times
    head["born_host"] = head["store_host"] = np.void(fmt.OUR_HOST)
    return head.tobytes()


def encode_tail(topic: bytes, properties: bytes) -> bytes:
    """Return what follows a body, from the topic's length to the CRC, whose digits are zeros.

    The length of the properties is left to `close_message`.
    """
    length = len(topic).to_bytes(2 if len(topic) > 127 else 1, "big")
    return length + topic + b"\0\0" + properties + _CRC_PROPERTY


@record
class Template:
    """The fixed bytes of a new timer message.

    `head` is the header. `tail` is what follows the body: from the topic's length to `TIMER_OUT_MS`
    and its 0x01, 13 digits of the due time, then `UNIQ_KEY` with its 32 places, and what else all
    messages of this template carry; at its end the CRC. A delay level's has `DELAY` in the place of
    `TIMER_OUT_MS`, and the level's digits. Both are followed by zeros to a multiple of 64, so that
    they are copied without a call.
    """

    head: Bytes
    tail: Bytes
    extra: Bytes  # what a message's own value follows: a property's name, 0x01, and a prefix
    key: int
    """How far behind the due time's digits those of the key stand."""
    pending_row: int
    tags_code: int
    change: int
    """Of the pending count."""
    row: int
    """The queue."""
    level_ms: int
    """Of a delay level's: its delay; 0 for a timer."""
    topic_hash: int
    """Java's of the real topic."""
    digits: int
    """Where the due time's digits stand in `tail`."""
    after_bytes: int
    """What stands behind them, without the CRC."""
    tag: int
    """The store's, uint32."""
    keyed: int
    """1 if all of its messages have keys."""


def new_template(
    real_topic: bytes,
    *,
    tag: int,
    pending_row: int,
    change: int,
    tags_code: int,
    properties: bytes = b"",
    extra: bytes = fmt.PROPERTY_KEYS + b"\x01",
    level: int = 0,
    level_ms: int = 0,
    level_row: int = 0,
    flag: int = 0,
) -> Template:
    """Return the template of messages for the timer topic that end up in `real_topic`.

    `tag`: the store's. `properties`: more of them, already as `name 0x01 value 0x02`. `extra`: the
    beginning of the property that each message has a value of its own for. With a `level`, which
    counts from 1, they go to the row of its queue.
    """
    topic, first = (
        (fmt.LEVEL_TOPIC, fmt.PROPERTY_LEVEL) if level else (fmt.TIMER_TOPIC, fmt.PROPERTY_DUE)
    )
    due = b"0" * 13
    waiting = encode_waiting(first, due, b"0" * fmt.KEY_DIGITS, real_topic)
    tail = encode_tail(topic, waiting + properties)
    before = tail.index(first + b"\x01" + due) + len(first) + 1
    key = len(b"\x02" + fmt.PROPERTY_UNIQUE_KEY + b"\x01")
    after = len(tail) - fmt.CRC_PROPERTY_BYTES - before - len(due)
    code = java_hash_of(real_topic.decode("utf-8", "replace"))
    return Template(
        _padded(encode_head(topic, queue_id=max(0, level - 1), flag=flag)),
        _padded(tail),
        np.frombuffer(extra, np.uint8).copy(),
        key=key,
        pending_row=pending_row,
        tags_code=tags_code,
        change=change,
        row=level_row,
        level_ms=level_ms,
        topic_hash=code,
        digits=before,
        after_bytes=after,
        tag=tag,
        keyed=int(fmt.PROPERTY_KEYS + b"\x01" in properties),
    )


@inlined
def _copy_padded(buf: Bytes, at: int, source: Bytes) -> None:
    """Copy all of a template's bytes, with the zeros behind them, which are overwritten later."""
    for i in range(0, len(source), 64):
        copy_64(buf, at + i, source, i)


@inlined
def _put_ms(buf: Bytes, at: int, value: int) -> int:
    """Write a time in ms: 13 digits until the year 2286, more behind it."""
    if value >= _DIGITS_13_FROM and value < _DIGITS_13_BELOW:
        put_decimal_13(buf, at, value)
        return at + 13
    return at + put_decimal(buf, at, value)


@inlined
def _put_ms_property(buf: Bytes, at: int, name: Bytes, name_bytes: int, value: int) -> int:
    """Write a property that holds a time; return where it ends."""
    copy_lines(buf, at, name, 0, name_bytes)
    end = _put_ms(buf, at + name_bytes, value)
    put_u8(buf, end, fmt.VALUE_END)
    return end + 1


@inlined
def new_message_bytes_max(template: Template, body_bytes: int, extra_bytes: int) -> int:
    """Return at least as much room as `frame_new` will take."""
    fixed = fmt.MESSAGE_HEADER_BYTES + len(template.tail) + 18
    return fixed + len(template.extra) + 1 + body_bytes + extra_bytes


@inlined_always
def close_message(
    buf: Bytes, at: int, body_bytes: int, properties_at: int, end: int, born_ms: int
) -> int:
    """Write into a new message at `at` what depends on its parts; return its size. O(body).

    `properties_at`: where the length of its properties stands; `end`: where the message ends.
    """
    put_i16(buf, properties_at, end - properties_at - 2)
    put_i32(buf, at + fmt.MESSAGE_SIZE_AT, end - at)
    put_i32(buf, at + fmt.MESSAGE_BODY_BYTES_AT, body_bytes)
    code = crc32(buf, at + fmt.MESSAGE_HEADER_BYTES, body_bytes) & fmt.BODY_CRC_MASK
    put_i32(buf, at + fmt.MESSAGE_BODY_CRC_AT, code)
    put_i64(buf, at + fmt.MESSAGE_BORN_AT, born_ms)
    return end - at


class NewSays(NamedTuple):
    """What a new message says that its template does not.

    For a delay level's template `due_ms` is the level.
    """

    body: Bytes
    extra: Bytes  # an empty one stands for none
    due_ms: int


@inlined_always
def frame_new(stage: Stage, i: int, at: int, template: Template, says: NewSays, now_ms: int) -> int:
    """Frame message `i` of a stage at position `at`; return its size. O(size).

    A delay level's is due that level after `now_ms`. Of a delete `born_ms` and `body_bytes` of the
    stage are left to the caller: its target's.
    """
    buf, body, extra, due_ms = stage.buffer, says.body, says.extra, says.due_ms
    _copy_padded(buf, at, template.head)
    body_bytes = len(body)
    body_at = at + fmt.MESSAGE_HEADER_BYTES
    copy_lines(buf, body_at, body, 0, body_bytes)
    tail_at = body_at + body_bytes
    _copy_padded(buf, tail_at, template.tail)
    digits_at = tail_at + template.digits
    after_bytes = template.after_bytes
    end = digits_at + 13
    crc_is_there = len(extra) == 0
    if due_ms >= _DIGITS_13_FROM and due_ms < _DIGITS_13_BELOW:
        put_decimal_13(buf, digits_at, due_ms)
    else:  # a delay level, or a time of another length
        end = _put_ms(buf, digits_at, due_ms)
        copy_bytes(buf, end, template.tail, template.digits + 13, after_bytes)
        crc_is_there = False
    key_at = end + template.key
    tags_code = template.tags_code
    if template.level_ms > 0:
        due_ms = now_ms + template.level_ms
        tags_code = due_ms
    put_hex_12(buf, key_at, due_ms)
    put_hex_8(buf, key_at + 24, template.tag)
    end += after_bytes
    if len(extra) > 0:
        if len(template.extra) > 0:
            copy_bytes(buf, end, template.extra, 0, len(template.extra))
            end += len(template.extra)
        copy_bytes(buf, end, extra, 0, len(extra))
        put_u8(buf, end + len(extra), 2)
        end += len(extra) + 1
    if not crc_is_there:
        copy_lines(buf, end, _CRC_NAME, 0, fmt.CRC_PROPERTY_BYTES)
    end += fmt.CRC_PROPERTY_BYTES
    properties_at = tail_at + 1 + len(_TIMER_TOPIC)
    size = close_message(buf, at, body_bytes, properties_at, end, now_ms)
    stage.size[i] = size
    stage.row[i] = template.row
    stage.tags_code[i] = tags_code
    stage.key_at[i] = key_at + 12 - at
    stage.pending_row[i] = template.pending_row
    stage.pending_change[i] = template.change
    stage.counted_ms[i] = due_ms
    stage.born_ms[i] = now_ms
    stage.body_bytes[i] = body_bytes
    stage.due_ms[i] = due_ms
    stage.hash[i] = template.topic_hash
    # Other properties than KEYS are taken for a key: one look too many at a message.
    stage.keyed[i] = 1 if template.change > 0 and template.keyed + len(extra) > 0 else 0
    return size


class Puts(NamedTuple):
    """Messages that are put at once: what each has of its own."""

    bodies: Pieces
    extras: Pieces  # one for each body, or none
    due_ms: Words  # int64[n]


@inlined
def frame_batch(
    stage: Stage,
    template: Template,
    puts: Puts,
    start: int,
    now_ms: int,
) -> int:
    """Frame messages `start`… until the stage is full; return how many. O(bytes)."""
    at, count = 0, 0
    none = view_bytes(0, 0)
    while start + count < len(puts.due_ms) and count < STAGE_COUNT_MAX:
        k = start + count
        if k + _BODIES_AHEAD < len(puts.due_ms):  # objects of their own, anywhere in memory
            ahead = piece(puts.bodies, k + _BODIES_AHEAD)
            prefetch(ahead, 0)
            prefetch(ahead, 64)
        body = piece(puts.bodies, k)
        extra = none
        if len(puts.extras.length) > 0:
            extra = piece(puts.extras, k)
        if at > 0 and at + new_message_bytes_max(template, len(body), len(extra)) > BATCH_BYTES:
            break
        says = NewSays(body, extra, puts.due_ms[k])
        at += frame_new(stage, count, at, template, says, now_ms)
        count += 1
    return count


COPY_EXTRA_BYTES: Final = 192
"""What a copy may be larger than its source, beside the topic: the added properties."""


class Destination(NamedTuple):
    """Where a copy goes: its topic's name, in a buffer that holds it, and the queue."""

    topic: Bytes
    topic_at: int
    topic_bytes: int
    queue_id: int


class CopySays(NamedTuple):
    """What a copy says that its source does not.

    Out of a delay level, `enqueued_ms` is the due time; `now_ms` is the same if that must be said
    in a broker's way as well, else −1.
    """

    kind: int  # FIRED, ROLLED or DELIVERED
    origin: int  # its source's offset
    enqueued_ms: int
    now_ms: int


@inlined
def _asks_for_delay(buf: Bytes, start: int, stop: int, first: int) -> bool:
    """Tell whether a property is `DELAY`, or one that says when a timer is due."""
    if first & _MASK_6 == _LEVEL:
        return stop - start >= 6
    if first == _DUE:
        return name_ends(buf, start, stop, 12, _DUE_END)
    if first != _DELIVER:
        return False
    if name_ends(buf, start, stop, 15, _DELAY_SEC_END):
        return True
    if name_ends(buf, start, stop, 14, _DELAY_MS_END):
        return True
    return name_ends(buf, start, stop, 16, _DELIVER_END) and get_word(buf, start + 8) == _DELIVER_2


@inlined
def _is_dropped(buf: Bytes, start: int, stop: int, kind: int) -> bool:
    """Tell whether a copy of this kind leaves a property out."""
    first = get_word(buf, start)
    if first == _CRC:
        return name_ends(buf, start, stop, 8, _CRC_END)
    if first == _ORIGIN:
        return name_ends(buf, start, stop, 12, _ORIGIN_END)
    if kind != ROLLED:
        if first == _REAL_QUEUE:
            return name_ends(buf, start, stop, 8, _REAL_QUEUE_END)
        if first == _REAL:
            return name_ends(buf, start, stop, 10, _REAL_END)
        if first == _ENQUEUED or first == _DEQUEUED:
            if name_ends(buf, start, stop, 16, _QUEUED_END):
                if get_word(buf, start + 8) == _QUEUED_2:
                    return True
        return kind == DELIVERED and _asks_for_delay(buf, start, stop, first)
    if first != _ROLL or not name_ends(buf, start, stop, 16, _ROLL_END):
        return False
    return get_word(buf, start + 8) == _ROLL_2


@inlined_always
def frame_copy(
    buf: Bytes,
    at: int,
    source: Bytes,
    found: MessageParts,
    to: Destination,
    says: CopySays,
) -> int:
    """Frame a copy of a stored message at `at`; return its size, −1 if properties overflow.

    `source`, `found`: the message's segment, and what `read_message` found. Room for SIZE + topic
    + COPY_EXTRA_BYTES is needed. O(size).
    """
    kind, topic_bytes = says.kind, to.topic_bytes
    fixed = found.body_at + found.body_bytes - found.at
    copy_lines(buf, at, source, found.at, fixed)
    end = at + fixed
    magic = fmt.MESSAGE_MAGIC
    if topic_bytes > 127:
        magic = fmt.MESSAGE_MAGIC_LONG_TOPIC
        put_i16(buf, end, topic_bytes)
        end += 2
    else:
        put_u8(buf, end, topic_bytes)
        end += 1
    copy_lines(buf, end, to.topic, to.topic_at, topic_bytes)
    properties_at = end + topic_bytes
    end = properties_at + 2

    # Copy the properties in runs, leaving out those that no longer hold.
    start = found.properties_at
    run = start
    last = start + found.properties_bytes
    if found.usual_end >= 0 and kind != DELIVERED:
        start = min(last, found.usual_end)
        if kind == FIRED:
            copy_lines(buf, end, source, run, USUAL_KEPT_BYTES)
            end += USUAL_KEPT_BYTES
            run = start
    while start < last:
        stop = find_byte(source, start, last, 2)
        if _is_dropped(source, start, stop, kind):
            if start > run:
                copy_lines(buf, end, source, run, start - run)
                end += start - run
            run = stop + 1
        start = stop + 1
    if run < last:
        copy_lines(buf, end, source, run, last - run)
        end += last - run
        if get_u8(source, last - 1) != 2:  # a broker may leave the last value unclosed
            put_u8(buf, end, 2)
            end += 1

    if kind == FIRED:
        end = _put_ms_property(buf, end, _ENQUEUED_NAME, _QUEUED_BYTES, says.enqueued_ms)
        end = _put_ms_property(buf, end, _DEQUEUED_NAME, _QUEUED_BYTES, says.now_ms)
    elif kind == DELIVERED:
        end = _put_ms_property(buf, end, _DUE_NAME, _DUE_BYTES, says.enqueued_ms)
        if says.now_ms >= 0:
            end = _put_ms_property(buf, end, _DELIVER_NAME, _DELIVER_BYTES, says.now_ms)
    else:
        copy_lines(buf, end, _ROLL_NAME, 0, _ROLL_BYTES)
        end += _ROLL_BYTES
        end += put_decimal(buf, end, max(0, found.roll_times) + 1)
        put_u8(buf, end, fmt.VALUE_END)
        end += 1
    copy_lines(buf, end, _LAST, 0, _LAST_BYTES)
    put_decimal_20(buf, end + _ORIGIN_BYTES, says.origin)
    end += _LAST_BYTES

    size = end - at
    properties_bytes = end - properties_at - 2
    if properties_bytes > 32767:
        return -1
    put_i16(buf, properties_at, properties_bytes)
    put_i32(buf, at + fmt.MESSAGE_SIZE_AT, size)
    put_i32(buf, at + fmt.MESSAGE_MAGIC_AT, magic)
    put_i32(buf, at + fmt.MESSAGE_QUEUE_ID_AT, to.queue_id)
    return size
