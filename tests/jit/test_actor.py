"""Who acts: one for each thread, for a block or from a kernel's line on."""

import threading

import pytest

from tests.kernels import kernel
from timerstore.jit.kernel import INTERPRETED
from timerstore.jit.record import ALONE, CALLER, act_as, acting_as, actor, may_write


@kernel
def _step(service: int) -> int:
    before = act_as(service)
    act_as(before)
    return before


def test_a_block_says_who_acts() -> None:
    assert actor() == CALLER
    with acting_as(3):
        assert actor() == 3 and may_write(frozenset({2, 3})) and not may_write(frozenset({2}))
        with acting_as(ALONE):
            assert may_write(frozenset())
        assert actor() == 3
        with pytest.raises(KeyError), acting_as(4):
            raise KeyError
        assert actor() == 3
    assert actor() == CALLER and not may_write(frozenset())


def test_each_thread_acts_for_itself() -> None:
    seen = []
    with acting_as(3):
        thread = threading.Thread(target=lambda: seen.append(actor()))
        thread.start()
        thread.join()
    assert seen == [CALLER]


def test_a_kernel_says_who_acts() -> None:
    with acting_as(5):
        before = _step(2)
        assert actor() == 5
    if INTERPRETED:
        assert before == 5
