"""Passing by what is lost: named once, taken off the count once."""

import pytest

from tests import naive
from tests.services.alone import (
    DEQUEUE_PUT,
    START_MS,
    START_SLOT,
    Alone,
    timer,
)
from tests.wheel_checks import check_cancelled
from timerstore.errors import StoreFullError
from timerstore.jit.record import Words
from timerstore.services.world.state import INFO_LEVEL, INFO_UNLINKED
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import IDENTITY_HELD, IDENTITY_OURS

PLAIN = START_SLOT % 8 << 8 | fmt.UNIT_PLAIN


def lose(alone: Alone, message: int, info: int) -> None:
    """Have the service pass a message by, and answer its need."""
    alone.lose(message, info)
    alone.meet()
    assert alone.lost() == [] and alone.need == ("", 0)


@pytest.mark.parametrize("info", [PLAIN, INFO_UNLINKED, INFO_LEVEL])
def test_it_is_taken_off_its_topics_count_once(info: int) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        row = alone.row("orders")
        placed = alone.put(timer(alone.tag, "orders", START_MS))
        alone.spoil(placed.offset + 88)  # its body: its parts can still be told
        for _ in range(2):
            lose(alone, placed.offset, info)
        in_levels = info == INFO_LEVEL
        assert alone.pending(row, in_levels=in_levels) == -1
        assert alone.pending(row, in_levels=not in_levels) == 0
        assert [(p.file, p.offset) for p in alone.engine.damage.places] == [
            ("commitlog", placed.offset)
        ]
        assert alone.engine.unattributed_count == 0 and alone.unreadable_count == 2


def test_what_was_cancelled_was_counted_then() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        row = alone.row("orders")
        placed = alone.put(timer(alone.tag, "orders", START_MS))
        alone.use_sets([(-1, placed.offset)])
        alone.spoil(placed.offset + 88)
        lose(alone, placed.offset, PLAIN)
        assert alone.pending(row) == 0 and len(alone.engine.damage.places) == 1


def test_a_delete_is_no_timer() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        row = alone.row("orders")
        placed = alone.put(timer(alone.tag, "orders", START_MS))
        lose(alone, placed.offset, PLAIN | fmt.UNIT_DELETE)
        assert alone.pending(row) == 0


def test_where_nothing_can_be_read_its_unit_says_which_topic() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        row = alone.row("orders")
        alone.row("others")
        placed = alone.put(timer(alone.tag, "orders", START_MS))
        for message, topic in ((7, "others"), (placed.offset, "orders"), (9, "others")):
            unit = naive.Unit(52, -1, 1, START_MS, 0, message, 300, naive.java_hash(topic), 1, 0)
            alone.link(START_SLOT, unit)
        alone.set_cursors(claimed=START_SLOT + 1)
        alone.spoil(placed.offset, 60)
        lose(alone, placed.offset, PLAIN)
        assert alone.pending(row) == -1 and alone.engine.unattributed_count == 0


def test_what_nobody_can_tell_counts_for_the_store_alone() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        placed = alone.put(timer(alone.tag, "orders", START_MS))
        alone.spoil(placed.offset, 60)
        lose(alone, placed.offset, PLAIN)
        lose(alone, -77, INFO_UNLINKED)
        assert alone.engine.unattributed_count == 2 and alone.engine.pending_count() == -2


def test_what_a_broker_removed_is_no_damage() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        for _ in range(20):
            alone.put(timer(alone.tag, "orders", START_MS))
        log = alone.engine.commitlog
        log.detach_before(log.segment_bytes)
        log.remove_detached()
        lose(alone, 0, PLAIN)
        assert alone.unreadable_count == 0 and alone.engine.damage.places == []


def test_while_recovery_counts_it_is_left_out_of_the_count() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        row, placed = alone.row("orders"), alone.put(timer(alone.tag, "orders", START_MS))
        alone.engine.count_lost = False
        lose(alone, placed.offset, PLAIN)
        assert alone.engine.uncounted == {placed.offset}
        alone.engine.count_lost = True
        lose(alone, placed.offset, PLAIN)
        assert alone.pending(row) == 0 and alone.unreadable_count == 1


@pytest.mark.parametrize("high", [IDENTITY_OURS, IDENTITY_HELD])
@pytest.mark.parametrize("count_lost", [True, False])
def test_a_cancelled_level_message_leaves_the_set(high: int, count_lost: bool) -> None:
    """Else a delete that is held for it would keep the commit log until the store is reopened."""
    with Alone(DEQUEUE_PUT) as alone:
        row = alone.row("orders")
        placed = alone.put(naive.new_at_level("orders", b"b", 1, 0, START_MS, alone.tag, {}))
        alone.use_sets([(high, placed.offset | fmt.LEVEL_MARK)], held_from=7)
        alone.spoil(placed.offset + 88)
        alone.engine.count_lost = count_lost
        lose(alone, placed.offset, INFO_LEVEL)
        assert alone.pending(row, in_levels=True) == 0
        assert alone.cancelled() == set()
        check_cancelled(alone.engine.cancelled)


def raise_full(low: Words) -> None:
    raise StoreFullError("full")


def test_a_full_disk_counts_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        placed = alone.put(timer(alone.tag, "orders", START_MS))
        alone.engine.count_lost = False
        alone.lose(placed.offset, PLAIN)
        with monkeypatch.context() as full:
            full.setattr(alone.engine.cancelled, "remove_ours", raise_full)
            with pytest.raises(StoreFullError):
                alone.meet()
        lose(alone, placed.offset, PLAIN)
        assert alone.unreadable_count == 1
