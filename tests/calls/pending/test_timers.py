"""Pending timers as objects: those decoded together are as each one decoded by itself."""

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timerstore
from tests.small_store import SMALL
from tests.strategies import SOME_TEXT
from timerstore import ManualClock
from timerstore.calls.pending.is_pending import find_pending
from timerstore.calls.pending.timers import decode_timers, read_timer

START_MS = 1_700_000_000_000
NAMES = st.sampled_from(["a", "region", "KEY", "CRC32", "TAG", "x-y"])
WORDS = SOME_TEXT.filter(lambda text: text and not set(text) & {"\x01", "\x02"})
PUTS = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(min_size=1, max_size=200),
            "topic": st.sampled_from(["t", "orders", "a-b"]),
            "delay": st.integers(1_000, 10 * 86_400_000).map(lambda ms: timedelta(milliseconds=ms)),
        },
        optional={
            "key": WORDS,
            "tag": WORDS.filter(lambda text: "|" not in text and text.strip() == text),
            "properties": st.dictionaries(NAMES, WORDS, max_size=3),
        },
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=12)
@given(puts=PUTS, moved=st.integers(0, 11), ahead_s=st.sampled_from([0, 1, 90, 3_000]))
def test_decoding_many_is_decoding_each(
    puts: list[dict[str, Any]], moved: int, ahead_s: int
) -> None:
    clock = ManualClock(START_MS)
    with (
        tempfile.TemporaryDirectory() as folder,
        timerstore.open(Path(folder) / "store", config=SMALL, clock=clock) as store,
    ):
        ids = [store.put(**put) for put in puts]
        at_ms = START_MS + 300_000_000
        ids[moved % len(ids)] = store.reschedule(ids[moved % len(ids)], at_ms=at_ms)
        clock.advance(timedelta(seconds=ahead_s))  # some are fired, some roll
        found = find_pending(store.core)
        each = [
            read_timer(store.core, message, due_ms)
            for message, due_ms in zip(found.message.tolist(), found.due_ms.tolist(), strict=True)
        ]
        decoded = decode_timers(store.core, found.message, found.due_ms, found.hold)
        assert decoded == (each, len(each))
        assert sorted(timer.id for timer in store.pending()) == sorted(timer.id for timer in each)
        by_id = {timer.id: timer for timer in each}
        for id in ids:
            got, expected = store.get(id), by_id.get(id)
            assert got == expected
            assert store.get(id.lower()) == expected
        put = dict(zip(ids, puts, strict=True))
        for timer in each:
            asked = put[timer.id]
            assert (timer.body, timer.topic) == (asked["body"], asked["topic"])
            assert (timer.key, timer.tag) == (asked.get("key"), asked.get("tag"))
            assert timer.properties == asked.get("properties", {})
        assert decode_timers(
            store.core, np.zeros(0, np.int64), np.zeros(0, np.int64), found.hold
        ) == ([], 0)


def test_a_listing_holds_few_large_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timerstore.calls.pending.timers.BYTES_AT_ONCE", 1_000)
    with timerstore.open(tmp_path / "s", config=SMALL, clock=ManualClock(START_MS)) as store:
        ids = [store.put(bytes(300), delay=1 + i % 3) for i in range(20)]
        found = find_pending(store.core)
        timers, count = decode_timers(store.core, found.message, found.due_ms, found.hold)
        assert len(timers) == count == 4
        assert sorted(each.id for each in store.pending()) == sorted(ids)
        assert len(list(store.pending(limit=7))) == 7
