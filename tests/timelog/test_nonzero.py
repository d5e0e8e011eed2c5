"""Where shared memory is not zero, against the obvious; also while another thread writes."""

import ctypes
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.timelog.files import nonzero
from timerstore.timelog.files.nonzero import (
    first_used,
    last_used,
    nonzero_places,
    used_before_gap,
    used_pages,
)


@given(data=st.binary(max_size=40), piece=st.integers(1, 9))
def test_places(data: bytes, piece: int) -> None:
    used = [i for i, byte in enumerate(data) if byte]
    shared = np.frombuffer(data, np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nonzero, "_PIECE_BYTES", piece)
        assert nonzero_places(shared).tolist() == used
        assert first_used(shared) == (used[0] if used else -1)
        assert last_used(shared) == (used[-1] if used else -1)


@given(
    parts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=9),
    piece=st.integers(1, 9),
    gap=st.integers(0, 6),
)
def test_a_gap(parts: list[tuple[int, int]], piece: int, gap: int) -> None:
    data = b"".join(bytes(zeros) + b"x" * used for zeros, used in parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nonzero, "_PIECE_BYTES", piece)
        found = used_before_gap(np.frombuffer(data, np.uint8), gap)
    place = data.find(bytes(gap + 1))
    assert found == (len(data) if place < 0 else place)


@given(
    pages=st.lists(st.sampled_from([b"", b"", b"x", b"\0" * 4_095 + b"x"]), max_size=6),
    start=st.integers(0, 25_000),
    piece=st.sampled_from([4_096, 8_192]),
)
def test_pages_that_are_used_alone_are_given(pages: list[bytes], start: int, piece: int) -> None:
    data = b"".join(page.ljust(4_096, b"\0") for page in pages)[:-3]
    view = np.frombuffer(data, np.uint8).copy()
    asked = [at for at in range(0, len(data), 4_096) if any(data[max(at, start) : at + 4_096])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nonzero, "_PIECE_BYTES", piece)
        found = list(used_pages(view, start))
    for each in found:
        view[each] = 0
    assert view.tobytes() == data[:start] + bytes(max(0, len(data) - start))
    assert [each.start // 4_096 * 4_096 for each in found] == asked


def test_while_another_thread_writes() -> None:
    shared, stop = np.zeros(1 << 16, np.int64), threading.Event()

    def write() -> None:  # as a kernel does, without the GIL
        while not stop.is_set():
            for value in (1, 0):
                ctypes.memset(shared.ctypes.data, value, shared.nbytes)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(100):
            assert len(nonzero_places(shared)) <= len(shared)
    finally:
        stop.set()
        thread.join()
