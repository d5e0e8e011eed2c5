"""Messages that name a timer are found beside a look at each."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import naive
from tests.services.alone import DEQUEUE_PUT, START_MS, Alone, delete, timer
from timerstore.ids import format_id
from timerstore.services.find_id import find_named

KINDS = ("timer", "delete", "plain key", "retry", "damaged", "nowhere", "moved")


def twin(message: naive.Message, id: str) -> bool:
    """Tell whether a message names a timer."""
    has_it = message.properties.get("UNIQ_KEY") == id
    return has_it or message.properties.get("TIMER_DEL_UNIQKEY", "").endswith(id)


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=30),
    unmapped=st.sets(st.integers(0, 3)),
    which=st.integers(0, 29),
)
def test_alone(kinds: list[str], unmapped: set[int], which: int) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        first = alone.put(timer(alone.tag, "orders", START_MS))
        id = first.properties["UNIQ_KEY"]
        places, wanted = [first.offset], [0]
        for kind in kinds:
            other = format_id(START_MS + 1, first.offset, alone.tag)
            made: Any = timer(alone.tag, "orders", START_MS + 5)
            if kind == "delete":
                made = delete(alone.tag, "orders", START_MS, id if which % 2 else other)
            elif kind == "plain key":
                made.properties["TIMER_DEL_UNIQKEY"] = id
            elif kind in ("retry", "damaged"):
                made.properties["UNIQ_KEY"] = id
            placed = alone.put(made)
            if kind == "damaged":
                alone.spoil(placed.offset + 4, 1)
            offset = {"nowhere": -placed.offset, "moved": placed.offset + 1}.get(
                kind, placed.offset
            )
            if twin(placed, id) and kind not in ("damaged", "nowhere", "moved"):
                wanted.append(len(places))
            places.append(offset)
        engine = alone.engine
        last = engine.commitlog.end // engine.commitlog.segment_bytes
        alone.unmap(engine.commitlog, *(unmapped - {last}))
        found = list(find_named(engine, np.array(places, np.int64), id))
        assert found == wanted


def test_messages_behind_the_end_or_before_the_start() -> None:
    with Alone(DEQUEUE_PUT) as alone:
        first = alone.put(timer(alone.tag, "orders", START_MS))
        id, end = first.properties["UNIQ_KEY"], alone.engine.commitlog.end
        places = np.array([end, 1 << 62, -(1 << 62), first.offset, end - 1], np.int64)
        assert list(find_named(alone.engine, places, id)) == [3]
        assert list(find_named(alone.engine, places[:0], id)) == []
