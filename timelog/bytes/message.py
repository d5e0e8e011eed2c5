"""Reading messages: kernels that find the parts of a message in its bytes.

`read_message` checks the structure of one message and finds its properties; what it found is in
`MessageParts`. A message that was read is never trusted: every size is checked before it is used.
Positions are relative to the buffer.
"""

from __future__ import annotations

from typing import Final

from timerstore.jit.crc import crc32
from timerstore.jit.intrinsics import (
    as_word,
    bytes_are,
    get_i16,
    get_i32,
    get_i64,
    get_u8,
    get_u16,
    get_u32,
    get_word,
    lowest_bit,
    match_64,
    wrapping_multiply,
)
from timerstore.jit.kernel import inlined, inlined_always
from timerstore.jit.record import Bytes, record
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.text import (
    OFFSET_DIGITS,
    crc_digits_are,
    get_decimal,
    get_decimal_13,
    get_hex_8,
    get_hex_12,
)


@record
class MessageParts:
    """What was found in one message: `at` is where it begins; −1 if a property is missing."""

    at: int = 0
    size: int = 0
    body_at: int = 0
    body_bytes: int = 0
    topic_at: int = 0
    topic_bytes: int = 0
    properties_at: int = 0
    properties_bytes: int = 0
    whole_crc: int = 0  # 1: the last 20 bytes are a CRC of the whole message
    due_ms: int = 0
    deliver_ms: int = 0
    real_topic_at: int = 0
    real_topic_bytes: int = 0
    real_queue: int = 0
    key_at: int = 0
    key_bytes: int = 0
    deletes_at: int = 0
    deletes_bytes: int = 0
    roll_times: int = 0
    origin: int = 0  # only of our copy: the offset of the message from which it was made
    tags_at: int = 0
    tags_bytes: int = 0
    keys_at: int = 0
    keys_bytes: int = 0
    level: int = 0
    replaces_at: int = 0
    replaces_bytes: int = 0
    retry_topic_at: int = 0
    retry_topic_bytes: int = 0
    identity_high: int = 0
    identity_low: int = 0
    usual_end: int = 0
    """Behind the four properties that begin as those of ours do; −1 if they do not."""


# What `read_message` returns.
GOOD: Final = 0
BAD_SIZE: Final = 1
BAD_MAGIC: Final = 2
BAD_PARTS: Final = 3
BAD_CRC: Final = 4
REASONS: Final = (
    "sound",
    "the size is impossible",
    "no message begins at this offset",
    "the sizes of body, topic and properties do not add up to the message's",
    "the checksum does not match",
)

# A name is told by its first eight bytes, and by the eight that end in the 0x01 behind it; two of
# more than 15 bytes by the eight between as well. So no other name is taken for it.
_CRC = as_word(fmt.PROPERTY_CRC)
_DUE = as_word(fmt.PROPERTY_DUE)
_DELIVER = as_word(fmt.PROPERTY_DELIVER)
_DELIVER_2 = as_word(fmt.PROPERTY_DELIVER[8:])
_DELETES_2 = as_word(fmt.PROPERTY_DELETES[8:])
_OUR_HOST = as_word(fmt.OUR_HOST)
_REAL = as_word(fmt.PROPERTY_REAL_TOPIC)
_REAL_QUEUE = as_word(fmt.PROPERTY_REAL_QUEUE)
_KEY = as_word(fmt.PROPERTY_UNIQUE_KEY)
_ROLL = as_word(fmt.PROPERTY_ROLL_TIMES)
_ORIGIN = as_word(fmt.PROPERTY_ORIGIN)
_REPLACES = as_word(fmt.PROPERTY_REPLACES)
_RETRY = as_word(fmt.PROPERTY_RETRY_TOPIC)
_TAGS = as_word(fmt.PROPERTY_TAGS + b"\x01")
_KEYS = as_word(fmt.PROPERTY_KEYS + b"\x01")
_LEVEL = as_word(fmt.PROPERTY_LEVEL + b"\x01")
_SLASH: Final = ord("/")
_DOT: Final = ord(".")
_MASK_5 = (1 << 40) - 1
_MASK_6 = (1 << 48) - 1
_CRC_END = as_word((fmt.PROPERTY_CRC + b"\x01")[-8:])
_DUE_END = as_word((fmt.PROPERTY_DUE + b"\x01")[-8:])
_KEY_END = as_word((fmt.PROPERTY_UNIQUE_KEY + b"\x01")[-8:])
_REAL_QUEUE_END = as_word((fmt.PROPERTY_REAL_QUEUE + b"\x01")[-8:])
_REAL_END = as_word((fmt.PROPERTY_REAL_TOPIC + b"\x01")[-8:])
_DELIVER_END = as_word((fmt.PROPERTY_DELIVER + b"\x01")[-8:])
_DELETES_END = as_word((fmt.PROPERTY_DELETES + b"\x01")[-8:])
_ORIGIN_END = as_word((fmt.PROPERTY_ORIGIN + b"\x01")[-8:])
_ROLL_2 = as_word(fmt.PROPERTY_ROLL_TIMES[8:])
_ROLL_END = as_word((fmt.PROPERTY_ROLL_TIMES + b"\x01")[-8:])
_REPLACES_END = as_word((fmt.PROPERTY_REPLACES + b"\x01")[-8:])
_RETRY_END = as_word((fmt.PROPERTY_RETRY_TOPIC + b"\x01")[-8:])
assert fmt.PROPERTY_DELIVER[:8] == fmt.PROPERTY_DELETES[:8] == b"TIMER_DE"
_ORIGIN_AND_CRC_BYTES: Final = (
    len(fmt.PROPERTY_ORIGIN) + 1 + OFFSET_DIGITS + 1 + fmt.CRC_PROPERTY_BYTES
)
"""How the properties of every copy that we make end."""

# How the properties of our own begin: where each starts, and the four's bytes without a topic.
_USUAL_KEY_AT: Final = len(fmt.PROPERTY_DUE) + 1 + 13 + 1
_USUAL_QUEUE_AT: Final = _USUAL_KEY_AT + len(fmt.PROPERTY_UNIQUE_KEY) + 1 + fmt.KEY_DIGITS + 1
_USUAL_REAL_AT: Final = _USUAL_QUEUE_AT + len(fmt.PROPERTY_REAL_QUEUE) + 1 + 1 + 1
_USUAL_BYTES: Final = _USUAL_REAL_AT + len(fmt.PROPERTY_REAL_TOPIC) + 1
assert (
    len(fmt.PROPERTY_DUE) == 12
    and len(fmt.PROPERTY_UNIQUE_KEY) == len(fmt.PROPERTY_REAL_QUEUE) == 8
)
assert 64 < _USUAL_QUEUE_AT < _USUAL_REAL_AT == 80 and len(fmt.PROPERTY_REAL_TOPIC) == 10
USUAL_KEPT_BYTES: Final = _USUAL_QUEUE_AT
"""Of these due time and key."""

IDENTITY_OURS: Final = -1
"""`identity_high` of a timer of this store; `identity_low` is its first put's offset then."""
IDENTITY_HELD: Final = -2
"""In the cancelled set in its place: a delay level's message whose delete unit was passed."""


@inlined
def find_byte(buf: Bytes, at: int, end: int, byte: int) -> int:
    """Return the first position in [at, end) that holds `byte`, or `end`. O(distance / 64).

    It reads no page behind `end`: on a full tmpfs that may be a hole, and a SIGBUS.
    """
    while at < end:
        if at + 64 > len(buf) or (at + 64 > end and at & 4_095 > 4_096 - 64):
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
def is_topic_at(buf: Bytes, at: int, count: int) -> bool:
    """Tell whether `count` bytes can name a topic, see `names.is_topic`; they become a folder's."""
    if count < 1 or count > fmt.TOPIC_BYTES_READ_MAX:
        return False
    end = at + count
    if find_byte(buf, at, end, _SLASH) != end or find_byte(buf, at, end, 0) != end:
        return False
    return not (get_u8(buf, at) == _DOT and count < 3 and get_u8(buf, end - 1) == _DOT)


@inlined
def read_frame(buf: Bytes, at: int, found: MessageParts) -> int:
    """Check a message's size, magic and parts; fill `at` to `whole_crc`. O(1)."""
    room = len(buf) - at
    if room < fmt.MESSAGE_BYTES_MIN + fmt.BLANK_BYTES:
        return BAD_SIZE
    size = get_i32(buf, at + fmt.MESSAGE_SIZE_AT)
    magic = get_u32(buf, at + fmt.MESSAGE_MAGIC_AT)
    if magic != fmt.MESSAGE_MAGIC and magic != fmt.MESSAGE_MAGIC_LONG_TOPIC:
        return BAD_MAGIC
    if size < fmt.MESSAGE_BYTES_MIN or size > room - fmt.BLANK_BYTES:
        return BAD_SIZE
    system_flag = get_i32(buf, at + fmt.MESSAGE_SYSTEM_FLAG_AT)
    body_at = at + fmt.MESSAGE_HEADER_BYTES
    if system_flag & fmt.SYSTEM_FLAG_BORN_V6:
        body_at += fmt.HOST_V6_EXTRA_BYTES
    if system_flag & fmt.SYSTEM_FLAG_STORE_V6:
        body_at += fmt.HOST_V6_EXTRA_BYTES
    end = at + size
    if body_at + 3 > end:
        return BAD_PARTS
    body_bytes = get_i32(buf, body_at - fmt.MESSAGE_HEADER_BYTES + fmt.MESSAGE_BODY_BYTES_AT)
    topic_at = body_at + body_bytes + 1
    if body_bytes < 0 or topic_at > end:
        return BAD_PARTS
    topic_bytes = get_u8(buf, topic_at - 1)
    if magic == fmt.MESSAGE_MAGIC_LONG_TOPIC:
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
    found.at = at
    found.size = size
    found.body_at = body_at
    found.body_bytes = body_bytes
    found.topic_at = topic_at
    found.topic_bytes = topic_bytes
    found.properties_at = properties_at
    found.properties_bytes = properties_bytes
    found.whole_crc = 0
    if (
        properties_bytes >= fmt.CRC_PROPERTY_BYTES
        and get_word(buf, end - fmt.CRC_PROPERTY_BYTES) == _CRC
    ):
        if get_u8(buf, end - 12) == fmt.NAME_END and get_u8(buf, end - 1) == fmt.VALUE_END:
            found.whole_crc = 1
    return GOOD


@inlined
def stored_at(buf: Bytes, at: int) -> int:
    """Return the position of a message's stored time: an IPv6 born host moves it."""
    if get_i32(buf, at + fmt.MESSAGE_SYSTEM_FLAG_AT) & fmt.SYSTEM_FLAG_BORN_V6:
        return at + fmt.MESSAGE_STORED_AT + fmt.HOST_V6_EXTRA_BYTES
    return at + fmt.MESSAGE_STORED_AT


@inlined
def is_brokers_copy(buf: Bytes, found: MessageParts) -> bool:
    """Tell whether a broker copied a framed message from one that we wrote. O(properties).

    A broker takes our checksum for a property like any other, so it stands anywhere but at the end,
    and says nothing of the copy. Nothing that we write has it there.
    """
    start = found.properties_at
    end = start + found.properties_bytes
    while start < end:
        stop = find_byte(buf, start, end, fmt.VALUE_END)
        if get_word(buf, start) == _CRC and name_ends(buf, start, stop, 8, _CRC_END):
            if start != end - fmt.CRC_PROPERTY_BYTES:
                return True
        start = stop + 1
    return False


@inlined
def _has_lost_crc(buf: Bytes, found: MessageParts) -> bool:
    """Tell whether a framed message that has no CRC of the whole must have one. O(properties).

    All that we write has one. It is ours by what is left of the CRC's name and ends, by the host
    that stored it, or by `TIMER_ORIGIN` in front of the CRC's place: damage leaves one of them.
    What a broker writes has none of these, or is its copy of ours.
    """
    end = found.properties_at + found.properties_bytes
    if found.properties_bytes >= fmt.CRC_PROPERTY_BYTES:
        different = get_word(buf, end - fmt.CRC_PROPERTY_BYTES) ^ _CRC
        same = 0
        for _ in range(8):
            if different & 0xFF == 0:
                same += 1
            different >>= 8
        if get_u8(buf, end - 12) == fmt.NAME_END:
            same += 1
        if get_u8(buf, end - 1) == fmt.VALUE_END:
            same += 1
        if same >= 6:  # of 10 bytes that never differ
            return True
    if is_brokers_copy(buf, found):
        return False
    at = end - _ORIGIN_AND_CRC_BYTES
    if at >= found.properties_at and get_word(buf, at) == _ORIGIN:
        if get_word(buf, at + 5) == _ORIGIN_END:
            return True
    flag = get_i32(buf, found.at + fmt.MESSAGE_SYSTEM_FLAG_AT)
    host_at = found.at + fmt.MESSAGE_STORE_HOST_AT
    if flag & fmt.SYSTEM_FLAG_BORN_V6:
        host_at += fmt.HOST_V6_EXTRA_BYTES
    return flag & fmt.SYSTEM_FLAG_STORE_V6 == 0 and get_word(buf, host_at) == _OUR_HOST


@inlined_always
def check_crc(buf: Bytes, found: MessageParts) -> bool:
    """Check a framed message's CRC: of the whole, or only of a broker's body. O(size)."""
    at = found.at
    if found.whole_crc == 1:
        covered = found.size - fmt.CRC_PROPERTY_BYTES
        return crc_digits_are(
            buf, at + found.size - 11, crc32(buf, at, covered) & fmt.BODY_CRC_MASK
        )
    if _has_lost_crc(buf, found):
        return False
    code = crc32(buf, found.body_at, found.body_bytes) & fmt.BODY_CRC_MASK
    return code == get_i32(buf, at + fmt.MESSAGE_BODY_CRC_AT)


@inlined
def name_ends(buf: Bytes, start: int, stop: int, count: int, end: int) -> bool:
    """Tell whether the property in [start, stop) has a name of `count` bytes that ends in `end`.

    `end`: the word of the name's last seven bytes and 0x01. It reads nothing behind `stop`.
    """
    return stop - start > count and get_word(buf, start + count - 7) == end


@inlined
def _begins_as_usual(buf: Bytes, at: int, end: int) -> bool:
    """Tell whether properties begin as those of every timer that we put.

    That is due time, key, real queue and real topic, the values of the first three of one length.
    """
    if at + 128 > end + fmt.SEALED_BLANK_BYTES or at + 128 > len(buf):
        return False
    if match_64(buf, at, fmt.VALUE_END) != 1 << (_USUAL_KEY_AT - 1):
        return False
    ends = 1 << (_USUAL_QUEUE_AT - 65) | 1 << (_USUAL_REAL_AT - 65)
    if match_64(buf, at + 64, fmt.VALUE_END) & 0xFFFF != ends:
        return False
    return (
        get_word(buf, at) == _DUE
        and get_word(buf, at + 5) == _DUE_END
        and get_word(buf, at + _USUAL_KEY_AT) == _KEY
        and get_u8(buf, at + _USUAL_KEY_AT + 8) == fmt.NAME_END
        and get_word(buf, at + _USUAL_QUEUE_AT) == _REAL_QUEUE
        and get_u8(buf, at + _USUAL_QUEUE_AT + 8) == fmt.NAME_END
        and get_word(buf, at + _USUAL_REAL_AT) == _REAL
        and get_word(buf, at + _USUAL_REAL_AT + 3) == _REAL_END
    )


@inlined
def read_properties(buf: Bytes, found: MessageParts) -> None:
    """Find the properties of a framed message; fill all but the identity. O(size)."""
    found.due_ms = found.deliver_ms = found.real_queue = found.roll_times = -1
    found.real_topic_at = found.real_topic_bytes = found.key_at = found.key_bytes = -1
    found.deletes_at = found.deletes_bytes = found.tags_at = found.tags_bytes = -1
    found.keys_at = found.keys_bytes = found.replaces_at = found.replaces_bytes = -1
    found.retry_topic_at = found.retry_topic_bytes = found.usual_end = -1
    found.origin = found.level = -1
    start = found.properties_at
    end = start + found.properties_bytes
    if _begins_as_usual(buf, start, end):
        found.due_ms = get_decimal_13(buf, start + 13)
        found.key_at = start + _USUAL_KEY_AT + 9
        found.key_bytes = fmt.KEY_DIGITS
        found.real_queue = get_decimal(buf, start + _USUAL_QUEUE_AT + 9, 1)
        topic_at = start + _USUAL_BYTES
        found.real_topic_at = topic_at
        start = find_byte(buf, topic_at, end, fmt.VALUE_END) + 1
        found.real_topic_bytes = start - 1 - topic_at
        found.usual_end = start
    while start < end:
        stop = find_byte(buf, start, end, fmt.VALUE_END)
        first = get_word(buf, start)
        if first == _DUE:
            if name_ends(buf, start, stop, 12, _DUE_END):
                found.due_ms = get_decimal(buf, start + 13, stop - start - 13)
        elif first == _KEY:
            if name_ends(buf, start, stop, 8, _KEY_END):
                found.key_at = start + 9
                found.key_bytes = stop - start - 9
        elif first == _REAL_QUEUE:
            if name_ends(buf, start, stop, 8, _REAL_QUEUE_END):
                found.real_queue = get_decimal(buf, start + 9, stop - start - 9)
        elif first == _REAL:
            if name_ends(buf, start, stop, 10, _REAL_END):
                found.real_topic_at = start + 11
                found.real_topic_bytes = stop - start - 11
        elif first == _DELIVER:
            if name_ends(buf, start, stop, 16, _DELIVER_END):
                if get_word(buf, start + 8) == _DELIVER_2:
                    found.deliver_ms = get_decimal(buf, start + 17, stop - start - 17)
            elif name_ends(buf, start, stop, 17, _DELETES_END):
                if get_word(buf, start + 8) == _DELETES_2:
                    found.deletes_at = start + 18
                    found.deletes_bytes = stop - start - 18
        elif first == _ORIGIN:
            if name_ends(buf, start, stop, 12, _ORIGIN_END):
                if stop + 1 == end - fmt.CRC_PROPERTY_BYTES:  # else in a broker's copy of ours
                    skip = start + 13
                    while skip < stop - 18 and get_u8(buf, skip) == 48:
                        skip += 1
                    found.origin = get_decimal(buf, skip, stop - skip)
        elif first == _ROLL:
            if name_ends(buf, start, stop, 16, _ROLL_END) and get_word(buf, start + 8) == _ROLL_2:
                found.roll_times = get_decimal(buf, start + 17, stop - start - 17)
        elif first == _REPLACES:
            if name_ends(buf, start, stop, 14, _REPLACES_END):
                found.replaces_at = start + 15
                found.replaces_bytes = stop - start - 15
        elif first == _RETRY:
            if name_ends(buf, start, stop, 11, _RETRY_END):
                found.retry_topic_at = start + 12
                found.retry_topic_bytes = stop - start - 12
        elif first & _MASK_5 == _TAGS and stop - start >= 5:
            found.tags_at = start + 5
            found.tags_bytes = stop - start - 5
        elif first & _MASK_5 == _KEYS and stop - start >= 5:
            found.keys_at = start + 5
            found.keys_bytes = stop - start - 5
        elif first & _MASK_6 == _LEVEL:
            found.level = get_decimal(buf, start + 6, stop - start - 6)
        start = stop + 1
    if not is_topic_at(buf, found.real_topic_at, found.real_topic_bytes):
        found.real_topic_bytes = -1  # nowhere to go: as if there were none


@inlined
def is_plain(buf: Bytes, found: MessageParts) -> bool:
    """Tell whether a message that was read has nothing but what every timer that we put has.

    Besides a tag, a key, whom it replaces, and a CRC: no property of the user's own, none that a
    copy adds. O(size).
    """
    start = found.usual_end
    if start < 0:
        return False
    end = found.properties_at + found.properties_bytes
    while start < end:
        stop = find_byte(buf, start, end, fmt.VALUE_END)
        first = get_word(buf, start)
        if first & _MASK_5 == _TAGS or first & _MASK_5 == _KEYS:
            if stop - start < 5:
                return False
        elif first == _REPLACES and name_ends(buf, start, stop, 14, _REPLACES_END):
            pass
        elif first != _CRC or stop + 1 != end or not name_ends(buf, start, stop, 8, _CRC_END):
            return False
        start = stop + 1
    return True


@inlined_always
def read_message(buf: Bytes, at: int, offset: int, found: MessageParts, verify: bool) -> int:
    """Read one message at `at` of a segment: GOOD, or what is wrong. O(size).

    `offset`: where that is in the commit log, which the message has to say too: else it is of an
    earlier use of the segment, or its file is another's. `found`, written. `verify`: check the CRC
    as well.
    """
    status = read_frame(buf, at, found)
    if status != GOOD:
        return status
    if verify and not check_crc(buf, found):
        return BAD_CRC
    if get_i64(buf, at + fmt.MESSAGE_OFFSET_AT) != offset:
        return BAD_PARTS
    read_properties(buf, found)
    return GOOD


@inlined
def java_hash(buf: Bytes, at: int, count: int) -> int:
    """Return Java's `String.hashCode` of UTF-8 bytes, as a signed 32-bit number."""
    code: int = java_hash_on(buf, at, count, 0)
    return code


@inlined
def java_hash_on(buf: Bytes, at: int, count: int, code: int) -> int:
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
def _mix(buf: Bytes, at: int, count: int, state: int) -> int:
    """Return an FNV-1a hash of bytes, continued from `state`; wraps at 64 bits."""
    for i in range(count):
        state = wrapping_multiply(state ^ get_u8(buf, at + i), 0x100000001B3)
    return state


@inlined
def identify(
    buf: Bytes,
    topic_at: int,
    topic_bytes: int,
    key_at: int,
    key_bytes: int,
    tag: int,
    found: MessageParts,
) -> None:
    """Fill the identity: what tells this timer from all others, over rolls and restarts.

    A key that this store (tag: its uint32) made names the first put's offset. Any other timer is
    told by a 128-bit hash of topic and key, because two topics may use the same key.
    """
    if key_bytes == fmt.KEY_DIGITS and get_hex_8(buf, key_at + 24) == tag:
        offset = get_hex_12(buf, key_at + 12)
        if offset >= 0 and get_hex_12(buf, key_at) >= 0:
            found.identity_high = IDENTITY_OURS
            found.identity_low = offset
            return
    high = _mix(buf, topic_at, topic_bytes, 0x4BF29CE484222325)
    high = _mix(buf, key_at, key_bytes, high ^ 0x2B)
    low = _mix(buf, key_at, key_bytes, 0x1B873593CC9E2D51)
    low = _mix(buf, topic_at, topic_bytes, low ^ 0x2B)
    if high == IDENTITY_OURS or high == IDENTITY_HELD:
        high = 0
    found.identity_high = high
    found.identity_low = low


@inlined
def identify_named(buf: Bytes, found: MessageParts, tag: int) -> None:
    """Fill the identity of the timer that a message names: a delete's target, or itself."""
    if found.deletes_bytes >= 0:
        identify_target(buf, found, tag)
    else:
        identify_timer(buf, found, tag)


@inlined
def identify_timer(buf: Bytes, found: MessageParts, tag: int) -> None:
    """Fill the identity of a pending message that is no delete."""
    topic_at, topic_bytes = found.real_topic_at, max(0, found.real_topic_bytes)
    identify(buf, topic_at, topic_bytes, found.key_at, max(0, found.key_bytes), tag, found)


@inlined
def identify_target(buf: Bytes, found: MessageParts, tag: int) -> None:
    """Fill the identity of a delete's target: real topic + `+` + unique key, or only the key."""
    topic_at, topic_bytes = found.real_topic_at, max(0, found.real_topic_bytes)
    at, count = found.deletes_at, found.deletes_bytes
    if count > topic_bytes and get_u8(buf, at + topic_bytes) == 0x2B:
        if bytes_are(buf, at, buf, topic_at, topic_bytes):
            at += topic_bytes + 1
            count -= topic_bytes + 1
    identify(buf, topic_at, topic_bytes, at, count, tag, found)


@inlined
def is_ours(buf: Bytes, found: MessageParts, tag: int) -> bool:
    """Tell whether this store made a message: its `UNIQ_KEY` ends in the store's tag."""
    return found.key_bytes == fmt.KEY_DIGITS and get_hex_8(buf, found.key_at + 24) == tag


@inlined
def exact_due_ms(buf: Bytes, found: MessageParts, tag: int, precision_ms: int) -> int:
    """Return when a timer may first be handed out; `TIMER_OUT_MS` must have been found.

    Ours say it exactly. A broker rounds down to its precision, and one precision more if the time
    divides evenly; it is due at `TIMER_DELIVER_MS` if that fits, else one precision later.
    """
    out_ms = found.due_ms
    if is_ours(buf, found, tag):
        return out_ms
    deliver_ms = found.deliver_ms
    if deliver_ms >= out_ms and deliver_ms <= out_ms + precision_ms:
        return deliver_ms
    return out_ms + precision_ms
