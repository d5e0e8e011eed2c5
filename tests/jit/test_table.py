"""What kernels receive of tables of columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import kernel
from timerstore.jit.kernel import INTERPRETED
from timerstore.jit.record import Table, Words, record


@record
class Pairs(Table):
    """Two columns."""

    first: Words
    second: Words


@record
class Triples(Pairs):
    """Those, with a third."""

    third: Words


@kernel
def _fill(pairs: Pairs, start: int) -> int:
    """Write rows from `start` on; return the sum of what stood there."""
    total = 0
    for i in range(len(pairs.first)):
        total += pairs.first[i] + pairs.second[i]
        pairs.first[i] = start + i
        pairs.second[i] = -start - i
    return total


@given(st.integers(0, 70), st.integers(0, 70), st.integers(0, 70))
def test_a_slice_is_what_it_is_of(count: int, low: int, high: int) -> None:
    pairs, expected = Pairs.room(count), list(range(count))
    assert _fill(pairs, 0) == 0 and len(pairs) == count
    part = pairs[low:high]
    assert part.first.tolist() == expected[low:high] and len(part) == len(expected[low:high])
    assert _fill(part, 1_000) == 0
    expected[low:high] = range(1_000, 1_000 + len(part))
    assert pairs.first.tolist() == expected
    assert (pairs.first == -pairs.second).all()


class _StoppedError(Exception):
    """What a signal's handler raises."""


if not INTERPRETED:

    def test_what_ends_the_making_of_what_a_kernel_receives_is_raised(
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The kernel is not called: it would take what is not there for an address."""

        def stopped(table: Pairs, name: str) -> None:
            raise _StoppedError

        pairs = Pairs.room(4)
        part = pairs[1:3]
        assert _fill(part, 7) == 0  # it is compiled, and has what it receives
        part = pairs[:1]
        with monkeypatch.context() as patch:
            patch.setattr(Pairs, "__getattr__", stopped, raising=False)
            with pytest.raises(_StoppedError):
                _fill(part, 9)
        assert pairs.first.tolist() == [0, 7, 8, 0]
        assert _fill(part, 9) == 0


def test_chosen_rows_are_copies() -> None:
    triples = Triples.room(4)
    triples.first[:], triples.third[:] = [1, 2, 3, 4], [5, 6, 7, 8]
    for which in (triples.first > 2, np.array([2, 3])):
        chosen = triples[which]
        assert chosen.third.tolist() == [7, 8]
        assert _fill(chosen, 9) == 7
        assert chosen.first.tolist() == [9, 10] and triples.first.tolist() == [1, 2, 3, 4]


def test_rows_are_replaced_and_looked_at_one_by_one() -> None:
    pairs, others = Pairs.room(3), Pairs.room(2)
    others.first[:], others.second[:] = [1, 2], [10, 20]
    pairs[np.array([2, 0])] = others
    assert [(int(each.first), int(each.second)) for each in pairs] == [(2, 20), (0, 0), (1, 10)]
    assert int(pairs[2].second) == 10


def test_a_table_that_extends_another_begins_with_its_columns() -> None:
    assert Pairs.columns() == ["first", "second"]
    assert Triples.columns() == ["first", "second", "third"]


def test_columns_share_no_place_of_a_cache() -> None:
    triples = Triples.room(1 << 16)
    places = [column.ctypes.data % 4096 // 64 for column in (triples.first, triples.second)]
    assert places[0] != places[1]
