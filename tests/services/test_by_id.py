"""Kernels on one timer by its id, beside a model of what is pending."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.naive_by_id import Pending
from tests.services.alone import CONFIG, DEQUEUE_PUT, START_MS, Alone, timer
from timerstore.jit.locks import Gate
from timerstore.services.calls.appending import delete_template
from timerstore.services.calls.by_id import (
    ID_CANCELLED,
    ID_DUE_MS,
    ID_OFFSET,
    ID_OTHER_TOPIC,
    ID_PASSED,
    ID_PENDING,
    ID_PENDING_ROLLED,
    ID_ROW,
    Kernels,
    Templates,
    new_place,
)
from timerstore.services.calls.cancel import CANCELLED_BEFORE, CANCELLED_NOW, NOT_JUDGED
from timerstore.services.looking.read_units import SPAN_BODY, SPAN_BODY_END
from timerstore.timelog.writing.append import STAGE_BYTES
from timerstore.timelog.writing.frame import new_template

TOPICS = ("orders", "mail")
OURS = -1
TIMERS = st.lists(
    st.tuples(st.sampled_from(TOPICS), st.integers(0, 20_000), st.booleans()), max_size=8
)
ASKED = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from(["as it is", "lower", "due", "offset", "tag", "no hex", "space"]),
    ),
    max_size=12,
)


def spoilt(id: str, how: str) -> str:
    """An id that nobody was given; `as it is`: that one."""
    return {
        "as it is": id,
        "lower": id.lower(),
        "due": f"{int(id[:12], 16) + 1:012X}{id[12:]}",
        "offset": f"{id[:12]}{int(id[12:24], 16) + 1:012X}{id[24:]}",
        "tag": f"{id[:24]}{int(id[24:], 16) ^ 1:08X}",
        "no hex": "G" + id[1:],
        "space": " " + id[1:],
    }[how]


def filled(alone: Alone, timers: list[tuple[str, int, bool]], linked: int, ahead: int) -> Pending:
    """Timers in the log, some of them cancelled, some linked, some behind the frontier."""
    frontier_ms = START_MS + ahead
    model = Pending(alone.tag, {}, set(), frontier_ms, linked)
    alone.set_cursors(frontier=frontier_ms, linked=linked)
    for topic in ("rmq_sys_wheel_timer", *TOPICS):
        alone.row(topic)
    for topic, after_ms, is_cancelled in timers:
        placed = alone.put(timer(alone.tag, topic, START_MS + after_ms))
        id = placed.properties["UNIQ_KEY"]
        model.by_id[id] = placed
        if is_cancelled:
            model.cancelled.add(id)
    alone.use_sets([(OURS, model.by_id[id].offset) for id in model.cancelled])
    return model


@given(timers=TIMERS, asked=ASKED, linked=st.integers(0, 8), ahead=st.integers(-1, 20_000))
def test_both_agree_on_every_id(timers: Any, asked: Any, linked: int, ahead: int) -> None:
    with Alone(DEQUEUE_PUT) as alone, alone.engine.commitlog.reading():
        model = filled(alone, timers, linked, ahead)
        kernels, place = Kernels(), new_place(alone.engine.world, gate := Gate())
        for which, how in asked:
            if not model.by_id:
                break
            id = spoilt(list(model.by_id)[which % len(model.by_id)], how)
            expected = model.get(id)
            verdict = kernels.get(place, id)
            assert (verdict >= ID_PENDING) == (expected is not None)
            assert (verdict == ID_CANCELLED) == model.is_cancelled(id)
            if expected is not None:
                told = place.told.tolist()
                assert told[ID_DUE_MS] == int(id[:12], 16)
                assert told[ID_OFFSET] == expected.offset
                body = place.stage.buffer[told[SPAN_BODY] : told[SPAN_BODY_END]].tobytes()
                assert body == expected.body
                topic = expected.properties["REAL_TOPIC"]
                assert told[ID_ROW] == alone.row(topic)
                ahead_slots = told[ID_DUE_MS] // 100 - expected.born_ms // 100
                assert (verdict == ID_PENDING_ROLLED) == (ahead_slots >= 12)
            check_cancel(alone, model, kernels, place, id)
            assert not gate.words.any()


def templates_of(alone: Alone, topic: str, row: int) -> Templates:
    """What new timers and deletes of a topic begin as."""
    timer = new_template(
        topic.encode(), tag=alone.tag, pending_row=row, change=1, tags_code=0, extra=b""
    )
    return Templates(timer, delete_template(topic.encode(), row, alone.tag))


def check_cancel(alone: Alone, model: Pending, kernels: Kernels, place: Any, id: str) -> None:
    """Cancel by the kernel, after it has said whose template it wants, and by the model."""
    log, known = alone.engine.commitlog, model.put_at(id)
    templates = templates_of(alone, "nobody", -1)
    verdict = kernels.cancel(place, templates, id, START_MS)
    if known is not None:
        row = alone.row(known.properties["REAL_TOPIC"])
        assert verdict == ID_OTHER_TOPIC - row
        templates = templates_of(alone, known.properties["REAL_TOPIC"], row)
        verdict = kernels.cancel(place, templates, id, START_MS)
        for _ in range(3):
            if verdict == NOT_JUDGED:  # no room in a log, it may be
                alone.engine.provide_append(place.stage)
                verdict = kernels.cancel(place, templates, id, START_MS)
    names = {NOT_JUDGED: "long", CANCELLED_NOW: "now", CANCELLED_BEFORE: "before"}
    names[ID_PASSED] = "passed"
    assert names[verdict] == model.cancel(id, START_MS)
    assert alone.cancelled() == {(OURS, model.by_id[each].offset) for each in model.cancelled}
    if verdict == CANCELLED_NOW:
        entry = alone.engine.queues.read(0, alone.engine.queues.next_index(0) - 1, 1)[0]
        data = log.read(int(entry["offset"]), int(entry["size"]))
        delete = naive.decode_message(data, int(entry["offset"]))
        assert delete.properties["TIMER_DEL_UNIQKEY"].endswith("+" + id)


@pytest.mark.parametrize("body", [None, b"another body, " * 9])
def test_a_timer_is_moved_with_its_body_or_another(body: bytes | None) -> None:
    with Alone(DEQUEUE_PUT) as alone, alone.engine.commitlog.reading():
        model = filled(alone, [("orders", 900, False), ("orders", 950, False)], 0, 0)
        (id, first), (_, second) = model.by_id.items()
        engine, log, kernels = alone.engine, alone.engine.commitlog, Kernels()
        place, row = new_place(engine.world, Gate()), alone.row("orders")
        templates = templates_of(alone, "nobody", -1)
        moved_to = id, START_MS + 5_000, body, None, START_MS
        assert kernels.reschedule(place, templates, *moved_to) == ID_OTHER_TOPIC - row
        templates = templates_of(alone, "orders", row)
        for _ in range(4):  # until there is room in both logs
            offset = kernels.reschedule(place, templates, *moved_to)
            if offset != NOT_JUDGED:
                break
            engine.provide_append(place.stage)
        assert offset > second.offset
        entries = engine.queues.read(0, 2, 2)
        new, delete = (
            naive.decode_message(log.read(int(e["offset"]), int(e["size"])), int(e["offset"]))
            for e in entries
        )
        assert (new.body, new.offset) == (first.body if body is None else body, offset)
        assert new.properties["TIMER_OUT_MS"] == str(START_MS + 5_000)
        assert new.properties["TIMER_REPLACES"] == id
        assert delete.properties["TIMER_DEL_UNIQKEY"].endswith("+" + id)
        assert alone.cancelled() == {(OURS, first.offset)}
        # What was cancelled meanwhile is not moved.
        again = kernels.reschedule(place, templates, *moved_to)
        assert again == NOT_JUDGED and engine.queues.next_index(0) == 4


def test_a_message_larger_than_any_of_ours_is_not_copied() -> None:
    """Whoever wrote it, its size is not trusted, though its CRC is right."""
    large = replace(CONFIG.tuning, commitlog_segment_bytes=4 * STAGE_BYTES)
    with Alone(DEQUEUE_PUT, tuning=large) as alone, alone.engine.commitlog.reading():
        for topic in ("rmq_sys_wheel_timer", "orders"):
            alone.row(topic)
        place = new_place(alone.engine.world, Gate())
        for body_bytes, verdict in ((1 << 20, ID_PENDING), (STAGE_BYTES + 64, NOT_JUDGED)):
            timer_of_ours = timer(alone.tag, "orders", START_MS + 900)
            placed = alone.put(replace(timer_of_ours, body=bytes(body_bytes)))
            assert Kernels().get(place, placed.properties["UNIQ_KEY"]) == verdict


def test_what_cleaning_may_have_forgotten_goes_the_long_way() -> None:
    """It drops a cancelled timer, and the note that it was; the message can still be read."""
    with Alone(DEQUEUE_PUT) as alone, alone.engine.commitlog.reading():
        model = filled(alone, [("orders", 900, False), ("orders", 950, False)], 0, 0)
        before, behind = model.by_id
        alone.set_cursors(floor=model.by_id[behind].offset)
        kernels, place = Kernels(), new_place(alone.engine.world, Gate())
        templates = templates_of(alone, "orders", alone.row("orders"))
        assert kernels.get(place, before) == NOT_JUDGED
        assert kernels.cancel(place, templates, before, START_MS) == NOT_JUDGED
        moved_to = before, START_MS + 5_000, None, None, START_MS
        assert kernels.reschedule(place, templates, *moved_to) == NOT_JUDGED
        assert kernels.get(place, behind) == ID_PENDING
        assert not alone.cancelled()
