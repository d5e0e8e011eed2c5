"""Records: fields as a kernel sees them, nested ones, what a constructor refuses."""

from typing import Any

import numpy as np
import pytest

from timerstore.timelog.kernel import kernel
from timerstore.timelog.record import Bytes, Int32s, Words, record


@record
class Inner:
    """Two arrays."""

    small: Int32s
    data: Bytes


@record
class Outer:
    """A record within a record."""

    words: Words
    inner: Inner
    more: Words


@kernel
def _touch(outer: Any, out: Any) -> None:
    out[0] = len(outer.words)
    out[1] = outer.inner.small[1]
    out[2] = len(outer.inner.data)
    out[3] = outer.more[0]
    outer.words[1] = 5
    outer.inner.small[0] = -6
    outer.inner.data[2] = 7
    outer.more[0] = 8


def inner() -> Inner:
    return Inner(np.array([1, 2], np.int32), np.zeros(3, np.uint8))


def test_a_kernel_sees_all_fields() -> None:
    outer = Outer(np.zeros(2, np.int64), inner=inner(), more=np.array([9], np.int64))
    out = np.zeros(4, np.int64)
    _touch(outer, out)
    assert out.tolist() == [2, 2, 3, 9]
    assert outer.words.tolist() == [0, 5]
    assert outer.inner.small.tolist() == [-6, 2]
    assert outer.inner.data.tolist() == [0, 0, 7]
    assert outer.more.tolist() == [8]


def test_what_a_record_refuses() -> None:
    words = np.zeros(2, np.int64)
    with pytest.raises(TypeError, match="words, inner, more"):
        Outer(words, inner())  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Outer(words, inner(), words, other=words)  # type: ignore[call-arg]
    with pytest.raises(AssertionError):
        Outer(np.zeros(2, np.int32), inner(), words)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        Outer(np.zeros(4, np.int64)[::2], inner(), words)
