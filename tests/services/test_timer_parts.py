"""The parts of messages, beside the same messages decoded."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import naive
from tests.services.alone import DEQUEUE_PUT, START_MS, Alone, timer
from timerstore.services.timer_parts import (
    PART_BODY,
    PART_BODY_END,
    PART_BORN_MS,
    PART_COLUMNS,
    PART_KEY,
    PART_KEY_END,
    PART_PROPERTIES,
    PART_PROPERTIES_END,
    PART_ROW,
    PART_STATUS,
    PART_TAG,
    PART_TAG_END,
    find_parts,
)
from timerstore.timelog.message import FOUND_WORDS, GOOD

WORD = st.text("abc é", min_size=1, max_size=4)
MORE = st.fixed_dictionaries({}, optional={"KEYS": WORD, "TAGS": WORD, "mine": WORD})


@settings(max_examples=60, deadline=None)
@given(described=st.lists(st.tuples(MORE, st.booleans()), max_size=6), topic=st.sampled_from("ab"))
def test_parts_are_where_the_message_has_them(described: Any, topic: str) -> None:
    with Alone(DEQUEUE_PUT) as alone:
        row, log = alone.row("a"), alone.engine.commitlog
        placed = [alone.put(timer(alone.tag, topic, START_MS, **more)) for more, _ in described]
        for message, (_, is_spoilt) in zip(placed, described, strict=True):
            if is_spoilt:
                alone.spoil(message.offset + naive.encode_message(message).index(b"body"))
        offsets = np.array([message.offset for message in placed], np.int64)
        parts = np.zeros(PART_COLUMNS * len(placed), np.int64)
        ids, found = np.zeros(32 * len(placed), np.uint8), np.zeros(FOUND_WORDS, np.int64)
        find_parts(log.shared_table, alone.engine.queues.table, offsets, found, parts, ids)
        for i, (message, (more, is_spoilt)) in enumerate(zip(placed, described, strict=True)):
            part = parts[PART_COLUMNS * i : PART_COLUMNS * (i + 1)].tolist()
            assert (part[PART_STATUS] == GOOD) == (not is_spoilt)
            if is_spoilt:
                continue
            view = log.existing(message.offset // log.segment_bytes).view

            def cut(start: int, stop: int, view: Any = view, part: Any = part) -> bytes | None:
                at = part[start]
                return view[at : part[stop]].tobytes() if at >= 0 else None

            assert cut(PART_BODY, PART_BODY_END) == message.body
            assert part[PART_BORN_MS] == message.born_ms
            properties = cut(PART_PROPERTIES, PART_PROPERTIES_END)
            assert properties is not None and b"TIMER_OUT_MS" in properties
            is_usual = "mine" not in more and topic == "a"
            if "mine" in more:
                assert part[PART_ROW] == -1
            elif is_usual and part[PART_ROW] >= 0:
                assert part[PART_ROW] == row
                for name, at, end in (
                    ("KEYS", PART_KEY, PART_KEY_END),
                    ("TAGS", PART_TAG, PART_TAG_END),
                ):
                    text = message.properties.get(name)
                    assert cut(at, end) == (None if text is None else text.encode())
                assert ids[32 * i :][:32].tobytes().decode() == message.properties["UNIQ_KEY"]
