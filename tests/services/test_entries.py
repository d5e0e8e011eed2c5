"""A queue's entry that is damaged is told from one whose message is."""

import pytest

from tests import naive
from tests.services.alone import ENQUEUE_GET, START_MS, Alone, timer
from timerstore.errors import CorruptStoreError
from timerstore.services.damage.pass_by import find_timer_message, is_damaged
from timerstore.services.engine.rebuild import QUEUES

FILE = f"consumequeue/{naive.TIMER_TOPIC}/0"


def filled(alone: Alone) -> list[naive.Entry]:
    """Thirty timers, a third of which are of another queue; return the timer queue's entries."""
    for i in range(30):
        other = naive.Message("other", b"x" * i, {"TAGS": "a"})
        alone.put(timer(alone.tag, "t", START_MS + i) if i % 3 else other)
    return alone.entries(0)


WRONG = {
    "it points behind the log": lambda e, every: e._replace(message_offset=1 << 40),
    "it points before it": lambda e, every: e._replace(message_offset=-1),
    "it is empty": lambda e, every: naive.Entry(0, 0, 0),
    "it points to another message": lambda e, every: every[7],
    "it points into a message": lambda e, every: e._replace(message_offset=e.message_offset + 9),
    "it says another size": lambda e, every: e._replace(message_bytes=e.message_bytes + 1),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("index", [0, 1, 10, 19])
def test_an_entry_that_is_wrong_is_damaged(index: int, wrong: str) -> None:
    with Alone(ENQUEUE_GET) as alone:
        before = filled(alone)
        alone.write_entry(0, index, WRONG[wrong](before[index], before))
        assert [i for i in range(20) if is_damaged(alone.engine, 0, i)] == [index]


@pytest.mark.parametrize("count", [4, 40, 80, 88])
def test_an_entry_whose_message_is_damaged_is_not(count: int) -> None:
    """Neither its own message's, nor any beside it."""
    with Alone(ENQUEUE_GET) as alone:
        for entry in filled(alone)[5:7]:
            alone.spoil(entry.message_offset, count)
        alone.spoil(alone.entries(0)[19].message_offset, count)  # the log's last
        assert not any(is_damaged(alone.engine, 0, i) for i in range(20))


def test_enqueue_get_finds_the_message_of_a_damaged_entry() -> None:
    """A message that is damaged is passed by."""
    with Alone(ENQUEUE_GET) as alone:
        before = filled(alone)
        alone.write_entry(0, 3, before[3]._replace(message_offset=before[7].message_offset))
        alone.write_entry(0, 19, before[19]._replace(message_offset=-1))
        alone.spoil(before[5].message_offset, 80)
        for _ in range(20):
            alone.step(START_MS)
            if alone.need[0]:
                alone.meet()
        assert (alone.cursor("got"), alone.need) == (20, ("", 0))
        read = [row[2] for row in alone.since("enqueue", 0)]
        assert read == [e.message_offset for e in before]
        assert alone.unreadable_count == 1
        places = {(place.file, place.offset) for place in alone.engine.damage.places}
        assert places == {(FILE, 60), (FILE, 380), ("commitlog", before[5].message_offset)}
        assert alone.engine.wanted.indexes == {QUEUES}


def test_a_damaged_entry_whose_message_is_gone_is_passed_by() -> None:
    """The search ends at the next message of the queue."""
    with Alone(ENQUEUE_GET) as alone:
        before = filled(alone)
        alone.spoil(before[5].message_offset, 80)
        alone.write_entry(0, 5, before[5]._replace(message_offset=before[7].message_offset))
        find_timer_message(alone.engine, 5)
        assert alone.cursor("pass_index") == 5


def test_an_opening_does_not_pass_a_damaged_entry_by() -> None:
    with Alone(ENQUEUE_GET) as alone:
        before = filled(alone)
        alone.write_entry(0, 3, before[3]._replace(message_offset=1 << 40))
        alone.spoil(before[5].message_offset, 80)
        alone.engine.world.settings.recovering = 1
        find_timer_message(alone.engine, 5)
        assert alone.cursor("pass_index") == 5
        with pytest.raises(CorruptStoreError, match="not that of the message"):
            find_timer_message(alone.engine, 3)
