"""What a record says is read as it was written; what was not written by us says nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.writing.compose import AckRecord, compose_record, read_record

INTS = st.integers(0, 1 << 60)


@given(record=st.builds(AckRecord, st.text(), st.text(), INTS, INTS, INTS))
def test_written_and_read(record: AckRecord) -> None:
    message = compose_record(record, 1)
    end = message.index(b"]", fmt.MESSAGE_HEADER_BYTES) + 1
    bodies = [message[fmt.MESSAGE_HEADER_BYTES : at] for at in range(end, len(message))]
    assert record in [read_record(body) for body in bodies]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"x", b"[]", b"{}", b"1", b"null", b"\xff"),
        *(b'["g", "t", 0, 1]', b'["g", "t", 0, 1, -1]', b'["g", "t", 0, 1, 1, 1]'),
        *(b'["g", 1, 0, 1, 1]', b'["g", "t", 0, 1, true]'),
    ],
)
def test_what_is_none(body: bytes) -> None:
    assert read_record(body) is None
