"""The parts of messages, beside the same messages decoded."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import naive
from tests.services.alone import DEQUEUE_PUT, START_MS, Alone, timer
from timerstore.services.looking.timer_parts import (
    SPAN_BODY,
    SPAN_BODY_END,
    SPAN_BORN_MS,
    SPAN_COLUMNS,
    SPAN_KEY,
    SPAN_KEY_END,
    SPAN_PROPERTIES,
    SPAN_PROPERTIES_END,
    SPAN_ROW,
    SPAN_STATUS,
    SPAN_TAG,
    SPAN_TAG_END,
    find_timer_parts,
)
from timerstore.timelog.bytes.message import GOOD, MessageParts

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
        parts = np.zeros(SPAN_COLUMNS * len(placed), np.int64)
        ids, found = np.zeros(32 * len(placed), np.uint8), MessageParts()
        find_timer_parts(log.shared_table, alone.engine.queues.table, offsets, found, parts, ids)
        for i, (message, (more, is_spoilt)) in enumerate(zip(placed, described, strict=True)):
            part = parts[SPAN_COLUMNS * i : SPAN_COLUMNS * (i + 1)].tolist()
            assert (part[SPAN_STATUS] == GOOD) == (not is_spoilt)
            if is_spoilt:
                continue
            view = log.existing(message.offset // log.segment_bytes).view

            def cut(start: int, stop: int, view: Any = view, part: Any = part) -> bytes | None:
                at = part[start]
                return view[at : part[stop]].tobytes() if at >= 0 else None

            assert cut(SPAN_BODY, SPAN_BODY_END) == message.body
            assert part[SPAN_BORN_MS] == message.born_ms
            properties = cut(SPAN_PROPERTIES, SPAN_PROPERTIES_END)
            assert properties is not None and b"TIMER_OUT_MS" in properties
            is_usual = "mine" not in more and topic == "a"
            if "mine" in more:
                assert part[SPAN_ROW] == -1
            elif is_usual and part[SPAN_ROW] >= 0:
                assert part[SPAN_ROW] == row
                for name, at, end in (
                    ("KEYS", SPAN_KEY, SPAN_KEY_END),
                    ("TAGS", SPAN_TAG, SPAN_TAG_END),
                ):
                    text = message.properties.get(name)
                    assert cut(at, end) == (None if text is None else text.encode())
                assert ids[32 * i :][:32].tobytes().decode() == message.properties["UNIQ_KEY"]
