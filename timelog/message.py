"""Reading messages: kernels that find the parts of a message in its bytes.

`read_message` checks the structure of one message and finds its properties; what it found is in
an int64 array indexed by the constants below. A message that was read is never trusted: every
size is checked before it is used. Positions are relative to the buffer.
"""

from __future__ import annotations

from typing import Any, Final

from timerstore.timelog.format import (
    BLANK_BYTES,
    BODY_CRC_MASK,
    CRC_PROPERTY_BYTES,
    HOST_V6_EXTRA_BYTES,
    KEY_DIGITS,
    MESSAGE_BODY_BYTES_AT,
    MESSAGE_BODY_CRC_AT,
    MESSAGE_BYTES_MIN,
    MESSAGE_HEADER_BYTES,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_AT,
    MESSAGE_MAGIC_LONG_TOPIC,
    MESSAGE_SIZE_AT,
    MESSAGE_STORE_HOST_AT,
    MESSAGE_STORED_AT,
    MESSAGE_SYSTEM_FLAG_AT,
    NAME_END,
    OUR_HOST,
    PROPERTY_CRC,
    PROPERTY_DELETES,
    PROPERTY_DELIVER,
    PROPERTY_DUE,
    PROPERTY_KEYS,
    PROPERTY_LEVEL,
    PROPERTY_ORIGIN,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REPLACES,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_ROLL_TIMES,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    SYSTEM_FLAG_BORN_V6,
    SYSTEM_FLAG_STORE_V6,
    VALUE_END,
)
from timerstore.timelog.jit.crc import crc32
from timerstore.timelog.jit.intrinsics import (
    as_word,
    get_i16,
    get_i32,
    get_u8,
    get_u16,
    get_u32,
    get_word,
    lowest_bit,
    match_64,
    wrapping_multiply,
)
from timerstore.timelog.jit.kernel import inlined, inlined_always
from timerstore.timelog.jit.record import Words
from timerstore.timelog.text import (
    OFFSET_DIGITS,
    crc_digits_are,
    get_decimal,
    get_decimal_13,
    get_hex,
)

# What was found; −1 where a property is missing.
AT: Final = 0
SIZE: Final = 1
BODY_AT: Final = 2
BODY_BYTES: Final = 3
TOPIC_AT: Final = 4
TOPIC_BYTES: Final = 5
PROPERTIES_AT: Final = 6
PROPERTIES_BYTES: Final = 7
WHOLE_CRC: Final = 8  # 1: the last 20 bytes are a CRC of the whole message
DUE_MS: Final = 9
DELIVER_MS: Final = 10
REAL_TOPIC_AT: Final = 11
REAL_TOPIC_BYTES: Final = 12
REAL_QUEUE: Final = 13
KEY_AT: Final = 14
KEY_BYTES: Final = 15
DELETES_AT: Final = 16
DELETES_BYTES: Final = 17
ROLL_TIMES: Final = 18
ORIGIN: Final = 19  # of our copy alone: the offset of the message that it was made from
TAGS_AT: Final = 20
TAGS_BYTES: Final = 21
KEYS_AT: Final = 22
KEYS_BYTES: Final = 23
LEVEL: Final = 24
REPLACES_AT: Final = 25
REPLACES_BYTES: Final = 26
RETRY_TOPIC_AT: Final = 27
RETRY_TOPIC_BYTES: Final = 28
IDENTITY_HIGH: Final = 29
IDENTITY_LOW: Final = 30
USUAL_END: Final = 31  # behind the four properties that begin as those of ours do; −1: they do not
FOUND_WORDS: Final = 32

# What `read_message` returns.
GOOD: Final = 0
BAD_SIZE: Final = 1
BAD_MAGIC: Final = 2
BAD_PARTS: Final = 3
BAD_CRC: Final = 4
REASONS: Final = (
    "sound",
    "the size is impossible",
    "this is no message",
    "the sizes of body, topic and properties do not add up to the message's",
    "the checksum does not match",
)

# A name is told by its first eight bytes, and by the eight that end in the 0x01 behind it; two of
# more than 15 bytes by the eight between as well. So no other name is taken for it.
_CRC = as_word(PROPERTY_CRC)
_DUE = as_word(PROPERTY_DUE)
_DELIVER = as_word(PROPERTY_DELIVER)
_DELIVER_2 = as_word(PROPERTY_DELIVER[8:])
_DELETES_2 = as_word(PROPERTY_DELETES[8:])
_OUR_HOST = as_word(OUR_HOST)
_REAL = as_word(PROPERTY_REAL_TOPIC)
_REAL_QUEUE = as_word(PROPERTY_REAL_QUEUE)
_KEY = as_word(PROPERTY_UNIQUE_KEY)
_ROLL = as_word(PROPERTY_ROLL_TIMES)
_ORIGIN = as_word(PROPERTY_ORIGIN)
_REPLACES = as_word(PROPERTY_REPLACES)
_RETRY = as_word(PROPERTY_RETRY_TOPIC)
_TAGS = as_word(PROPERTY_TAGS + b"\x01")
_KEYS = as_word(PROPERTY_KEYS + b"\x01")
_LEVEL = as_word(PROPERTY_LEVEL + b"\x01")
_MASK_5 = (1 << 40) - 1
_MASK_6 = (1 << 48) - 1
_CRC_END = as_word((PROPERTY_CRC + b"\x01")[-8:])
_DUE_END = as_word((PROPERTY_DUE + b"\x01")[-8:])
_KEY_END = as_word((PROPERTY_UNIQUE_KEY + b"\x01")[-8:])
_REAL_QUEUE_END = as_word((PROPERTY_REAL_QUEUE + b"\x01")[-8:])
_REAL_END = as_word((PROPERTY_REAL_TOPIC + b"\x01")[-8:])
_DELIVER_END = as_word((PROPERTY_DELIVER + b"\x01")[-8:])
_DELETES_END = as_word((PROPERTY_DELETES + b"\x01")[-8:])
_ORIGIN_END = as_word((PROPERTY_ORIGIN + b"\x01")[-8:])
_ROLL_2 = as_word(PROPERTY_ROLL_TIMES[8:])
_ROLL_END = as_word((PROPERTY_ROLL_TIMES + b"\x01")[-8:])
_REPLACES_END = as_word((PROPERTY_REPLACES + b"\x01")[-8:])
_RETRY_END = as_word((PROPERTY_RETRY_TOPIC + b"\x01")[-8:])
assert PROPERTY_DELIVER[:8] == PROPERTY_DELETES[:8] == b"TIMER_DE"
_ORIGIN_AND_CRC_BYTES: Final = len(PROPERTY_ORIGIN) + 1 + OFFSET_DIGITS + 1 + CRC_PROPERTY_BYTES
"""How the properties of every copy that we make end."""

# How the properties of our own begin: where each starts, and what the four have but for the topic.
_USUAL_KEY_AT: Final = len(PROPERTY_DUE) + 1 + 13 + 1
_USUAL_QUEUE_AT: Final = _USUAL_KEY_AT + len(PROPERTY_UNIQUE_KEY) + 1 + KEY_DIGITS + 1
_USUAL_REAL_AT: Final = _USUAL_QUEUE_AT + len(PROPERTY_REAL_QUEUE) + 1 + 1 + 1
_USUAL_BYTES: Final = _USUAL_REAL_AT + len(PROPERTY_REAL_TOPIC) + 1
assert len(PROPERTY_DUE) == 12 and len(PROPERTY_UNIQUE_KEY) == len(PROPERTY_REAL_QUEUE) == 8
assert 64 < _USUAL_QUEUE_AT < _USUAL_REAL_AT == 80 and len(PROPERTY_REAL_TOPIC) == 10
USUAL_KEPT_BYTES: Final = _USUAL_QUEUE_AT
"""Of these due time and key."""

IDENTITY_OURS: Final = -1
"""IDENTITY_HIGH of a timer that this store made; IDENTITY_LOW is then its first put's offset."""
IDENTITY_HELD: Final = -2
"""In the cancelled set in its place: a delay level's message whose delete unit R has passed."""


@inlined
def find_byte(buf: Any, at: int, end: int, byte: int) -> int:
    """Return the first position in [at, end) that holds `byte`, or `end`. O(distance / 64)."""
    while at < end:
        if at + 64 > len(buf):
            if get_u8(buf, at) == byte:
                return at
            at += 1
        else:
            bits = match_64(buf, at, byte)
            if bits != 0:
                return min(end, at + lowest_bit(bits))
            at += 64
    return end


@inlined
def read_frame(buf: Any, at: int, found: Words) -> int:
    """Check a message's size, magic and parts; fill AT to WHOLE_CRC. O(1)."""
    room = len(buf) - at
    if room < MESSAGE_BYTES_MIN + BLANK_BYTES:
        return BAD_SIZE
    size = get_i32(buf, at + MESSAGE_SIZE_AT)
    magic = get_u32(buf, at + MESSAGE_MAGIC_AT)
    if magic != MESSAGE_MAGIC and magic != MESSAGE_MAGIC_LONG_TOPIC:
        return BAD_MAGIC
    if size < MESSAGE_BYTES_MIN or size > room - BLANK_BYTES:
        return BAD_SIZE
    system_flag = get_i32(buf, at + MESSAGE_SYSTEM_FLAG_AT)
    body_at = at + MESSAGE_HEADER_BYTES
    if system_flag & SYSTEM_FLAG_BORN_V6:
        body_at += HOST_V6_EXTRA_BYTES
    if system_flag & SYSTEM_FLAG_STORE_V6:
        body_at += HOST_V6_EXTRA_BYTES
    end = at + size
    if body_at + 3 > end:
        return BAD_PARTS
    body_bytes = get_i32(buf, body_at - MESSAGE_HEADER_BYTES + MESSAGE_BODY_BYTES_AT)
    topic_at = body_at + body_bytes + 1
    if body_bytes < 0 or topic_at > end:
        return BAD_PARTS
    topic_bytes = get_u8(buf, topic_at - 1)
    if magic == MESSAGE_MAGIC_LONG_TOPIC:
        topic_at += 1
        if topic_at > end:
            return BAD_PARTS
        topic_bytes = get_u16(buf, topic_at - 2)
    properties_at = topic_at + topic_bytes + 2
    if properties_at > end:
        return BAD_PARTS
    properties_bytes = get_i16(buf, properties_at - 2)
    if properties_bytes < 0 or properties_at + properties_bytes != end:
        return BAD_PARTS
    found[AT] = at
    found[SIZE] = size
    found[BODY_AT] = body_at
    found[BODY_BYTES] = body_bytes
    found[TOPIC_AT] = topic_at
    found[TOPIC_BYTES] = topic_bytes
    found[PROPERTIES_AT] = properties_at
    found[PROPERTIES_BYTES] = properties_bytes
    found[WHOLE_CRC] = 0
    if properties_bytes >= CRC_PROPERTY_BYTES and get_word(buf, end - CRC_PROPERTY_BYTES) == _CRC:
        if get_u8(buf, end - 12) == NAME_END and get_u8(buf, end - 1) == VALUE_END:
            found[WHOLE_CRC] = 1
    return GOOD


@inlined
def stored_at(buf: Any, at: int) -> int:
    """Return where a message's stored time stands: an IPv6 born host moves it."""
    if get_i32(buf, at + MESSAGE_SYSTEM_FLAG_AT) & SYSTEM_FLAG_BORN_V6:
        return at + MESSAGE_STORED_AT + HOST_V6_EXTRA_BYTES
    return at + MESSAGE_STORED_AT


@inlined
def is_brokers_copy(buf: Any, found: Words) -> bool:
    """Tell whether a broker copied a framed message from one that we wrote. O(properties).

    A broker takes our checksum for a property like any other, so it stands anywhere but at the end,
    and says nothing of the copy. Nothing that we write has it there.
    """
    start = found[PROPERTIES_AT]
    end = start + found[PROPERTIES_BYTES]
    while start < end:
        stop = find_byte(buf, start, end, VALUE_END)
        if get_word(buf, start) == _CRC and name_ends(buf, start, stop, 8, _CRC_END):
            if start != end - CRC_PROPERTY_BYTES:
                return True
        start = stop + 1
    return False


@inlined
def _has_lost_crc(buf: Any, found: Words) -> bool:
    """Tell whether a framed message that has no CRC of the whole must have one. O(properties).

    All that we write has one. It is ours by what is left of the CRC's name and ends, by the host
    that stored it, or by `TIMER_ORIGIN` in front of the CRC's place: damage leaves one of them.
    What a broker writes has none of these, or is its copy of ours.
    """
    end = found[PROPERTIES_AT] + found[PROPERTIES_BYTES]
    if found[PROPERTIES_BYTES] >= CRC_PROPERTY_BYTES:
        different = get_word(buf, end - CRC_PROPERTY_BYTES) ^ _CRC
        same = 0
        for _ in range(8):
            if different & 0xFF == 0:
                same += 1
            different >>= 8
        if get_u8(buf, end - 12) == NAME_END:
            same += 1
        if get_u8(buf, end - 1) == VALUE_END:
            same += 1
        if same >= 6:  # of 10 bytes that never differ
            return True
    if is_brokers_copy(buf, found):
        return False
    at = end - _ORIGIN_AND_CRC_BYTES
    if at >= found[PROPERTIES_AT] and get_word(buf, at) == _ORIGIN:
        return True
    flag = get_i32(buf, found[AT] + MESSAGE_SYSTEM_FLAG_AT)
    host_at = found[AT] + MESSAGE_STORE_HOST_AT
    if flag & SYSTEM_FLAG_BORN_V6:
        host_at += HOST_V6_EXTRA_BYTES
    return flag & SYSTEM_FLAG_STORE_V6 == 0 and get_word(buf, host_at) == _OUR_HOST


@inlined_always
def check_crc(buf: Any, found: Words) -> bool:
    """Check a framed message's CRC: of the whole, or of a broker's body alone. O(size)."""
    at = found[AT]
    if found[WHOLE_CRC] == 1:
        covered = found[SIZE] - CRC_PROPERTY_BYTES
        return crc_digits_are(buf, at + found[SIZE] - 11, crc32(buf, at, covered) & BODY_CRC_MASK)
    if _has_lost_crc(buf, found):
        return False
    code = crc32(buf, found[BODY_AT], found[BODY_BYTES]) & BODY_CRC_MASK
    return code == get_i32(buf, at + MESSAGE_BODY_CRC_AT)


@inlined
def name_ends(buf: Any, start: int, stop: int, count: int, end: int) -> bool:
    """Tell whether the property in [start, stop) has a name of `count` bytes that ends in `end`.

    `end`: the word of the name's last seven bytes and 0x01. It reads nothing behind `stop`.
    """
    return stop - start > count and get_word(buf, start + count - 7) == end


@inlined
def _begins_as_usual(buf: Any, at: int, end: int) -> bool:
    """Tell whether properties begin as those of every timer that we put.

    That is due time, key, real queue and real topic, the values of the first three of one length.
    """
    if at + _USUAL_BYTES > end or at + 128 > len(buf):
        return False
    if match_64(buf, at, VALUE_END) != 1 << (_USUAL_KEY_AT - 1):
        return False
    ends = 1 << (_USUAL_QUEUE_AT - 65) | 1 << (_USUAL_REAL_AT - 65)
    if match_64(buf, at + 64, VALUE_END) & 0xFFFF != ends:
        return False
    return (
        get_word(buf, at) == _DUE
        and get_word(buf, at + 5) == _DUE_END
        and get_word(buf, at + _USUAL_KEY_AT) == _KEY
        and get_u8(buf, at + _USUAL_KEY_AT + 8) == NAME_END
        and get_word(buf, at + _USUAL_QUEUE_AT) == _REAL_QUEUE
        and get_u8(buf, at + _USUAL_QUEUE_AT + 8) == NAME_END
        and get_word(buf, at + _USUAL_REAL_AT) == _REAL
        and get_word(buf, at + _USUAL_REAL_AT + 3) == _REAL_END
    )


@inlined
def read_properties(buf: Any, found: Words) -> None:
    """Find the properties of a framed message; fill DUE_MS to RETRY_TOPIC_BYTES. O(size)."""
    for i in range(DUE_MS, RETRY_TOPIC_BYTES + 1):
        found[i] = -1
    found[USUAL_END] = -1
    start = found[PROPERTIES_AT]
    end = start + found[PROPERTIES_BYTES]
    if _begins_as_usual(buf, start, end):
        found[DUE_MS] = get_decimal_13(buf, start + 13)
        found[KEY_AT] = start + _USUAL_KEY_AT + 9
        found[KEY_BYTES] = KEY_DIGITS
        found[REAL_QUEUE] = get_decimal(buf, start + _USUAL_QUEUE_AT + 9, 1)
        topic_at = start + _USUAL_BYTES
        found[REAL_TOPIC_AT] = topic_at
        start = find_byte(buf, topic_at, end, VALUE_END) + 1
        found[REAL_TOPIC_BYTES] = start - 1 - topic_at
        found[USUAL_END] = start
    while start < end:
        stop = find_byte(buf, start, end, VALUE_END)
        first = get_word(buf, start)
        if first == _DUE:
            if name_ends(buf, start, stop, 12, _DUE_END):
                found[DUE_MS] = get_decimal(buf, start + 13, stop - start - 13)
        elif first == _KEY:
            if name_ends(buf, start, stop, 8, _KEY_END):
                found[KEY_AT] = start + 9
                found[KEY_BYTES] = stop - start - 9
        elif first == _REAL_QUEUE:
            if name_ends(buf, start, stop, 8, _REAL_QUEUE_END):
                found[REAL_QUEUE] = get_decimal(buf, start + 9, stop - start - 9)
        elif first == _REAL:
            if name_ends(buf, start, stop, 10, _REAL_END):
                found[REAL_TOPIC_AT] = start + 11
                found[REAL_TOPIC_BYTES] = stop - start - 11
        elif first == _DELIVER:
            if name_ends(buf, start, stop, 16, _DELIVER_END):
                if get_word(buf, start + 8) == _DELIVER_2:
                    found[DELIVER_MS] = get_decimal(buf, start + 17, stop - start - 17)
            elif name_ends(buf, start, stop, 17, _DELETES_END):
                if get_word(buf, start + 8) == _DELETES_2:
                    found[DELETES_AT] = start + 18
                    found[DELETES_BYTES] = stop - start - 18
        elif first == _ORIGIN:
            if name_ends(buf, start, stop, 12, _ORIGIN_END):
                if stop + 1 == end - CRC_PROPERTY_BYTES:  # else in a broker's copy of ours
                    skip = start + 13
                    while skip < stop - 18 and get_u8(buf, skip) == 48:
                        skip += 1
                    found[ORIGIN] = get_decimal(buf, skip, stop - skip)
        elif first == _ROLL:
            if name_ends(buf, start, stop, 16, _ROLL_END) and get_word(buf, start + 8) == _ROLL_2:
                found[ROLL_TIMES] = get_decimal(buf, start + 17, stop - start - 17)
        elif first == _REPLACES:
            if name_ends(buf, start, stop, 14, _REPLACES_END):
                found[REPLACES_AT] = start + 15
                found[REPLACES_BYTES] = stop - start - 15
        elif first == _RETRY:
            if name_ends(buf, start, stop, 11, _RETRY_END):
                found[RETRY_TOPIC_AT] = start + 12
                found[RETRY_TOPIC_BYTES] = stop - start - 12
        elif first & _MASK_5 == _TAGS and stop - start >= 5:
            found[TAGS_AT] = start + 5
            found[TAGS_BYTES] = stop - start - 5
        elif first & _MASK_5 == _KEYS and stop - start >= 5:
            found[KEYS_AT] = start + 5
            found[KEYS_BYTES] = stop - start - 5
        elif first & _MASK_6 == _LEVEL:
            found[LEVEL] = get_decimal(buf, start + 6, stop - start - 6)
        start = stop + 1


@inlined
def is_plain(buf: Any, found: Words) -> bool:
    """Tell whether a message that was read has nothing but what every timer that we put has.

    Besides a tag, a key and a CRC: no property of the user's own, none that a copy adds. O(size).
    """
    start = found[USUAL_END]
    if start < 0:
        return False
    end = found[PROPERTIES_AT] + found[PROPERTIES_BYTES]
    while start < end:
        stop = find_byte(buf, start, end, VALUE_END)
        first = get_word(buf, start)
        if first & _MASK_5 == _TAGS or first & _MASK_5 == _KEYS:
            if stop - start < 5:
                return False
        elif first != _CRC or stop + 1 != end or not name_ends(buf, start, stop, 8, _CRC_END):
            return False
        start = stop + 1
    return True


@inlined_always
def read_message(buf: Any, at: int, found: Words, verify: bool) -> int:
    """Read one message at `at` of a segment: GOOD, or what is wrong. O(size).

    `found`: int64[FOUND_WORDS], written. `verify`: check the CRC as well.
    """
    status = read_frame(buf, at, found)
    if status != GOOD:
        return status
    if verify and not check_crc(buf, found):
        return BAD_CRC
    read_properties(buf, found)
    return GOOD


@inlined
def java_hash(buf: Any, at: int, count: int) -> int:
    """Return Java's `String.hashCode` of UTF-8 bytes, as a signed 32-bit number."""
    code: int = java_hash_on(buf, at, count, 0)
    return code


@inlined
def java_hash_on(buf: Any, at: int, count: int, code: int) -> int:
    """Return the hash of a text that goes on with UTF-8 bytes behind what has the hash `code`.

    Java hashes UTF-16 units, so what lies beyond the basic plane counts as two.
    """
    end = at + count
    while at < end:
        byte = get_u8(buf, at)
        more = 0
        if byte >= 0xF0:
            byte, more = byte & 7, 3
        elif byte >= 0xE0:
            byte, more = byte & 15, 2
        elif byte >= 0xC0:
            byte, more = byte & 31, 1
        at += 1
        while more > 0 and at < end:
            byte = (byte << 6) | (get_u8(buf, at) & 63)
            at += 1
            more -= 1
        if byte >= 0x10000:
            byte -= 0x10000
            code = (code * 31 + 0xD800 + (byte >> 10)) & 0xFFFFFFFF
            byte = 0xDC00 + (byte & 0x3FF)
        code = (code * 31 + byte) & 0xFFFFFFFF
    if code >= 0x80000000:
        return code - 0x100000000
    return code


@inlined
def _mix(buf: Any, at: int, count: int, state: int) -> int:
    """Return an FNV-1a hash of bytes, continued from `state`; wraps at 64 bits."""
    for i in range(count):
        state = wrapping_multiply(state ^ get_u8(buf, at + i), 0x100000001B3)
    return state


@inlined
def identify(
    buf: Any, topic_at: int, topic_bytes: int, key_at: int, key_bytes: int, tag: int, found: Words
) -> None:
    """Fill IDENTITY_*: what tells this timer from all others, over rolls and restarts.

    A key that this store (tag: its uint32) made names the first put's offset. Any other timer is
    told by a 128-bit hash of topic and key, for two topics may use the same key.
    """
    if key_bytes == KEY_DIGITS and get_hex(buf, key_at + 24, 8) == tag:
        offset = get_hex(buf, key_at + 12, 12)
        if offset >= 0 and get_hex(buf, key_at, 12) >= 0:
            found[IDENTITY_HIGH] = IDENTITY_OURS
            found[IDENTITY_LOW] = offset
            return
    high = _mix(buf, topic_at, topic_bytes, 0x4BF29CE484222325)
    high = _mix(buf, key_at, key_bytes, high ^ 0x2B)
    low = _mix(buf, key_at, key_bytes, 0x1B873593CC9E2D51)
    low = _mix(buf, topic_at, topic_bytes, low ^ 0x2B)
    if high == IDENTITY_OURS or high == IDENTITY_HELD:
        high = 0
    found[IDENTITY_HIGH] = high
    found[IDENTITY_LOW] = low


@inlined
def identify_timer(buf: Any, found: Words, tag: int) -> None:
    """Fill IDENTITY_* of a pending message that is no delete."""
    topic_at, topic_bytes = found[REAL_TOPIC_AT], max(0, found[REAL_TOPIC_BYTES])
    identify(buf, topic_at, topic_bytes, found[KEY_AT], max(0, found[KEY_BYTES]), tag, found)


@inlined
def identify_target(buf: Any, found: Words, tag: int) -> None:
    """Fill IDENTITY_* of a delete's target: real topic + `+` + unique key, or the key alone."""
    topic_at, topic_bytes = found[REAL_TOPIC_AT], max(0, found[REAL_TOPIC_BYTES])
    at, count = found[DELETES_AT], found[DELETES_BYTES]
    if count > topic_bytes and get_u8(buf, at + topic_bytes) == 0x2B:
        same = True
        for i in range(topic_bytes):
            if get_u8(buf, at + i) != get_u8(buf, topic_at + i):
                same = False
                break
        if same:
            at += topic_bytes + 1
            count -= topic_bytes + 1
    identify(buf, topic_at, topic_bytes, at, count, tag, found)


@inlined
def is_ours(buf: Any, found: Words, tag: int) -> bool:
    """Tell whether this store made a message: its `UNIQ_KEY` ends in the store's tag."""
    return found[KEY_BYTES] == KEY_DIGITS and get_hex(buf, found[KEY_AT] + 24, 8) == tag


@inlined
def exact_due_ms(buf: Any, found: Words, tag: int, precision_ms: int) -> int:
    """Return when a timer may first be handed out; `TIMER_OUT_MS` must have been found.

    Ours say it exactly. A broker rounds down to its precision, and one precision more where the
    time divides evenly; it is due at `TIMER_DELIVER_MS` where that fits, else one precision later.
    """
    out_ms = found[DUE_MS]
    if is_ours(buf, found, tag):
        return out_ms
    deliver_ms = found[DELIVER_MS]
    if deliver_ms >= out_ms and deliver_ms <= out_ms + precision_ms:
        return deliver_ms
    return out_ms + precision_ms
