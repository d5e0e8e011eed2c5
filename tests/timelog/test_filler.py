"""Fillers: sound messages of every size, which fit the ranges that they are cut for."""

from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.writing.compose import (
    BYTES_MAX,
    BYTES_MIN,
    BYTES_OF_ORIGIN,
    cut_range,
    filler,
)


@given(
    size=st.integers(BYTES_OF_ORIGIN, 3_000),
    offset=st.integers(0, 1 << 47),
    origin=st.one_of(st.just(-1), st.integers(0, 1 << 62)),
)
def test_a_filler_is_a_sound_message(size: int, offset: int, origin: int) -> None:
    data = filler(offset, size, queue_id=3, index=9, stored_ms=1_800_000_000_000, origin=origin)
    assert len(data) == size
    message = naive.decode_message(data, offset)
    assert naive.encode_message(message) == data and message.has_crc
    assert (message.topic.encode(), message.queue_id, message.queue_offset) == (
        *(fmt.SALVAGED_TOPIC, 3, 9),
    )
    assert (message.offset, message.stored_ms) == (offset, 1_800_000_000_000)
    assert message.properties.get("TIMER_ORIGIN") == (None if origin < 0 else str(origin))


def test_the_smallest_and_the_largest() -> None:
    for size in (BYTES_MIN, BYTES_MAX):
        data = filler(0, size, queue_id=0, index=0, stored_ms=0)
        assert naive.decode_message(data, 0).body.strip(b"\0") == b""


@given(
    length=st.one_of(st.integers(0, 900), st.integers(900, 5 * BYTES_MAX)),
    origin_count=st.integers(0, 4),
    to_end=st.booleans(),
)
def test_a_range_is_filled_exactly(length: int, origin_count: int, to_end: bool) -> None:
    sizes = cut_range(length, origin_count, to_end=to_end)
    if sizes is None:
        assert length < BYTES_MIN and not to_end
        return
    assert all(BYTES_MIN <= size <= BYTES_MAX for size in sizes)
    if to_end:
        assert not sizes or sum(sizes) == length - fmt.SEALED_BLANK_BYTES
        assert sizes or length < BYTES_MIN + fmt.SEALED_BLANK_BYTES
    else:
        assert sum(sizes) == length
