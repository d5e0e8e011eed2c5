"""Where shared memory is not zero, against the obvious; also while another thread writes."""

import ctypes
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.timelog import nonzero
from timerstore.timelog.nonzero import first_used, last_used, nonzero_places


@given(data=st.binary(max_size=40), piece=st.integers(1, 9))
def test_places(data: bytes, piece: int) -> None:
    used = [i for i, byte in enumerate(data) if byte]
    shared = np.frombuffer(data, np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nonzero, "_PIECE_BYTES", piece)
        assert nonzero_places(shared).tolist() == used
        assert first_used(shared) == (used[0] if used else -1)
        assert last_used(shared) == (used[-1] if used else -1)


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
