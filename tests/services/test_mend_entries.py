"""A queue's entry that is not its message's is written again from the log."""

import pytest

from tests import naive
from tests.services.alone import ENQUEUE_GET, START_MS, Alone, timer
from timerstore.services.damage import mend_entries
from timerstore.services.damage.mend_entries import is_sound, mend_entry, mend_timer_entry
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes import format as fmt


def filled(alone: Alone) -> list[naive.Entry]:
    """Thirty timers, a third of which are of another queue; return the timer queue's entries."""
    for i in range(30):
        other = naive.Message("other", b"x" * i, {"TAGS": "a"})
        alone.put(timer(alone.tag, "t", START_MS + i) if i % 3 else other)
    return alone.entries(0)


@pytest.mark.parametrize("index", [0, 1, 10, 19])
@pytest.mark.parametrize("beside", [False, True])
def test_it_is_found_between_its_neighbours(index: int, beside: bool) -> None:
    """Also where a neighbour's entry is damaged as well."""
    with Alone(ENQUEUE_GET) as alone:
        before = filled(alone)
        damaged = {index, min(19, index + 1)} if beside else {index}
        for each in damaged:
            alone.write_entry(0, each, before[each]._replace(message_offset=1 << 40))
        assert all(mend_entry(alone.engine, 0, each) for each in sorted(damaged))
        assert alone.entries(0) == before
        places = {(place.file, place.offset) for place in alone.engine.damage.places}
        assert places == {(f"consumequeue/{naive.TIMER_TOPIC}/0", 20 * each) for each in damaged}


@pytest.mark.parametrize("leads", ["to its message", "nowhere"])
def test_an_entry_whose_message_is_lost_is_passed_by(leads: str) -> None:
    with Alone(ENQUEUE_GET) as alone:
        before = filled(alone)
        alone.spoil(before[4].message_offset, 80)
        if leads == "nowhere":
            alone.write_entry(0, 4, before[4]._replace(message_offset=1 << 40))
        mend_timer_entry(alone.engine, 4)
        assert alone.cursor("pass_index") == 4
        named = [place.file for place in alone.engine.damage.places]
        assert named == (
            [] if leads == "to its message" else [f"consumequeue/{naive.TIMER_TOPIC}/0"]
        )
        assert [entry for i, entry in enumerate(alone.entries(0)) if i != 4] == (
            before[:4] + before[5:]
        )


def test_enqueue_get_goes_on_behind_it() -> None:
    with Alone(ENQUEUE_GET) as alone:
        before = filled(alone)
        alone.write_entry(0, 3, before[3]._replace(message_offset=before[7].message_offset))
        alone.spoil(before[5].message_offset, 80)
        for _ in range(20):
            alone.step(START_MS)
            if alone.need[0]:
                alone.meet()
        assert (alone.cursor("got"), alone.need) == (20, ("", 0))
        assert [row[2] for row in alone.since("enqueue", 0)] == [e.message_offset for e in before]
        assert alone.unreadable_count == 1
        assert [place.offset for place in alone.engine.damage.places] == [
            60,
            before[5].message_offset,
        ]


def test_a_run_of_lost_messages_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked from each entry to the nearest sound one, thousands take hours."""
    with Alone(ENQUEUE_GET) as alone:
        before = filled(alone)
        for entry in before[3:17]:
            alone.spoil(entry.message_offset, 80)
        looked: list[int] = []

        def sound(engine: Engine, row: int, index: int, entry: fmt.Entries) -> bool:
            looked.append(index)
            return is_sound(engine, row, index, entry)

        monkeypatch.setattr(mend_entries, "is_sound", sound)
        alone.engine.world.settings.recovering = 1
        assert not any(mend_entry(alone.engine, 0, each) for each in range(3, 17))
        assert len(looked) == 15 and set(looked) == set(range(2, 18)) - {3}
        assert alone.entries(0) == before


def test_what_was_found_of_a_run_serves_all_its_entries() -> None:
    with Alone(ENQUEUE_GET) as alone:
        before = filled(alone)
        for each in range(4, 12):
            alone.write_entry(0, each, before[each]._replace(message_offset=1 << 40))
        alone.spoil(before[7].message_offset, 80)
        alone.engine.world.settings.recovering = 1
        mended = [mend_entry(alone.engine, 0, each) for each in range(4, 12)]
        assert mended == [each != 7 for each in range(4, 12)]
        found = alone.entries(0)
        assert found[:7] + found[8:] == before[:7] + before[8:]
