"""A kernel's types, from its annotations."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import types

from timerstore.jit.record import (
    Bytes,
    Flags,
    ReadByteRows,
    ReadBytes,
    Rows,
    Words,
    read_only,
    record,
)
from timerstore.jit.recordtype import record_type, signature_of


@record
class Place:
    words: Words


def _some(
    place: Place, at: int, deep: bool, words: Words, rows: Rows, read: ReadBytes, flags: Flags
) -> int:
    return at


def _rows(read: ReadByteRows, data: Bytes) -> None:
    pass


class Pair(NamedTuple):
    at: int
    words: Words


def _pair(pair: Pair, deep: bool) -> None:
    pass


def _vague(at: int, found: Any) -> None:
    pass


def test_annotations_are_types() -> None:
    assert signature_of(_some) == (
        record_type(Place.layout),  # type: ignore[attr-defined]
        types.int64,
        types.boolean,
        types.Array(types.int64, 1, "C"),
        types.Array(types.int64, 2, "C"),
        types.Array(types.uint8, 1, "C", readonly=True),
        types.Array(types.boolean, 1, "C"),
    )
    assert signature_of(_rows) == (
        types.Array(types.uint8, 2, "C", readonly=True),
        types.Array(types.uint8, 1, "C"),
    )


def test_a_named_tuple_has_the_types_of_its_fields() -> None:
    pair, deep = signature_of(_pair)
    assert (pair.types, pair.instance_class, deep) == (
        (types.int64, types.Array(types.int64, 1, "C")),
        Pair,
        types.boolean,
    )


def test_one_that_says_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match=r"_vague\(found\): typing.Any names no type"):
        signature_of(_vague)


def test_a_view_to_read() -> None:
    data = np.arange(4, dtype=np.uint8)
    view = read_only(data)
    assert data.flags.writeable and not view.flags.writeable
    data[0] = 9
    assert view[0] == 9
