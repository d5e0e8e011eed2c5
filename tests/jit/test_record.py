"""Records: fields as a kernel sees them, nested ones, words, what is refused."""

from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import kernel
from timerstore.jit.kernel import INTERPRETED
from timerstore.jit.record import (
    ALONE,
    LINE,
    SHARED,
    Bytes,
    Int32s,
    NotTheOwnerError,
    Words,
    acting_as,
    add_to_word,
    exchange_word,
    observe,
    own,
    publish,
    record,
)


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


# --- words


@record
class Service:
    """Words of which some begin a cache line."""

    data: Bytes
    first: int = 7
    second: int = 0
    third: Annotated[int, LINE] = -1
    asked: Annotated[int, LINE, SHARED] = 0


@record
class Services:
    """Records with words within a record."""

    words: Words
    left: Service
    right: Service
    count: int = 0


def service() -> Service:
    return Service(np.zeros(2, np.uint8))


def services() -> Services:
    return Services(np.zeros(3, np.int64), service(), service())


@kernel
def _change(all_of_them: Services, value: int) -> int:
    right = all_of_them.right
    right.first = value
    right.first += 2
    all_of_them.left.third -= value
    all_of_them.count = right.first + all_of_them.left.first
    right.data[1] = 5
    return all_of_them.left.third


@kernel
def _atomically(each: Service, value: int, out: Words) -> None:
    publish(each, "second", value)
    out[0] = observe(each, "second")
    out[1] = exchange_word(each, "asked", value)
    out[2] = add_to_word(each, "asked", 3)


def test_kernels_and_python_write_the_same_words() -> None:
    made = services()
    assert (made.right.first, made.left.third, made.count) == (7, -1, 0)
    assert _change(made, 10) == -11
    assert (made.right.first, made.left.first, made.left.third, made.count) == (12, 7, -11, 19)
    assert made.right.data.tolist() == [0, 5] and made.words.tolist() == [0, 0, 0]
    made.left.first += 30
    assert type(made.left.first) is int
    assert _change(made, 1) == -12
    assert made.count == 3 + 37


@given(st.integers(-(1 << 62), 1 << 62), st.integers(-(1 << 62), 1 << 62))
def test_atomic_access(before: int, value: int) -> None:
    each, out = service(), np.zeros(3, np.int64)
    each.asked = before
    _atomically(each, value, out)
    assert out.tolist() == [value, before, value]
    assert (each.second, each.asked, each.first, each.third) == (value, value + 3, 7, -1)


def test_words_of_different_writers_lie_in_different_cache_lines() -> None:
    made = services()

    def line(each: Any, index: int) -> int:
        return int(each.block[0]) // 64 + index // 8

    # In the order of their declaration: first and second share a line, the others have their own.
    for each in (made.left, made.right):
        assert int(each.block[0]) % 64 == 0 and each.cells.nbytes == 3 * 64
        assert [each.cells[i] for i in (0, 1, 8, 16)] == [7, 0, -1, 0]
    lines = {line(each, i) for each in (made.left, made.right) for i in range(24)}
    assert len(lines) == 6 and line(made, 0) not in lines


def test_words_may_be_given_by_name() -> None:
    each = Service(np.zeros(1, np.uint8), third=4)
    assert (each.first, each.third) == (7, 4)
    with pytest.raises(TypeError, match="first, second"):
        Service(np.zeros(1, np.uint8), fourth=4)  # type: ignore[call-arg]


@kernel
def _assign_shared(each: Service) -> None:
    each.asked = 1


@kernel
def _assign_array(each: Service, data: Bytes) -> None:
    each.data = data


def test_what_kernels_cannot_assign() -> None:
    if INTERPRETED:
        return
    with pytest.raises(Exception, match="may assign"):
        _assign_shared(service())
    with pytest.raises(Exception, match="may assign"):
        _assign_array(service(), np.zeros(2, np.uint8))


def test_interpreted_only_owners_write() -> None:
    made = services()
    own(made.left, 3, 4)
    own(made.right, 5)
    with acting_as(3):
        made.left.third = 1
        made.right.asked = 2  # shared
        made.count = 3  # of nobody in particular
        if INTERPRETED:
            with pytest.raises(NotTheOwnerError, match="Service"):
                made.right.first = 4
            with pytest.raises(NotTheOwnerError):
                _change(made, 1)
            with pytest.raises(NotTheOwnerError):
                publish(made.right, "second", 1)
    with acting_as(ALONE):
        made.left.first = made.right.first = 6
    if INTERPRETED:
        with pytest.raises(NotTheOwnerError):
            made.left.first = 1
    assert (made.left.first, made.left.third, made.right.first) == (6, 1, 6)
