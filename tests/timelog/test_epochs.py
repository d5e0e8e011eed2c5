"""What is taken out of a table lives just as long as anybody may look at it."""

import contextlib
import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.interrupting import Interrupt, interrupted
from timerstore.timelog.files.blocks import Epoch, Epochs
from timerstore.timelog.files.segmenttable import new_segment_table

pytestmark = pytest.mark.long


class Map:
    """What is taken out."""


ACTS = st.lists(
    st.one_of(
        st.just(("begin", 0)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.just(("drop", 0)),
        st.just(("seal", 0)),
        st.tuples(st.just("release"), st.integers(0, 9)),
    ),
    max_size=40,
)


@given(ACTS)
def test_each_reader_keeps_what_was_dropped_since_it_began(acts: list[tuple[str, int]]) -> None:
    """Beside a list of who may look at what; whoever sealed may let go what was dropped before."""
    epochs = Epochs(new_segment_table(1024))
    readers: list[Epoch] = []
    seen: list[set[int]] = []  # what each reader may look at
    dropped: list[weakref.ref[Map]] = []
    unsealed, sealed = set[int](), set[int]()
    asked: list[tuple[list[Any], set[int]]] = []
    for act, which in acts:
        if act == "begin":
            readers.append(epochs.now)
            seen.append(set())
            readers[-1].__enter__()
        elif act == "end" and readers:
            seen.pop(which % len(readers))
            readers.pop(which % len(readers)).__exit__()
        elif act == "drop":
            taken_out = Map()
            dropped.append(weakref.ref(taken_out))
            epochs.hold(taken_out)
            unsealed.add(len(dropped) - 1)
            for each in seen:
                each.add(len(dropped) - 1)
            del taken_out
        elif act == "seal":
            sealed |= unsealed
            unsealed = set()
            asked.append((epochs.seal(), set(sealed)))
        elif act == "release" and asked:
            ended, gone = asked.pop(which % len(asked))
            epochs.release(ended)
            sealed -= gone
            del ended
        kept = (unsealed | sealed).union(*seen)
        kept |= {each for _, gone in asked for each in gone}  # the test itself holds these
        alive = {number for number, each in enumerate(dropped) if each() is not None}
        assert kept <= alive
    while readers:
        readers.pop().__exit__()
    asked.clear()
    epochs.release(epochs.seal())
    assert all(each() is None for each in dropped)


@pytest.mark.parametrize("line", range(12))
def test_a_call_that_a_signal_ends_lets_nothing_go(line: int) -> None:
    """Whatever line it ends at: what was dropped is held until a whole seal and release."""
    epochs = Epochs(new_segment_table(1024))
    taken_out = Map()
    held = weakref.ref(taken_out)
    epochs.hold(taken_out)
    del taken_out
    with contextlib.suppress(Interrupt), interrupted(line, "blocks.py"):
        epochs.seal()
    assert held() is not None
    with epochs.now:
        later = Map()
        epochs.hold(later)
        held_later = weakref.ref(later)
        del later
        epochs.release(epochs.seal())
        assert held_later() is not None
    assert held() is None and held_later() is None


@pytest.mark.parametrize("line", range(12))
def test_a_reader_that_a_signal_ends_ends_with_its_frame(line: int) -> None:
    epochs, held = Epochs(new_segment_table(1024)), list[weakref.ref[Map]]()

    def read() -> None:
        with epochs.now:
            taken_out = Map()
            held.append(weakref.ref(taken_out))
            epochs.hold(taken_out)

    with contextlib.suppress(Interrupt), interrupted(line, "blocks.py"):
        read()
    epochs.release(epochs.seal())
    gc.collect()
    assert all(each() is None for each in held)


def test_many_epochs_go_at_once() -> None:
    """A reader that stays long holds a chain of them."""
    epochs = Epochs(new_segment_table(1024))
    with epochs.now:
        first = weakref.ref(epochs.now)
        for _ in range(200_000):
            epochs.hold(None)
            epochs.release(epochs.seal())
        assert first() is not None
    assert first() is None
