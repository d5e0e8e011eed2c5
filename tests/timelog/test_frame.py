"""Framed messages against the slow encoder: new ones, then copies that are fired or rolled."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import Guarded, as_array
from tests.kernels import kernel
from tests.strategies import (
    OFFSETS,
    SOME_TEXT,
    TAG,
    TIMER_NAMES,
    TIMES,
    TOPICS,
    messages,
    properties,
    usual_messages,
)
from timerstore.jit.intrinsics import get_i64
from timerstore.jit.objects import NO_PIECES
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import GOOD, MessageParts, read_message
from timerstore.timelog.writing.append import BATCH_BYTES, STAGE_COUNT_MAX, Stage, new_stage
from timerstore.timelog.writing.frame import (
    COPY_EXTRA_BYTES,
    DELIVERED,
    FIRED,
    ROLLED,
    CopySays,
    Destination,
    NewSays,
    Puts,
    Template,
    encode_property,
    encode_tag,
    frame_batch,
    frame_copy,
    frame_new,
    new_message_bytes_max,
    new_template,
)
from timerstore.values.check_arguments import Binaries

SOURCE, TARGET = Guarded(1 << 16), Guarded(1 << 17)
STAGE = new_stage()


@kernel
def _new(stage: Any, at: int, template: Any, body: Any, extra: Any, times: Any) -> int:
    most = new_message_bytes_max(template, len(body), len(extra))
    size = frame_new(stage, 3, at, template, NewSays(body, extra, times[0]), times[1])
    return size if size <= most else -1


@kernel
def _batch(
    stage: Any,
    template: Any,
    puts: Any,
    start: int,
    now_ms: int,
) -> int:
    return frame_batch(stage, template, puts, start, now_ms)


@kernel
def _copy(
    buf: Any, source: Any, found: Any, kind: int, topic: Any, queue_id: int, origin: int, times: Any
) -> int:
    status = read_message(source, 0, get_i64(source, fmt.MESSAGE_OFFSET_AT), found, False)
    if status != GOOD:
        return -100 - status
    to = Destination(topic, 0, len(topic), queue_id)
    return frame_copy(buf, 5, source, found, to, CopySays(kind, origin, times[0], times[1]))


def template_of(topic: str, tag: str | None, more: dict[str, str]) -> Template:
    """The template of messages to a topic."""
    encoded = b"" if tag is None else encode_tag(tag)
    for name, value in more.items():
        encoded += encode_property(name.encode(), value.encode())
    tags_code = naive.java_hash(tag or "")
    return new_template(
        topic.encode(), tag=TAG, pending_row=7, change=-1, tags_code=tags_code, properties=encoded
    )


def staged(stage: Stage, at: int, size: int) -> bytes:
    return stage.buffer[at : at + size].tobytes()


@given(
    topic=TOPICS,
    body=st.binary(max_size=150),
    tag=st.none() | SOME_TEXT,
    key=st.none() | SOME_TEXT,
    more=properties(["a", "region"]),
    due_ms=TIMES | st.integers(0, 10**12),
    now_ms=TIMES,
    at=st.integers(0, 100),
)
def test_a_new_message(
    topic: str,
    body: bytes,
    tag: str | None,
    key: str | None,
    more: dict[str, str],
    due_ms: int,
    now_ms: int,
    at: int,
) -> None:
    assume(not set(TIMER_NAMES) & more.keys())
    extra = as_array((key or "").encode())
    times = np.array([due_ms, now_ms])
    template = template_of(topic, tag, more)
    size = int(_new(STAGE, at, template, as_array(body), extra, times))
    tags = {} if tag is None else {"TAGS": tag}
    keys = {} if key is None else {"KEYS": key}
    expected = naive.new_timer(topic, body, due_ms, now_ms, TAG, tags | more | keys)
    assert staged(STAGE, at, size) == naive.unsealed(expected)
    assert (STAGE.size[3], STAGE.row[3]) == (size, 0)
    assert (STAGE.pending_row[3], STAGE.pending_change[3], STAGE.keyed[3]) == (7, -1, 0)
    assert STAGE.tags_code[3] == naive.java_hash(tag or "")
    key_at = at + int(STAGE.key_at[3])
    assert staged(STAGE, key_at - 12, 24) == f"{due_ms:012X}{0:012X}".encode()


@given(
    topic=TOPICS,
    body=st.binary(max_size=150),
    key=st.none() | SOME_TEXT,
    level=st.integers(1, 32),
    delay_ms=st.integers(1, 10**9),
    now_ms=TIMES,
)
def test_a_new_message_of_a_level(
    topic: str, body: bytes, key: str | None, level: int, delay_ms: int, now_ms: int
) -> None:
    template = new_template(
        topic.encode(),
        tag=TAG,
        pending_row=7,
        change=1,
        tags_code=5,
        level=level,
        level_ms=delay_ms,
        level_row=9,
    )
    extra, times = as_array((key or "").encode()), np.array([level, now_ms])
    size = int(_new(STAGE, 0, template, as_array(body), extra, times))
    keys = {} if key is None else {"KEYS": key}
    expected = naive.new_at_level(topic, body, level, delay_ms, now_ms, TAG, keys)
    assert staged(STAGE, 0, size) == naive.unsealed(expected)
    assert (STAGE.size[3], STAGE.row[3]) == (size, 9)
    assert (STAGE.pending_row[3], STAGE.pending_change[3]) == (7, 1)
    assert STAGE.keyed[3] == bool(key)
    assert STAGE.tags_code[3] == now_ms + delay_ms


@pytest.mark.parametrize("with_keys", [False, True])
def test_batches_hold_all_messages_in_order(with_keys: bool) -> None:
    count = 3000
    bodies = [
        bytes([i % 256]) * (i % 97 + (40_000 if i in (0, 1, 900) else 0)) for i in range(count)
    ]
    keys = [f"key {i}".encode() if with_keys else b"" for i in range(count)]
    due_ms = np.arange(count) + 1_700_000_000_000
    template = template_of("orders", "red", {})
    held_bodies, held_keys = Binaries(bodies, "bodies"), Binaries(keys, "keys")
    extras = held_keys.pieces if with_keys else NO_PIECES
    puts = Puts(held_bodies.pieces, extras, due_ms)
    done = 0
    while done < count:
        framed = _batch(STAGE, template, puts, done, 1_600_000_000_000)
        assert 0 < framed <= STAGE_COUNT_MAX
        at = 0
        for i in range(framed):
            k = done + i
            more = {"TAGS": "red"} | ({"KEYS": keys[k].decode()} if with_keys else {})
            message = naive.new_timer(
                "orders", bodies[k], int(due_ms[k]), 1_600_000_000_000, TAG, more
            )
            size = int(STAGE.size[i])
            assert staged(STAGE, at, size) == naive.unsealed(message)
            at += size
        assert framed == 1 or at <= BATCH_BYTES
        done += framed


def copied(
    source: bytes, kind: int, topic: bytes, queue_id: int, origin: int, times: tuple[int, int]
) -> bytes | int:
    """Frame a copy into a buffer of just the room that is asked for."""
    room = bytes(5 + len(source) + len(topic) + COPY_EXTRA_BYTES)
    buf = TARGET.hold(room)
    held = SOURCE.hold(source + bytes(8))
    found = MessageParts()
    size = int(
        _copy(buf, held, found, kind, as_array(topic), queue_id, origin, np.array(times, np.int64))
    )
    assert not buf[:5].any()
    return buf[5 : 5 + size].tobytes() if size >= 0 else size


@given(
    message=messages() | usual_messages(),
    topic=TOPICS,
    times=st.tuples(TIMES, TIMES),
    offset=OFFSETS,
)
def test_copies(message: naive.Message, topic: str, times: tuple[int, int], offset: int) -> None:
    message.offset = offset
    message.properties.setdefault("REAL_TOPIC", topic)
    message.properties.setdefault("REAL_QID", "3")
    last = list(message.properties)[-1]
    if last == naive.CRC_NAME and not message.has_crc:  # it might be taken for a real one
        del message.properties[last]
    data = naive.encode_message(message)
    fired = naive.fired_copy(message, *times)
    got = copied(data, FIRED, fired.topic.encode(), fired.queue_id, offset, times)
    assert got == naive.unsealed(fired)
    for asked in (False, True):
        delivered = naive.delivered_copy(message, times[0], asked=asked)
        when = times[0], times[0] if asked else -1
        got = copied(data, DELIVERED, delivered.topic.encode(), delivered.queue_id, offset, when)
        assert got == naive.unsealed(delivered)
    rolled = naive.rolled_copy(message)
    source_topic = message.topic.encode("utf-8", "surrogateescape")
    got = copied(data, ROLLED, source_topic, message.queue_id, offset, times)
    assert got == naive.unsealed(rolled)


@pytest.mark.long
def test_a_copy_closes_the_last_value() -> None:
    source = naive.Message(
        "t", b"b", {"REAL_TOPIC": "r", "a": "b"}, has_crc=False, store_host=naive.BROKER_HOST
    )
    data = bytearray(naive.encode_message(source))[:-1]
    data[0:4] = len(data).to_bytes(4, "big")
    at = len(data) - len("REAL_TOPIC r a b") - 2
    data[at : at + 2] = len("REAL_TOPIC r a b").to_bytes(2, "big")
    rolled = naive.rolled_copy(source)
    got = copied(bytes(data), ROLLED, b"t", 0, 0, (1, 1))
    assert got == naive.unsealed(rolled)


def test_nothing_is_said_twice_after_many_copies() -> None:
    message = naive.new_timer("orders", b"b", 1_700_000_000_000, 1_600_000_000_000, TAG, {})
    sizes = []
    for _ in range(5):
        data = naive.encode_message(message)
        got = copied(data, ROLLED, fmt.TIMER_TOPIC, 0, 0, (1, 1))
        message = naive.rolled_copy(message)
        assert got == naive.unsealed(message)
        sizes.append(len(naive.encode_message(message)))
    assert len(set(sizes)) == 1


@pytest.mark.parametrize("spare", [120, 60, 0])
def test_properties_that_overflow_are_told(spare: int) -> None:
    pairs = {"REAL_TOPIC": "r", "REAL_QID": "0", "a": ""}
    fixed = len(naive.encode_properties(pairs)) + 20
    pairs["a"] = "x" * (naive.PROPERTIES_BYTES_MAX - fixed - spare)
    message = naive.Message("t", b"b", pairs)
    times = (1_700_000_000_000, 1_700_000_000_001)
    got = copied(naive.encode_message(message), FIRED, b"r", 0, 0, times)
    if spare == 120:
        assert got == naive.unsealed(naive.fired_copy(message, *times))
    else:
        assert got == -1
