"""The blank against the bytes that a slow writer makes."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import as_array
from tests.kernels import kernel
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.blank import (
    BLANK_PLAIN,
    BLANK_SEALED,
    NO_BLANK,
    put_blank,
    read_blank,
)

OFFSETS = st.integers(0, 1 << 47)


@kernel
def _put(buf: Any, at: int, offset: int) -> None:
    put_blank(buf, at, offset)


@given(left=st.integers(8, 200), before=st.integers(0, 90), offset=OFFSETS, fill=st.integers(0, 1))
def test_what_is_written(left: int, before: int, offset: int, fill: int) -> None:
    segment = np.full(before + left, fill, np.uint8)
    _put(segment, before, offset)
    written = min(left, 20) if left >= fmt.SEALED_BLANK_BYTES else 8
    expected = naive.blank_message(left, offset)[:written]
    assert segment[before : before + written].tobytes() == expected
    assert (segment[before + written :] == fill).all()
    assert (segment[:before] == fill).all()
    assert read_blank(segment, before, offset) == BLANK_SEALED


@given(left=st.integers(fmt.SEALED_BLANK_BYTES, 99), offset=OFFSETS, other=OFFSETS, data=st.data())
def test_what_is_read(left: int, offset: int, other: int, data: st.DataObject) -> None:
    sealed = as_array(naive.blank_message(left, offset))
    assert (read_blank(sealed, 0, other) == BLANK_SEALED) == (other == offset)
    assert read_blank(sealed, 0, offset + 1) == NO_BLANK
    assert read_blank(as_array(naive.blank_message(left)), 0, offset) == BLANK_PLAIN
    at = data.draw(st.integers(0, 19))
    sealed[at] ^= data.draw(st.integers(1, 255))
    assert read_blank(sealed, 0, offset) == (NO_BLANK if at < 8 else BLANK_PLAIN)
    place = naive.blank_place(sealed.tobytes())
    assert place is None


def test_no_blank() -> None:
    for left in range(8, 60):
        assert read_blank(np.zeros(left, np.uint8), 0, 0) == NO_BLANK
        short = as_array(naive.blank_message(left))
        assert read_blank(short, 0, 5) == (BLANK_PLAIN if left >= 24 else BLANK_SEALED)
        assert read_blank(np.append(short, np.uint8(0)), 0, 5) == NO_BLANK
