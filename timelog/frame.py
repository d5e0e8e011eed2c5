"""Writing messages: kernels that frame new messages or copies of stored ones into a stage.

A framed message lacks only what its place decides (see `append.py`). A new message is made from a
*template*: the fixed bytes of one topic with one tag. A copy, fired or rolled, takes the source's
header, body and properties, leaves out those that no longer hold, and adds its own. What waits for
a time that was asked for goes to the timer topic, what waits in a delay level to that of levels.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.timelog.append import (
    BATCH_BYTES,
    NOT_TOLD,
    STAGE_COUNT_MAX,
    Stage,
)
from timerstore.timelog.format import (
    BODY_CRC_MASK,
    CRC_PROPERTY_BYTES,
    LEVEL_TOPIC,
    MESSAGE_BODY_BYTES_AT,
    MESSAGE_BODY_CRC_AT,
    MESSAGE_BORN_AT,
    MESSAGE_HEADER,
    MESSAGE_HEADER_BYTES,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_AT,
    MESSAGE_MAGIC_LONG_TOPIC,
    MESSAGE_QUEUE_ID_AT,
    MESSAGE_SIZE_AT,
    OUR_HOST,
    PROPERTY_CRC,
    PROPERTY_DELAY_MS,
    PROPERTY_DELAY_SEC,
    PROPERTY_DELIVER,
    PROPERTY_DEQUEUED,
    PROPERTY_DUE,
    PROPERTY_ENQUEUED,
    PROPERTY_KEYS,
    PROPERTY_LEVEL,
    PROPERTY_ORIGIN,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_ROLL_TIMES,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    TIMER_TOPIC,
    VALUE_END,
)
from timerstore.timelog.jit.crc import crc32
from timerstore.timelog.jit.intrinsics import (
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
from timerstore.timelog.jit.kernel import inlined, inlined_always
from timerstore.timelog.jit.record import Bytes, Words, record
from timerstore.timelog.message import (
    AT,
    BODY_AT,
    BODY_BYTES,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    ROLL_TIMES,
    USUAL_END,
    USUAL_KEPT_BYTES,
    find_byte,
    name_ends,
)
from timerstore.timelog.text import (
    OFFSET_DIGITS,
    java_hash_of,
    put_decimal,
    put_decimal_13,
    put_decimal_20,
    put_hex_8,
    put_hex_12,
)

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
_CRC_PROPERTY: Final = PROPERTY_CRC + b"\x01" + b"0" * 10 + b"\x02"
_CRC_NAME = _padded(_CRC_PROPERTY)
_ENQUEUED_NAME = _padded(PROPERTY_ENQUEUED + b"\x01")
_DEQUEUED_NAME = _padded(PROPERTY_DEQUEUED + b"\x01")
_DUE_NAME = _padded(PROPERTY_DUE + b"\x01")
_DELIVER_NAME = _padded(PROPERTY_DELIVER + b"\x01")
_ROLL_NAME = _padded(PROPERTY_ROLL_TIMES + b"\x01")
_QUEUED_BYTES: Final = len(PROPERTY_ENQUEUED) + 1
_DUE_BYTES: Final = len(PROPERTY_DUE) + 1
_DELIVER_BYTES: Final = len(PROPERTY_DELIVER) + 1
_ROLL_BYTES: Final = len(PROPERTY_ROLL_TIMES) + 1
_ORIGIN_BYTES: Final = len(PROPERTY_ORIGIN) + 1
_LAST = _padded(PROPERTY_ORIGIN + b"\x01" + b"0" * OFFSET_DIGITS + b"\x02" + _CRC_PROPERTY)
_LAST_BYTES: Final = _ORIGIN_BYTES + OFFSET_DIGITS + 1 + CRC_PROPERTY_BYTES
"""The last two properties of every copy."""
_TIMER_TOPIC = np.frombuffer(TIMER_TOPIC, np.uint8).copy()

_CRC = as_word(PROPERTY_CRC)
_REAL = as_word(PROPERTY_REAL_TOPIC)
_REAL_QUEUE = as_word(PROPERTY_REAL_QUEUE)
_ORIGIN = as_word(PROPERTY_ORIGIN)
_ROLL = as_word(PROPERTY_ROLL_TIMES)
_ENQUEUED = as_word(PROPERTY_ENQUEUED)
_DEQUEUED = as_word(PROPERTY_DEQUEUED)
_CRC_END = as_word((PROPERTY_CRC + b"\x01")[-8:])
_REAL_END = as_word((PROPERTY_REAL_TOPIC + b"\x01")[-8:])
_REAL_QUEUE_END = as_word((PROPERTY_REAL_QUEUE + b"\x01")[-8:])
_ORIGIN_END = as_word((PROPERTY_ORIGIN + b"\x01")[-8:])
_ROLL_2 = as_word(PROPERTY_ROLL_TIMES[8:])
_ROLL_END = as_word((PROPERTY_ROLL_TIMES + b"\x01")[-8:])
_QUEUED_2 = as_word(PROPERTY_ENQUEUED[8:])
_QUEUED_END = as_word((PROPERTY_ENQUEUED + b"\x01")[-8:])
assert PROPERTY_ENQUEUED[8:] == PROPERTY_DEQUEUED[8:]
_LEVEL = as_word(PROPERTY_LEVEL + b"\x01")
_MASK_6 = (1 << 48) - 1
_DUE = as_word(PROPERTY_DUE)
_DUE_END = as_word((PROPERTY_DUE + b"\x01")[-8:])
_DELIVER = as_word(PROPERTY_DELIVER)  # the same eight bytes begin the three ways to ask for a delay
_DELIVER_2 = as_word(PROPERTY_DELIVER[8:])
_DELIVER_END = as_word((PROPERTY_DELIVER + b"\x01")[-8:])
_DELAY_SEC_END = as_word((PROPERTY_DELAY_SEC + b"\x01")[-8:])
_DELAY_MS_END = as_word((PROPERTY_DELAY_MS + b"\x01")[-8:])
assert PROPERTY_DELAY_SEC[:8] == PROPERTY_DELAY_MS[:8] == PROPERTY_DELIVER[:8]

# Words of a template.
TEMPLATE_KEY: Final = 0  # how far behind the due time's digits those of the key stand
TEMPLATE_PENDING_ROW: Final = 1
TEMPLATE_TAGS_CODE: Final = 2
TEMPLATE_CHANGE: Final = 3  # of the pending count
TEMPLATE_ROW: Final = 4  # the queue
TEMPLATE_LEVEL_MS: Final = 5  # of a delay level's: its delay; 0 for a timer
TEMPLATE_HASH: Final = 6  # Java's of the real topic
TEMPLATE_IS_TIMER: Final = 7  # 1: a timer that enqueue-get need not read; 0: a delete, a level's
TEMPLATE_DIGITS: Final = 8  # where the due time's digits stand in `tail`
TEMPLATE_AFTER_BYTES: Final = 9  # what stands behind them, without the CRC


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
    words: Words  # int64[10], see the constants above


def new_template(
    real_topic: bytes,
    *,
    pending_row: int,
    change: int,
    tags_code: int,
    real_queue: int = 0,
    properties: bytes = b"",
    extra: bytes = PROPERTY_KEYS + b"\x01",
    level: int = 0,
    level_ms: int = 0,
    level_row: int = 0,
) -> Template:
    """Return the template of messages for the timer topic that end up in `real_topic`.

    `properties`: more of them, already as `name 0x01 value 0x02`. `extra`: the beginning of the
    property that each message has a value of its own for. With a `level`, which counts from 1, they
    go to the row of its queue.
    """
    head = np.zeros(1, MESSAGE_HEADER)
    head["magic"] = MESSAGE_MAGIC
    head["born_host"] = np.void(OUR_HOST)
    head["store_host"] = np.void(OUR_HOST)
    topic, first = (LEVEL_TOPIC, PROPERTY_LEVEL) if level else (TIMER_TOPIC, PROPERTY_DUE)
    head["queue_id"] = max(0, level - 1)
    before = bytes([len(topic)]) + topic + b"\0\0" + first + b"\x01"
    key = b"\x02" + PROPERTY_UNIQUE_KEY + b"\x01"
    after = key + b"0" * 32 + b"\x02"
    after += PROPERTY_REAL_QUEUE + b"\x01" + str(real_queue).encode() + b"\x02"
    after += PROPERTY_REAL_TOPIC + b"\x01" + real_topic + b"\x02" + properties
    is_timer = change > 0 and level == 0
    code = java_hash_of(real_topic.decode("utf-8", "replace"))
    words = [len(key), pending_row, tags_code, change, level_row, level_ms, code, is_timer]
    words += [len(before), len(after)]
    return Template(
        _padded(head.tobytes()),
        _padded(before + b"0" * 13 + after + _CRC_PROPERTY),
        np.frombuffer(extra, np.uint8).copy(),
        np.array(words, np.int64),
    )


@inlined
def _copy_padded(buf: Any, at: int, source: Any) -> None:
    """Copy all of a template's bytes, with the zeros behind them, which are overwritten later."""
    for i in range(0, len(source), 64):
        copy_64(buf, at + i, source, i)


def encode_property(name: bytes, value: bytes) -> bytes:
    """Return one property as it stands in a message."""
    return name + b"\x01" + value + b"\x02"


def encode_tag(tag: str) -> bytes:
    """Return a tag as a property."""
    return encode_property(PROPERTY_TAGS, tag.encode())


@inlined
def _put_ms(buf: Any, at: int, value: int) -> int:
    """Write a time in ms: 13 digits until the year 2286, more behind it."""
    if value >= _DIGITS_13_FROM and value < _DIGITS_13_BELOW:
        put_decimal_13(buf, at, value)
        return at + 13
    return at + put_decimal(buf, at, value)


@inlined
def _put_ms_property(buf: Any, at: int, name: Any, name_bytes: int, value: int) -> int:
    """Write a property that holds a time; return where it ends."""
    copy_lines(buf, at, name, 0, name_bytes)
    end = _put_ms(buf, at + name_bytes, value)
    put_u8(buf, end, VALUE_END)
    return end + 1


@inlined
def new_message_bytes_max(template: Template, body_bytes: int, extra_bytes: int) -> int:
    """Return at least as much room as `frame_new` will take."""
    fixed = MESSAGE_HEADER_BYTES + len(template.tail) + 18
    return fixed + len(template.extra) + 1 + body_bytes + extra_bytes


@inlined_always
def frame_new(
    stage: Stage,
    i: int,
    at: int,
    template: Template,
    body: Any,
    extra: Any,
    due_ms: int,
    now_ms: int,
    tag: int,
) -> int:
    """Frame message `i` of a stage at position `at`; return its size. O(size).

    `body`, `extra`: uint8 views; an empty `extra` stands for none. `tag`: the store's tag, uint32.
    For a delay level's template `due_ms` is the level, and it is due that level after `now_ms`.
    Of a delete `born_ms` and `body_bytes` of the stage are left to the caller: its target's.
    """
    buf = stage.buffer
    _copy_padded(buf, at, template.head)
    body_bytes = len(body)
    body_at = at + MESSAGE_HEADER_BYTES
    copy_lines(buf, body_at, body, 0, body_bytes)
    tail_at = body_at + body_bytes
    _copy_padded(buf, tail_at, template.tail)
    digits_at = tail_at + template.words[TEMPLATE_DIGITS]
    after_bytes = template.words[TEMPLATE_AFTER_BYTES]
    end = digits_at + 13
    crc_is_there = len(extra) == 0
    if due_ms >= _DIGITS_13_FROM and due_ms < _DIGITS_13_BELOW:
        put_decimal_13(buf, digits_at, due_ms)
    else:  # a delay level, or a time of another length
        end = _put_ms(buf, digits_at, due_ms)
        copy_bytes(buf, end, template.tail, template.words[TEMPLATE_DIGITS] + 13, after_bytes)
        crc_is_there = False
    key_at = end + template.words[TEMPLATE_KEY]
    tags_code = template.words[TEMPLATE_TAGS_CODE]
    if template.words[TEMPLATE_LEVEL_MS] > 0:
        due_ms = now_ms + template.words[TEMPLATE_LEVEL_MS]
        tags_code = due_ms
    put_hex_12(buf, key_at, due_ms)
    put_hex_8(buf, key_at + 24, tag)
    end += after_bytes
    if len(extra) > 0:
        if len(template.extra) > 0:
            copy_bytes(buf, end, template.extra, 0, len(template.extra))
            end += len(template.extra)
        copy_bytes(buf, end, extra, 0, len(extra))
        put_u8(buf, end + len(extra), 2)
        end += len(extra) + 1
    if not crc_is_there:
        copy_lines(buf, end, _CRC_NAME, 0, CRC_PROPERTY_BYTES)
    end += CRC_PROPERTY_BYTES
    size = end - at
    properties_at = tail_at + 1 + len(_TIMER_TOPIC)
    put_i16(buf, properties_at, end - properties_at - 2)
    put_i32(buf, at + MESSAGE_SIZE_AT, size)
    put_i32(buf, at + MESSAGE_BODY_BYTES_AT, body_bytes)
    put_i32(buf, at + MESSAGE_BODY_CRC_AT, crc32(buf, body_at, body_bytes) & BODY_CRC_MASK)
    put_i64(buf, at + MESSAGE_BORN_AT, now_ms)
    stage.size[i] = size
    stage.row[i] = template.words[TEMPLATE_ROW]
    stage.tags_code[i] = tags_code
    stage.key_at[i] = key_at + 12 - at
    stage.pending_row[i] = template.words[TEMPLATE_PENDING_ROW]
    stage.pending_change[i] = template.words[TEMPLATE_CHANGE]
    stage.counted_ms[i] = due_ms
    stage.born_ms[i] = now_ms
    stage.body_bytes[i] = body_bytes
    stage.due_ms[i] = due_ms if template.words[TEMPLATE_IS_TIMER] != 0 else NOT_TOLD
    stage.hash[i] = template.words[TEMPLATE_HASH]
    return size


@inlined
def frame_batch(
    stage: Stage,
    template: Template,
    body_address: Any,
    body_bytes: Any,
    extra_address: Any,
    extra_bytes: Any,
    due_ms: Any,
    start: int,
    now_ms: int,
    tag: int,
) -> int:
    """Frame messages `start`… until the stage is full; return how many. O(bytes).

    `body_address`, `body_bytes`, `due_ms`: int64[n]; the extras' arrays have length n or 0.
    """
    at, count = 0, 0
    none = view_bytes(0, 0)
    while start + count < len(due_ms) and count < STAGE_COUNT_MAX:
        k = start + count
        if k + _BODIES_AHEAD < len(due_ms):  # objects of their own, anywhere in memory
            ahead = view_bytes(body_address[k + _BODIES_AHEAD], 128)
            prefetch(ahead, 0)
            prefetch(ahead, 64)
        body = view_bytes(body_address[k], body_bytes[k])
        extra = none
        if len(extra_bytes) > 0:
            extra = view_bytes(extra_address[k], extra_bytes[k])
        if at > 0 and at + new_message_bytes_max(template, len(body), len(extra)) > BATCH_BYTES:
            break
        at += frame_new(stage, count, at, template, body, extra, due_ms[k], now_ms, tag)
        count += 1
    return count


COPY_EXTRA_BYTES: Final = 192
"""What a copy may be larger than its source, beside the topic: the added properties."""


@inlined
def _asks_for_delay(buf: Any, start: int, stop: int, first: int) -> bool:
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
def _is_dropped(buf: Any, start: int, stop: int, kind: int) -> bool:
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
    buf: Any,
    at: int,
    source: Any,
    found: Words,
    kind: int,
    topic: Any,
    topic_at: int,
    topic_bytes: int,
    queue_id: int,
    origin: int,
    enqueued_ms: int,
    now_ms: int,
) -> int:
    """Frame a copy of a stored message at `at`; return its size, −1 where properties overflow.

    `source`, `found`: the message's segment, and what `read_message` found. `topic`: a buffer that
    holds the destination's name. Room for SIZE + topic + COPY_EXTRA_BYTES is needed. O(size).

    Out of a delay level, `enqueued_ms` is the due time; `now_ms` is the same where that must be
    said in a broker's way as well, else −1.
    """
    fixed = found[BODY_AT] + found[BODY_BYTES] - found[AT]
    copy_lines(buf, at, source, found[AT], fixed)
    end = at + fixed
    magic = MESSAGE_MAGIC
    if topic_bytes > 127:
        magic = MESSAGE_MAGIC_LONG_TOPIC
        put_i16(buf, end, topic_bytes)
        end += 2
    else:
        put_u8(buf, end, topic_bytes)
        end += 1
    copy_lines(buf, end, topic, topic_at, topic_bytes)
    properties_at = end + topic_bytes
    end = properties_at + 2

    # Copy the properties in runs, leaving out those that no longer hold.
    start = found[PROPERTIES_AT]
    run = start
    last = start + found[PROPERTIES_BYTES]
    if found[USUAL_END] >= 0 and kind != DELIVERED:
        start = min(last, found[USUAL_END])
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
        end = _put_ms_property(buf, end, _ENQUEUED_NAME, _QUEUED_BYTES, enqueued_ms)
        end = _put_ms_property(buf, end, _DEQUEUED_NAME, _QUEUED_BYTES, now_ms)
    elif kind == DELIVERED:
        end = _put_ms_property(buf, end, _DUE_NAME, _DUE_BYTES, enqueued_ms)
        if now_ms >= 0:
            end = _put_ms_property(buf, end, _DELIVER_NAME, _DELIVER_BYTES, now_ms)
    else:
        copy_lines(buf, end, _ROLL_NAME, 0, _ROLL_BYTES)
        end += _ROLL_BYTES
        end += put_decimal(buf, end, max(0, found[ROLL_TIMES]) + 1)
        put_u8(buf, end, VALUE_END)
        end += 1
    copy_lines(buf, end, _LAST, 0, _LAST_BYTES)
    put_decimal_20(buf, end + _ORIGIN_BYTES, origin)
    end += _LAST_BYTES

    size = end - at
    properties_bytes = end - properties_at - 2
    if properties_bytes > 32767:
        return -1
    put_i16(buf, properties_at, properties_bytes)
    put_i32(buf, at + MESSAGE_SIZE_AT, size)
    put_i32(buf, at + MESSAGE_MAGIC_AT, magic)
    put_i32(buf, at + MESSAGE_QUEUE_ID_AT, queue_id)
    return size
