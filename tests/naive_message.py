"""Slow, obvious twins of the commit log: messages, properties, CRCs, blanks, a scan."""

import ipaddress
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

INT32_MAX = 0x7FFFFFFF
UINT32_MAX = 0xFFFFFFFF

MESSAGE_MAGIC = 0xDAA320A7
MESSAGE_MAGIC_LONG_TOPIC = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194
COMMIT_LOG_BLANK_BYTES = 8
SEALED_BLANK_BYTES = 24

BORN_HOST_IPV6 = 0x10
STORE_HOST_IPV6 = 0x20

PAIR_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
CRC_NAME = "__CRC32#"
CRC_PROPERTY_BYTES = 20
PROPERTIES_BYTES_MAX = 32_767


OUR_HOST = ("127.0.0.1", 0)
BROKER_HOST = ("127.0.0.1", 10911)


class DamageError(Exception):
    """Raised when bytes are not what the layout says; names the place and the reason."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"at {offset}: {reason}")
        self.offset = offset
        self.reason = reason


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[i : i + 2], "big")) & UINT32_MAX
    return value - (1 << 32) if value > INT32_MAX else value


@dataclass
class Message:
    """One message of the commit log; `has_crc` tells whether it ends in `__CRC32#`."""

    topic: str
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    offset: int = 0
    system_flag: int = 0
    born_ms: int = 0
    born_host: tuple[str, int] = OUR_HOST
    stored_ms: int = 0
    store_host: tuple[str, int] = OUR_HOST
    reconsume_times: int = 0
    prepared_offset: int = 0
    magic: int = MESSAGE_MAGIC
    has_crc: bool = True

    @property
    def size_bytes(self) -> int:
        """Size on disk."""
        return len(encode_message(self))


def crc31(data: bytes) -> int:
    """CRC-32 as zlib has it, without its highest bit: Java has no unsigned int."""
    return zlib.crc32(data) & INT32_MAX


def encode_host(host: tuple[str, int]) -> bytes:
    """4 or 16 bytes of address, then the port as an int32."""
    return ipaddress.ip_address(host[0]).packed + struct.pack(">i", host[1])


def decode_host(data: bytes) -> tuple[str, int]:
    """Inverse of `encode_host`."""
    (port,) = struct.unpack(">i", data[-4:])
    return str(ipaddress.ip_address(data[:-4])), port


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """`name 0x01 value 0x02` for each property, in the mapping's order."""
    text = "".join(
        name + PAIR_SEPARATOR + value + PROPERTY_SEPARATOR for name, value in properties.items()
    )
    return text.encode("utf-8", "surrogateescape")


def decode_properties(data: bytes) -> dict[str, str]:
    """As a broker reads them: an empty name or value is skipped, the last of two equal names wins.

    The last separator may be missing (old brokers leave it out).
    """
    properties = {}
    for pair in data.decode("utf-8", "surrogateescape").split(PROPERTY_SEPARATOR):
        name, separator, value = pair.partition(PAIR_SEPARATOR)
        if separator and name and value:
            properties[name] = value
    return properties


def crc_property(before: bytes) -> bytes:
    """The last 20 bytes of a message that begins with `before`: digits from the lowest up."""
    digits = f"{crc31(before):010d}"[::-1]
    return encode_properties({CRC_NAME: digits})


def split_crc(properties: bytes) -> tuple[bytes, bytes]:
    """Cut a trailing `__CRC32#` property off; one in the middle is stale and stays."""
    rest, last = properties[:-CRC_PROPERTY_BYTES], properties[-CRC_PROPERTY_BYTES:]
    begins_a_property = not rest or rest.endswith(PROPERTY_SEPARATOR.encode())
    if begins_a_property and re.fullmatch(rb"__CRC32#\x01[0-9]{10}\x02", last):
        return rest, last
    return properties, b""


def must_have_crc(properties: bytes, store_host: tuple[str, int]) -> bool:
    """Whether a message that ends in no CRC has lost it, for we wrote it."""
    place = len(properties) - CRC_PROPERTY_BYTES
    if place >= 0:
        fixed = properties[place : place + 9] + properties[-1:]
        if sum(a == b for a, b in zip(fixed, b"__CRC32#\x01\x02", strict=True)) >= 6:
            return True
    starts = [at for at in property_starts(properties) if at != place]
    if any(properties[at : at + 9] == b"__CRC32#\x01" for at in starts):
        return False  # a broker's copy of ours
    ends_as_copies_do = place >= 34 and properties[place - 34 :].startswith(b"TIMER_OR")
    return ends_as_copies_do or store_host == OUR_HOST


def origin_of(message: Message) -> int:
    """What our copy says that it was made from; −1 elsewhere, and in a broker's copy of ours."""
    ends_as_ours = message.has_crc and list(message.properties)[-1:] == ["TIMER_ORIGIN"]
    return number(message.properties["TIMER_ORIGIN"], 20) if ends_as_ours else -1


def property_starts(properties: bytes) -> list[int]:
    """Where each property begins."""
    return [0] + [at + 1 for at, byte in enumerate(properties[:-1]) if byte == 2]


def encode_message(message: Message) -> bytes:
    """The bytes of a message, with its CRC property if it has one."""
    born_host, store_host = encode_host(message.born_host), encode_host(message.store_host)
    assert len(born_host) == (20 if message.system_flag & BORN_HOST_IPV6 else 8)
    assert len(store_host) == (20 if message.system_flag & STORE_HOST_IPV6 else 8)
    topic = message.topic.encode("utf-8", "surrogateescape")
    topic_length = ">B" if message.magic == MESSAGE_MAGIC else ">H"
    properties = encode_properties(message.properties)
    properties_bytes = len(properties) + (CRC_PROPERTY_BYTES if message.has_crc else 0)
    assert properties_bytes <= PROPERTIES_BYTES_MAX
    after_size = b"".join(
        [
            struct.pack(">I", message.magic),
            struct.pack(">i", crc31(message.body)),
            struct.pack(">i", message.queue_id),
            struct.pack(">i", message.flag),
            struct.pack(">q", message.queue_offset),
            struct.pack(">q", message.offset),
            struct.pack(">i", message.system_flag),
            struct.pack(">q", message.born_ms),
            born_host,
            struct.pack(">q", message.stored_ms),
            store_host,
            struct.pack(">i", message.reconsume_times),
            struct.pack(">q", message.prepared_offset),
            struct.pack(">i", len(message.body)),
            message.body,
            struct.pack(topic_length, len(topic)),
            topic,
            struct.pack(">h", properties_bytes),
            properties,
        ]
    )
    size = 4 + len(after_size) + properties_bytes - len(properties)
    data = struct.pack(">i", size) + after_size
    return data + crc_property(data) if message.has_crc else data


class Reader:
    """Takes field after field from the bytes of one record and never reads past their end."""

    def __init__(self, data: bytes, offset: int) -> None:
        self.data, self.offset, self.at = data, offset, 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count < 0 or self.at + count > len(self.data):
            raise DamageError(self.offset, f"a field ends past the record's {len(self.data)} bytes")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> int:
        """The next big-endian number: form is one of struct's letters."""
        (value,) = struct.unpack(">" + form, self.take(struct.calcsize(">" + form)))
        return int(value)


def decode_message(data: bytes, offset: int) -> Message:
    """The message in exactly these bytes, whose place in the commit log is `offset`."""
    reader = Reader(data, offset)
    size, magic = reader.number("i"), reader.number("I")
    if size != len(data):
        raise DamageError(offset, f"size {size} in a record of {len(data)} bytes")
    if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_LONG_TOPIC):
        raise DamageError(offset, f"magic {magic:#x}")
    body_crc, queue_id, flag = reader.number("i"), reader.number("i"), reader.number("i")
    queue_offset, own_offset = reader.number("q"), reader.number("q")
    system_flag, born_ms = reader.number("i"), reader.number("q")
    born_host = decode_host(reader.take(20 if system_flag & BORN_HOST_IPV6 else 8))
    stored_ms = reader.number("q")
    store_host = decode_host(reader.take(20 if system_flag & STORE_HOST_IPV6 else 8))
    reconsume_times, prepared_offset = reader.number("i"), reader.number("q")
    body = reader.take(reader.number("i"))
    topic = reader.take(reader.number("B" if magic == MESSAGE_MAGIC else "H"))
    all_properties = reader.take(reader.number("h"))
    properties, crc = split_crc(all_properties)
    if reader.at != size:
        raise DamageError(offset, f"fields end at {reader.at} of {size} bytes")
    if own_offset != offset:
        raise DamageError(offset, f"own offset {own_offset}")
    if body_crc != crc31(body):
        raise DamageError(offset, "CRC of the body")
    if crc and crc != crc_property(data[:-CRC_PROPERTY_BYTES]):
        raise DamageError(offset, "CRC of the message")
    if not crc and must_have_crc(all_properties, store_host):
        raise DamageError(offset, "the CRC of the message is lost")
    return Message(
        topic=topic.decode("utf-8", "surrogateescape"),
        body=body,
        properties=decode_properties(properties),
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        offset=offset,
        system_flag=system_flag,
        born_ms=born_ms,
        born_host=born_host,
        stored_ms=stored_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        magic=magic,
        has_crc=bool(crc),
    )


class LogScan(NamedTuple):
    """What a commit log holds: messages in order, blanks as (offset, bytes), and where it ends.

    `damage` is None where zeros follow the end.
    """

    messages: list[Message]
    blanks: list[tuple[int, int]]
    end: int
    damage: DamageError | None


def scan_commit_log(
    segments: Mapping[int, bytes], start: int = 0, sealed_from: int | None = None
) -> LogScan:
    """Read the segments (bytes by start offset) from `start` to the first bad message.

    From `sealed_from` on a blank counts only if it says that it stands there.
    """
    messages: list[Message] = []
    blanks: list[tuple[int, int]] = []
    at = start
    while True:
        begin = max((begin for begin in segments if begin <= at), default=None)
        if begin is None or at >= begin + len(segments[begin]):
            return LogScan(messages, blanks, at, None)
        segment = segments[begin]
        remaining = len(segment) - (at - begin)
        size, magic = struct.unpack_from(">iI", segment, at - begin)
        if size == 0 and magic == 0:
            return LogScan(messages, blanks, at, None)
        try:
            if magic == BLANK_MAGIC:
                if size != remaining:
                    raise DamageError(at, f"a blank of {size} where {remaining} bytes are left")
                place = blank_place(segment[at - begin :])
                must_say = sealed_from is not None and at >= sealed_from
                if remaining >= SEALED_BLANK_BYTES and place != at:
                    if must_say or place is not None:
                        raise DamageError(at, f"a blank of {place}")
                blanks.append((at, size))
            else:
                if not 0 < size <= remaining - COMMIT_LOG_BLANK_BYTES:
                    raise DamageError(at, f"size {size} where {remaining} bytes are left")
                data = segment[at - begin : at - begin + size]
                message = decode_message(data, at)
                if not message.has_crc and 0 in properties_of(data):  # a power cut took sectors
                    raise DamageError(at, "zeros in the properties, where no CRC covers them")
                messages.append(message)
        except DamageError as damage:
            return LogScan(messages, blanks, at, damage)
        at += size


def properties_of(data: bytes) -> bytes:
    """The bytes of a whole message's properties."""
    system_flag = struct.unpack_from(">i", data, 36)[0]
    at = 84 + 12 * bool(system_flag & BORN_HOST_IPV6) + 12 * bool(system_flag & STORE_HOST_IPV6)
    at += 4 + struct.unpack_from(">i", data, at)[0]
    long_topic = struct.unpack_from(">I", data, 4)[0] == MESSAGE_MAGIC_LONG_TOPIC
    topic_bytes = struct.unpack_from(">H" if long_topic else ">B", data, at)[0]
    return data[at + (2 if long_topic else 1) + topic_bytes + 2 :]


def blank_message(remaining: int, offset: int | None = None) -> bytes:
    """The end of a commit log segment that the next message does not fit into.

    A broker's; with an offset ours, which says where it stands.
    """
    blank = struct.pack(">iI", remaining, BLANK_MAGIC)
    if offset is not None and remaining >= SEALED_BLANK_BYTES:
        blank += struct.pack(">q", offset)
        blank += struct.pack(">I", zlib.crc32(blank))
    return blank + bytes(remaining - len(blank))


def blank_place(blank: bytes) -> int | None:
    """The commit log offset that a blank says it has; None where it says none."""
    if len(blank) < SEALED_BLANK_BYTES or zlib.crc32(blank[:16]) != int.from_bytes(blank[16:20]):
        return None
    return int(struct.unpack_from(">q", blank, 8)[0])


def number(text: str | None, digits_max: int = 18) -> int:
    """A property's decimal number; −1 where it is missing, or none, or has too many digits."""
    if text is None or not re.fullmatch(f"[0-9]{{1,{digits_max}}}", text):
        return -1
    return int(text)


# ------------------------------------------------------------------- what we write

FIRED_DROPS = {"REAL_TOPIC", "REAL_QID", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}


def new_timer(
    real_topic: str, body: bytes, due_ms: int, now_ms: int, store_tag: int, more: Mapping[str, str]
) -> Message:
    """A new timer for queue 0 of a topic, before it has its place."""
    return Message(
        topic="rmq_sys_wheel_timer",
        body=body,
        properties={
            "TIMER_OUT_MS": str(due_ms),
            "UNIQ_KEY": f"{due_ms:012X}{0:012X}{store_tag:08X}",
            "REAL_QID": "0",
            "REAL_TOPIC": real_topic,
            **more,
        },
        born_ms=now_ms,
    )


def fired_copy(source: Message, enqueued_ms: int, now_ms: int) -> Message:
    """What firing appends, before it has its place."""
    kept = {k: v for k, v in source.properties.items() if k not in FIRED_DROPS | COPY_DROPS}
    added = {"TIMER_ENQUEUE_MS": str(enqueued_ms), "TIMER_DEQUEUE_MS": str(now_ms)}
    topic = source.properties["REAL_TOPIC"]
    queue_id = number(source.properties.get("REAL_QID"))
    return _copy(source, topic, queue_id, kept | added)


def new_at_level(
    real_topic: str,
    body: bytes,
    level: int,
    delay_ms: int,
    now_ms: int,
    store_tag: int,
    more: Mapping[str, str],
) -> Message:
    """A new message for a delay level, before it has its place."""
    due_ms = now_ms + delay_ms
    return Message(
        topic="SCHEDULE_TOPIC_XXXX",
        queue_id=level - 1,
        body=body,
        properties={
            "DELAY": str(level),
            "UNIQ_KEY": f"{due_ms:012X}{0:012X}{store_tag:08X}",
            "REAL_QID": "0",
            "REAL_TOPIC": real_topic,
            **more,
        },
        born_ms=now_ms,
    )


LEVEL_DROPS = {"DELAY", "TIMER_OUT_MS", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"}


def delivered_copy(source: Message, due_ms: int, *, asked: bool) -> Message:
    """What a delay level delivers, before it has its place; `asked`: also in a producer's way."""
    drops = FIRED_DROPS | COPY_DROPS | LEVEL_DROPS
    kept = {k: v for k, v in source.properties.items() if k not in drops}
    added = {"TIMER_OUT_MS": str(due_ms)} | ({"TIMER_DELIVER_MS": str(due_ms)} if asked else {})
    topic = source.properties["REAL_TOPIC"]
    queue_id = number(source.properties.get("REAL_QID"))
    return _copy(source, topic, queue_id, kept | added)


def rolled_copy(source: Message) -> Message:
    """What rolling appends, before it has its place."""
    drops = COPY_DROPS | {"TIMER_ROLL_TIMES"}
    kept = {k: v for k, v in source.properties.items() if k not in drops}
    rolls = max(0, number(source.properties.get("TIMER_ROLL_TIMES"))) + 1
    return _copy(source, source.topic, source.queue_id, kept | {"TIMER_ROLL_TIMES": str(rolls)})


COPY_DROPS = {CRC_NAME, "TIMER_ORIGIN"}


def _copy(source: Message, topic: str, queue_id: int, properties: dict[str, str]) -> Message:
    long_topic = len(topic.encode("utf-8", "surrogateescape")) > 127
    return replace(
        source,
        topic=topic,
        queue_id=queue_id,
        properties=properties | {"TIMER_ORIGIN": f"{source.offset:020d}"},
        magic=MESSAGE_MAGIC_LONG_TOPIC if long_topic else MESSAGE_MAGIC,
        has_crc=True,
    )


def unsealed(message: Message) -> bytes:
    """A message that ends in a CRC whose digits are still zeros."""
    data = encode_message(message)
    return data[:-11] + b"0" * 10 + data[-1:]


def place_behind(segment_bytes: int, end: int, size: int) -> int:
    """Where a message goes that is to be appended at `end`: there, or in the next segment."""
    left = segment_bytes - end % segment_bytes
    return end if size + SEALED_BLANK_BYTES <= left else end + left


def lay_out(messages: list[Message], segment_bytes: int, count: int) -> bytes:
    """The bytes of a log's first `count` segments, which hold these messages at their offsets."""
    log = bytearray(segment_bytes * count)
    end = 0
    for message in messages:
        if message.offset != end and end % segment_bytes:
            left = segment_bytes - end % segment_bytes
            log[end : end + left] = blank_message(left, end)
        data = encode_message(message)
        log[message.offset : message.offset + len(data)] = data
        end = message.offset + len(data)
    return bytes(log)
