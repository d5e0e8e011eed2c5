"""Damaged units: what they hide is found in the timer log, once, and fires."""

from collections.abc import Iterable

import pytest

from tests import naive
from tests.services.alone import DEQUEUE_GET, PRECISION_MS, START_MS, START_SLOT, Alone, timer
from timerstore.jit.record import acting_as
from timerstore.services.damage.scrub import scan_slots
from timerstore.services.engine.rebuild import TIMERS, read_mark
from timerstore.services.running.runner import provide
from timerstore.services.world import needs
from timerstore.services.world.state import CLEANING
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.disk import Disk, MappedFile
from timerstore.wheel.near import CHUNK_WORDS, NONE


def filled(alone: Alone, hops: int = 0) -> dict[int, naive.Unit]:
    """Twenty timers in two slots, in turns; return their units.

    Behind each third of them so many units of hops, as if it had hopped into a third slot.
    """
    for i in range(20):
        slot = START_SLOT + 1 + i % 2
        placed = alone.put(timer(alone.tag, "t", slot * PRECISION_MS + i))
        unit = naive.Unit(
            *(52, -1, 1, START_MS, slot * PRECISION_MS + i - START_MS),
            *(placed.offset, placed.size_bytes, naive.java_hash("t"), 1, 0),
        )
        alone.link(slot, unit)
        for _ in range(hops if i % 3 == 0 else 0):
            later = 2 * PRECISION_MS + unit.delta_ms
            alone.link(slot + 2, unit._replace(magic=1 | fmt.UNIT_HOP, delta_ms=later))
    alone.set_cursors(linked=20, got=20)
    return alone.units().units


def damage(alone: Alone, offset: int) -> None:
    """Turn a byte of a unit over."""
    number, position = divmod(offset, alone.engine.timerlog.segment_bytes)
    alone.engine.timerlog.ensure(number).view[position + 30] ^= 0xFF


def never() -> bool:
    """Nothing has to be waited for."""
    raise AssertionError


def play(alone: Alone, now_ms: int) -> list[int]:
    """Claim and take all that is due by `now_ms`; return the messages in their order."""
    while alone.step(now_ms) or alone.need[0]:
        if alone.need[0]:
            alone.meet()
    return [row[0] for row in alone.since("dequeue", 0)]


@pytest.mark.parametrize("hops", [0, 1, 2])
@pytest.mark.parametrize("places", [(0,), (1,), (7,), (18,), (19,), range(7, 10), range(20)])
def test_what_a_damaged_unit_hides_is_found(places: Iterable[int], hops: int) -> None:
    """First or last of its slot, or of its segment; what hides nothing, or all."""
    with Alone(DEQUEUE_GET) as alone:
        before = filled(alone, hops)
        plain = [o for o, unit in sorted(before.items()) if not unit.magic & fmt.UNIT_HOP]
        damaged = [plain[place] for place in places]
        for offset in damaged:
            damage(alone, offset)
        now_ms = START_MS + 3 * PRECISION_MS - 1
        early = play(alone, now_ms)
        cut = alone.cursor("walked")
        assert cut <= START_SLOT + 2 and alone.cursor("claimed") > cut
        scan_slots(alone.engine, never)
        assert alone.cursor("walked") == alone.cursor("claimed")
        fired = play(alone, now_ms)
        assert fired[: len(early)] == early and len(set(fired)) == len(fired)
        assert set(fired) == {before[o].message_offset for o in plain if o not in damaged}
        assert read_mark(Disk().read, alone.path) == {TIMERS}
        places_named = {(p.file, p.offset) for p in alone.engine.damage.places}
        assert places_named == {("timerlog", offset) for offset in damaged}


def test_the_scan_goes_on_where_it_was_left() -> None:
    """What it has claimed is not claimed again."""
    with Alone(DEQUEUE_GET) as alone:
        before = filled(alone)
        damage(alone, sorted(before)[-1])
        now_ms = START_MS + 3 * PRECISION_MS - 1
        play(alone, now_ms)
        near = alone.engine.near
        used, near.used, near.free = near.used, len(near.chunks) // CHUNK_WORDS - 3, NONE
        scan_slots(alone.engine, lambda: False)
        assert alone.cursor("walked") < alone.cursor("claimed") and alone.need == ("", 0)
        near.used = used
        scan_slots(alone.engine, never)
        fired = play(alone, now_ms)
        assert sorted(fired) == [before[o].message_offset for o in sorted(before)[:-1]]


def test_a_delete_waits_for_what_is_hidden() -> None:
    """Else its timer would fire, though it was cancelled."""
    with Alone(DEQUEUE_GET) as alone:
        before = filled(alone)
        slot = START_SLOT + 3
        placed = alone.put(timer(alone.tag, "t", slot * PRECISION_MS))
        magic = 1 | fmt.UNIT_DELETE
        delta_ms, topic_hash = slot * PRECISION_MS - START_MS, naive.java_hash("t")
        where = placed.offset, placed.size_bytes
        alone.link(slot, naive.Unit(52, -1, magic, START_MS, delta_ms, *where, topic_hash, 1, 0))
        alone.set_cursors(linked=21, got=21)
        damage(alone, sorted(before)[-1])
        now_ms = START_MS + 10 * PRECISION_MS
        assert placed.offset not in play(alone, now_ms)
        scan_slots(alone.engine, never)
        assert play(alone, now_ms)[-1] == placed.offset


def test_a_segment_that_retention_removes_meanwhile_is_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was mapped no more when a chain led there, and is gone when it is to be mapped."""
    with Alone(DEQUEUE_GET) as alone:
        filled(alone)
        log, thread = alone.engine.timerlog, alone.thread(DEQUEUE_GET)
        existing = log.existing

        def remove_first(number: int) -> MappedFile:
            with acting_as(CLEANING):
                alone.engine.world.cleaning.timerlog_start = log.segment_bytes
            log.detach_before(log.segment_bytes)
            return existing(number)

        monkeypatch.setattr(log, "existing", remove_first)
        thread.need, thread.need_offset = needs.TIMERLOG_SEGMENT, 52
        provide(alone.engine, DEQUEUE_GET)
        assert not alone.engine.damage.places and not alone.engine.wanted.indexes
