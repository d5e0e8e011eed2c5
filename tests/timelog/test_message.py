"""Reading messages against the slow decoder, then with bytes that are no messages."""

import mmap
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import Bytes, Guarded, as_array
from tests.kernels import kernel
from tests.strategies import KEYS, NEARLY, SOME_TEXT, TAG, TIMES, TOPICS, messages, usual_messages
from timerstore.timelog.bytes.message import (
    BAD_CRC,
    GOOD,
    REASONS,
    MessageParts,
    exact_due_ms,
    find_byte,
    identify_target,
    identify_timer,
    is_ours,
    java_hash,
    read_message,
)

GUARDED = Guarded(1 << 16)


@kernel
def _read(buf: Any, at: int, offset: int, found: Any, verify: bool) -> int:
    return read_message(buf, at, offset, found, verify)


@kernel
def _rules(buf: Any, found: Any, tag: int, precision_ms: int, out: Any) -> None:
    out[0] = exact_due_ms(buf, found, tag, precision_ms)
    out[1] = is_ours(buf, found, tag)
    identify_timer(buf, found, tag)
    out[2] = found.identity_high
    out[3] = found.identity_low
    if found.deletes_bytes >= 0:
        identify_target(buf, found, tag)
    out[4] = found.identity_high
    out[5] = found.identity_low


@kernel
def _find(buf: Any, at: int, end: int, byte: int) -> int:
    return find_byte(buf, at, end, byte)


@kernel
def _java(buf: Any, at: int, count: int) -> int:
    return java_hash(buf, at, count)


def read(data: bytes, at: int = 0, verify: bool = True) -> tuple[int, Bytes, MessageParts]:
    """Read a message in a buffer that ends in nothing, at the offset that it says is its own."""
    buf, found = GUARDED.hold(data), MessageParts(*[-7] * 32)
    offset = int.from_bytes(data[at + 28 : at + 36], "big", signed=True)
    return int(_read(buf, at, offset, found, verify)), buf, found


def ends_in_a_fake_crc(message: naive.Message) -> bool:
    """The last property has the CRC's name and length, but is none."""
    last = naive.encode_properties(message.properties)[-20:]
    return not message.has_crc and last.startswith(b"__CRC32#\x01")


TEXTS = {
    "TOPIC": ("topic_at", "topic_bytes"),
    "REAL_TOPIC": ("real_topic_at", "real_topic_bytes"),
    "UNIQ_KEY": ("key_at", "key_bytes"),
    "TIMER_DEL_UNIQKEY": ("deletes_at", "deletes_bytes"),
    "TAGS": ("tags_at", "tags_bytes"),
    "KEYS": ("keys_at", "keys_bytes"),
    "TIMER_REPLACES": ("replaces_at", "replaces_bytes"),
    "RETRY_TOPIC": ("retry_topic_at", "retry_topic_bytes"),
}
NUMBERS = {
    "TIMER_OUT_MS": "due_ms",
    "TIMER_DELIVER_MS": "deliver_ms",
    "REAL_QID": "real_queue",
    "TIMER_ROLL_TIMES": "roll_times",
    "DELAY": "level",
}


@pytest.mark.parametrize("where", [0, 1, 63, 64, 65, 200])
def test_a_byte_is_looked_for_in_no_page_behind_the_end(where: int) -> None:
    """There a file may have a hole, which a full tmpfs does not fill: a SIGBUS."""
    GUARDED.hold(bytes(200) + b"\1")
    end = len(GUARDED.whole) - mmap.PAGESIZE
    assert _find(GUARDED.whole, end - where, end, 2) == end
    assert _find(GUARDED.whole, end - where, end, 1) == (end - 1 if where else end)


@given(
    message=messages() | usual_messages(),
    before=st.binary(max_size=9),
    behind=st.binary(min_size=8, max_size=80),
)
@example(message=naive.Message("t", b"", dict.fromkeys(NEARLY, "1")), before=b"", behind=b"\0" * 8)
@example(
    # It begins as TIMER_ORIGIN does where that of a copy of ours would stand.
    message=naive.Message(
        "t", b"", {"TIMER_ORIGIX": "0", "REAL_TOPIC": "0", "TIMER_ENQUEUE_MS": "12345678"}
    ),
    before=b"",
    behind=b"\0" * 8,
)
def test_a_message_is_found_whole(message: naive.Message, before: bytes, behind: bytes) -> None:
    assume(not ends_in_a_fake_crc(message))
    data = naive.encode_message(message)
    status, buf, found = read(before + data + behind, len(before))
    assert REASONS[status] == REASONS[GOOD]
    everything = buf.tobytes()

    def part(at: str, count: str) -> bytes:
        start = getattr(found, at)
        return everything[start : start + getattr(found, count)]

    assert (found.at, found.size) == (len(before), len(data))
    assert part("body_at", "body_bytes") == message.body
    crc = {naive.CRC_NAME: data[-11:-1].decode()} if message.has_crc else {}
    properties = naive.encode_properties(message.properties | crc)
    if message.has_crc and naive.CRC_NAME in message.properties:
        properties = naive.encode_properties(message.properties) + naive.encode_properties(crc)
    assert part("properties_at", "properties_bytes") == properties
    assert found.whole_crc == message.has_crc
    texts = message.properties | {"TOPIC": message.topic}
    for name, (at, count) in TEXTS.items():
        if name in texts:
            assert part(at, count) == texts[name].encode("utf-8", "surrogateescape"), name
        else:
            assert (getattr(found, at), getattr(found, count)) == (-1, -1), name
    for name, place in NUMBERS.items():
        assert getattr(found, place) == naive.number(message.properties.get(name)), name
    assert found.origin == naive.origin_of(message)


@given(
    out_ms=TIMES,
    deliver_ms=st.none() | st.integers(-2, 1002),
    key=KEYS,
    topic=TOPICS,
    named=st.none() | KEYS,
    with_topic=st.booleans(),
    precision_ms=st.sampled_from([100, 200, 500, 1000]),
)
def test_rules_about_a_timer(
    out_ms: int,
    deliver_ms: int | None,
    key: str,
    topic: str,
    named: str | None,
    with_topic: bool,
    precision_ms: int,
) -> None:
    properties = {"TIMER_OUT_MS": str(out_ms), "UNIQ_KEY": key, "REAL_TOPIC": topic}
    if deliver_ms is not None:
        properties["TIMER_DELIVER_MS"] = str(out_ms + deliver_ms)
    if named is not None:
        properties["TIMER_DEL_UNIQKEY"] = topic + "+" + named if with_topic else named
    data = naive.encode_message(naive.Message("t", b"b", properties))
    status, buf, found = read(data + bytes(8))
    assert status == GOOD
    out = np.zeros(6, np.int64)
    _rules(buf, found, TAG, precision_ms, out)
    assert out[0] == naive.due_ms(properties, precision_ms, TAG)
    assert bool(out[1]) == (naive.decode_unique_key(key, TAG) is not None)
    identity = naive.identity(topic.encode(), key.encode(), TAG)
    assert (out[2], out[3]) == identity
    if named is not None:
        text = properties["TIMER_DEL_UNIQKEY"].encode()
        assert (out[4], out[5]) == naive.target_identity(topic.encode(), text, TAG)
        target = {"UNIQ_KEY": key, "REAL_TOPIC": topic}
        if identity[0] != -1:  # of ours the offset alone decides
            assert ((out[4], out[5]) == identity) == naive.deletes(properties, target)


@given(data=st.binary(max_size=300), byte=st.integers(0, 255), cut=st.data())
def test_searching_a_byte(data: bytes, byte: int, cut: st.DataObject) -> None:
    at = cut.draw(st.integers(0, len(data)))
    end = cut.draw(st.integers(at, len(data)))
    place = data.find(bytes([byte]), at, end)
    assert _find(GUARDED.hold(data), at, end, byte) == (place if place >= 0 else end)


@given(text=st.text(max_size=40))
def test_java_hash(text: str) -> None:
    data = text.encode("utf-8", "replace")
    assert _java(as_array(data), 0, len(data)) == naive.java_hash(data.decode())


@given(data=st.binary(max_size=40))
def test_any_bytes_have_a_hash(data: bytes) -> None:
    assert -(2**31) <= _java(GUARDED.hold(data), 0, len(data)) < 2**31


# --- bytes that are no message, or no longer


def check_hostile(data: bytes, at: int = 0) -> int:
    """Whatever the bytes say: a status, and positions inside the message alone."""
    result = -1
    for verify in (False, True):
        status, buf, found = read(data, at, verify)
        assert 0 <= status < len(REASONS)
        result = status
        if status != GOOD:
            continue
        end = found.at + found.size
        assert found.at == at
        assert end <= len(data) - 8
        for where, count in [*TEXTS.values(), ("body_at", "body_bytes")]:
            assert getattr(found, count) >= -1
            if getattr(found, count) >= 0:
                start = getattr(found, where)
                assert at <= start <= start + getattr(found, count) <= end
        for place in NUMBERS.values():
            assert -1 <= getattr(found, place) < 10**18
        _rules(buf, found, TAG, 1000, np.zeros(6, np.int64))
    return result


@given(data=st.binary(max_size=400), at=st.integers(0, 20))
def test_random_bytes(data: bytes, at: int) -> None:
    check_hostile(data, min(at, len(data)))


@given(
    message=messages() | usual_messages(),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 255))),
)
def test_changed_bytes(message: naive.Message, changes: list[tuple[int, int]]) -> None:
    data = bytearray(naive.encode_message(message) + bytes(8))
    for place, change in changes:
        data[place % len(data)] ^= change
    check_hostile(bytes(data))


@given(
    message=messages() | usual_messages(), cut=st.integers(0, 2000), behind=st.binary(max_size=12)
)
def test_cut_messages(message: naive.Message, cut: int, behind: bytes) -> None:
    data = naive.encode_message(message)
    check_hostile(data[: cut % (len(data) + 1)] + behind)


@given(
    message=messages(),
    field=st.sampled_from(["size", "body", "topic", "properties"]),
    value=st.integers(-(2**31), 2**31 - 1) | st.integers(-4, 400),
)
def test_sizes_that_lie(message: naive.Message, field: str, value: int) -> None:
    data = bytearray(naive.encode_message(message) + bytes(8))
    moved = 12 * (bool(message.system_flag & 0x10) + bool(message.system_flag & 0x20))
    topic_at = 88 + moved + len(message.body)
    properties_at = topic_at + 1 + len(message.topic.encode("utf-8", "surrogateescape"))
    at, width = {
        "size": (0, 4),
        "body": (84 + moved, 4),
        "topic": (topic_at, 1),
        "properties": (properties_at, 2),
    }[field]
    data[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "big")
    check_hostile(bytes(data))


@pytest.mark.parametrize("name", [*TEXTS, *NUMBERS, "TIMER_ORIGIN"])
def test_a_name_that_the_message_ends_in(name: str) -> None:
    # The rest of the name, and what would close it, stand behind the message.
    whole = name.encode() + b"\x01" + b"1" * 40
    for cut in range(1, len(whole)):
        body = naive.encode_message(
            naive.Message("t", b"b", {"a": "b"}, has_crc=False, store_host=naive.BROKER_HOST)
        )
        size = len(body) + cut
        head = bytearray(body + whole[:cut])
        head[0:4] = size.to_bytes(4, "big")
        at = len(body) - 4 - 2
        head[at : at + 2] = (4 + cut).to_bytes(2, "big")
        data = bytes(head) + (whole[cut:] + b"\x02" * 8)[:8]
        assert check_hostile(data) == GOOD


@given(message=messages(), place=st.integers(0, 5000), change=st.integers(1, 255))
def test_a_changed_byte_is_noticed(message: naive.Message, place: int, change: int) -> None:
    message.has_crc = True
    data = bytearray(naive.encode_message(message))
    data[place % len(data)] ^= change
    assert read(bytes(data) + bytes(8))[0] != GOOD


CRC = {naive.CRC_NAME: "0123456789"}
ORIGIN = {"TIMER_ORIGIN": f"{4096:020d}"}
OURS, BROKERS = naive.OUR_HOST, naive.BROKER_HOST


@pytest.mark.parametrize(
    ("properties", "host", "status"),
    [
        ({}, OURS, BAD_CRC),  # ours by the host
        ({"a": "b"}, OURS, BAD_CRC),
        ({"a": "b"}, BROKERS, GOOD),
        ({"a": "b"} | ORIGIN | {"x": "y" * 17}, BROKERS, BAD_CRC),  # our copy of a broker's timer
        ({"a": "b"} | ORIGIN, BROKERS, GOOD),
        (CRC | {"a": "b"} | ORIGIN, OURS, GOOD),  # a broker's copy of ours
        ({"a": "b", "__CRC30#": "0123456789"}, BROKERS, BAD_CRC),  # it was the CRC's name
        ({"a": "b", "UNIQ_KEY": "0123456789"}, BROKERS, GOOD),
        ({"name__CRC32#": "0123456789", "a": "b"}, OURS, BAD_CRC),  # another name
    ],
)
def test_what_we_write_must_have_its_crc(
    properties: dict[str, str], host: tuple[str, int], status: int
) -> None:
    message = naive.Message("t", b"body", properties, has_crc=False, store_host=host)
    assert read(naive.encode_message(message) + bytes(8))[0] == status


def test_only_our_copies_say_what_they_were_made_from() -> None:
    """A broker keeps our property, in whatever place, and then it says nothing of its copy."""
    ours = naive.Message("t", b"body", {"a": "b"} | ORIGIN)
    assert read(naive.encode_message(ours) + bytes(8))[2].origin == 4096
    for properties in (CRC | {"a": "b"} | ORIGIN, ORIGIN | CRC | {"a": "b"}):
        copy = naive.Message("t", b"body", properties, has_crc=False)
        status, _, found = read(naive.encode_message(copy) + bytes(8))
        assert (status, found.origin) == (GOOD, -1)


def test_a_changed_body_is_noticed_without_a_crc_of_the_whole() -> None:
    data = bytearray(
        naive.encode_message(
            naive.Message("t", b"body", has_crc=False, store_host=naive.BROKER_HOST)
        )
    )
    data[89] ^= 1
    assert read(bytes(data) + bytes(8))[0] == BAD_CRC
    assert read(bytes(data) + bytes(8), verify=False)[0] == GOOD


@given(message=messages(), value=SOME_TEXT)
def test_the_last_separator_may_be_missing(message: naive.Message, value: str) -> None:
    message.has_crc = False
    message.properties = {"KEYS": value}
    data = bytearray(naive.encode_message(message))[:-1]
    data[0:4] = len(data).to_bytes(4, "big")
    at = len(data) - len(value.encode()) - 5 - 2
    data[at : at + 2] = (len(value.encode()) + 5).to_bytes(2, "big")
    status, buf, found = read(bytes(data) + b"\x02" * 8)
    assert status == GOOD
    start = found.keys_at
    assert buf.tobytes()[start : start + found.keys_bytes] == value.encode()
