"""Derived files: what one close wrote holds for that close only, and only if no bit is another."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timerstore.timelog.files.checkpoint import Stamp, read_derived, write_derived
from timerstore.timelog.files.disk import Disk

PAIR = np.dtype([("a", "<i8"), ("b", "u1")])
INT64S = st.integers(-(1 << 63), (1 << 63) - 1)
STAMPS = st.builds(Stamp, INT64S, INT64S, INT64S)
ARRAYS = st.tuples(
    st.lists(INT64S, max_size=4).map(lambda rows: np.array(rows, "<i8")),
    st.lists(st.tuples(INT64S, st.integers(0, 255)), max_size=4).map(lambda r: np.array(r, PAIR)),
)
KINDS = np.dtype("<i8"), PAIR


def read(data: bytes, stamp: Stamp, *kinds: np.dtype) -> list[bytes] | None:
    """What is read of a file with these bytes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "f"
        file.write_bytes(data)
        arrays = read_derived(Disk(), file, stamp, *kinds)
        return None if arrays is None else [each.tobytes() for each in arrays]


@given(stamp=STAMPS, other=STAMPS, arrays=ARRAYS, data=st.data())
def test_it_holds_for_its_close_alone(stamp: Stamp, other: Stamp, arrays, data) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config" / "f"
        file.parent.mkdir()
        assert read_derived(Disk(), file, stamp, *KINDS) is None
        write_derived(Disk(), file, stamp, *arrays)
        kept = file.read_bytes()
    assert read(kept, stamp, *KINDS) == [each.tobytes() for each in arrays]
    assert other == stamp or read(kept, other, *KINDS) is None
    place, bit = data.draw(st.integers(0, len(kept) - 1)), data.draw(st.integers(0, 7))
    flipped = kept[:place] + bytes([kept[place] ^ 1 << bit]) + kept[place + 1 :]
    assert read(flipped, stamp, *KINDS) is None
    assert read(kept[:place], stamp, *KINDS) is None
    assert read(kept + b"\0", stamp, *KINDS) is None


def test_other_arrays_than_were_written() -> None:
    """Lengths that are no whole number of elements; a folder in its place."""
    with tempfile.TemporaryDirectory() as folder:
        file, stamp = Path(folder) / "f", Stamp(1, 2, 3)
        write_derived(Disk(), file, stamp, np.zeros(10, np.uint8))
        assert read_derived(Disk(), file, stamp, np.dtype("<i8")) is None
        assert read_derived(Disk(), Path(folder), stamp, np.dtype("u1")) is None
