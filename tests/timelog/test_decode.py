"""Decoded messages against the slow decoder."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import as_array
from tests.strategies import messages
from timerstore.errors import CorruptStoreError
from timerstore.timelog.bytes.decode import decode_message, decode_properties


@given(message=messages(), behind=st.binary(min_size=8, max_size=30))
def test_decoded(message: naive.Message, behind: bytes) -> None:
    last = naive.encode_properties(message.properties)[-20:]
    assume(message.has_crc or not last.startswith(b"__CRC32#\x01"))
    data = naive.encode_message(message)
    got = decode_message(as_array(data + behind), message.offset)
    expected = dict(message.properties)
    if message.has_crc:
        expected[naive.CRC_NAME] = data[-11:-1].decode()
    assert got.properties == expected
    assert got.size == len(data)
    for name in ("offset", "topic", "body", "stored_ms", "born_ms", "queue_id", "reconsume_times"):
        assert getattr(got, name) == getattr(message, name), name
    assert got.queue_index == message.queue_offset


@given(message=messages(), place=st.integers(0, 5000), change=st.integers(1, 255))
def test_damage_is_named(message: naive.Message, place: int, change: int) -> None:
    message.has_crc = True
    data = bytearray(naive.encode_message(message))
    place %= len(data) - 20
    data[place] ^= change
    with pytest.raises(CorruptStoreError) as caught:
        decode_message(as_array(bytes(data) + bytes(8)), 12345)
    assert (caught.value.file, caught.value.offset) == ("commitlog", 12345)
    assert "timerstore verify" in str(caught.value)


@given(data=st.binary(max_size=80).map(lambda data: bytes(byte % 5 for byte in data)))
def test_any_properties(data: bytes) -> None:
    got, expected = decode_properties(data), naive.decode_properties(data)
    assert got.keys() >= expected.keys()
    assert all(not name or not got[name] for name in got.keys() - expected.keys())


def test_bytes_that_are_no_utf8_are_kept() -> None:
    raw = b"\xff\xfe"
    properties = decode_properties(b"k\x01" + raw + b"\x02")
    assert properties["k"].encode("utf-8", "surrogateescape") == raw
