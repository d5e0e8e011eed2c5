"""Why a message failed, as properties: what they say, how they give way to other content."""

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.small_store import SMALL
from timerstore import Consumer, Delivery, ManualClock, TimerStore
from timerstore.calls.consuming.delivery import (
    TEXT_BYTES_MAX,
    Failure,
    error_of,
    failed_properties,
    first_failed_ms,
    shortened,
    trace_id,
)
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.bytes.decode import decode_properties
from timerstore.timelog.bytes.limits import DESCRIPTION_BYTES_MAX, content_bytes_max


@pytest.mark.long
@given(text=st.text(), bytes_max=st.integers(-9, 40))
def test_shortened(text: str, bytes_max: int) -> None:
    found = shortened(text, bytes_max)
    assert len(found.encode()) <= max(bytes_max, 0)
    assert not {"\x01", "\x02"} & set(found)
    plain = text.encode("utf-8", "replace").decode()
    if len(plain.strip().encode()) <= bytes_max and not {"\x01", "\x02"} & set(text):
        assert found == plain.strip()
    elif found:
        assert found.endswith("…") or "\x01" in text or "\x02" in text


@given(
    kind=st.text(max_size=200),
    text=st.text(max_size=900),
    room=st.integers(-100, 900),
    known=st.sampled_from([{}, {"TIMER_FIRST_FAILED_MS": "12"}, {"TIMER_FIRST_FAILED_MS": "x"}]),
)
def test_they_take_the_room_that_there_is(
    kind: str, text: str, room: int, known: dict[str, str]
) -> None:
    encoded = failed_properties(known, 1_800_000_000_000, Failure(kind, text), room)
    assert len(encoded) <= max(room, 0)
    found = decode_properties(encoded)
    if room > 60:
        wanted = known.get("TIMER_FIRST_FAILED_MS", "1800000000000")
        assert found["TIMER_FIRST_FAILED_MS"] == wanted
    if room > 850:
        assert error_of(found)[1] == shortened(text, TEXT_BYTES_MAX)
    assert decode_properties(failed_properties(known, 5, None, 900)).keys() == {
        "TIMER_FIRST_FAILED_MS"
    }


def test_what_was_read_is_not_trusted() -> None:
    for bad in ("", "x", "-5", "٣", "9" * 40):
        assert first_failed_ms({"TIMER_FIRST_FAILED_MS": bad}) is None
    assert first_failed_ms({"TIMER_FIRST_FAILED_MS": "12"}) == 12
    trace = "0af7651916cd43dd8448eb211c80319c"
    assert trace_id({"traceparent": f"00-{trace}-b7ad6b7169203331-01"}) == trace
    for bad in ("", "00", f"00-{trace}", f"00-{trace.upper()}-b7ad6b7169203331-01"):
        assert trace_id({"traceparent": bad}) is None


class MuteError(Exception):
    """One that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_of_an_exception() -> None:
    assert Failure.of(OSError(2, "gone")) == Failure("FileNotFoundError", "[Errno 2] gone")
    assert Failure.of(MuteError()) == Failure(f"{__name__}.MuteError")


@pytest.mark.parametrize("what", ["body", "properties"])
def test_a_message_at_the_limit_dies_all_the_same(tmp_path: Path, what: str) -> None:
    """It has no room for why, or for a part of it."""
    clock = ManualClock()
    size = content_bytes_max(SMALL.commitlog_segment_bytes)
    body, properties = b"x" * size, {}
    if what == "properties":
        length = min(DESCRIPTION_BYTES_MAX, size - 1) - 3
        body, properties = b"x", {"p": "x" * length}
    topic, group = "T" * 127, "G" * 120
    with TimerStore(tmp_path, config=SMALL, clock=clock, disk=QuietDisk()) as store:
        consumer = Consumer(store, group, max_attempts=2)

        @consumer.on(topic)
        def fail(d: Delivery) -> None:
            raise OSError("x" * 10_000)

        id = store.put(body, topic=topic, properties=properties)
        with consumer:
            clock.advance(timedelta(hours=1))
        (letter,) = store.dead_letters(group)
        assert (letter.id, letter.attempts) == (id, 3)
        assert (letter.body, letter.properties) == (body, properties)
        assert store.retry_dead_letters(group) == 1
