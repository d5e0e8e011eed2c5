"""The copies without a unit are those that a look at all messages without a unit finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.services.test_cleaning import SMALL, clean_all, live_on
from tests.tiers import how_many
from timerstore import ManualClock, TimerStore
from timerstore.calls.pending import is_pending
from timerstore.calls.pending.is_pending import Found, read_messages
from timerstore.core.core import Core
from timerstore.services.engine.holds import Hold
from timerstore.services.looking.instant import capture_instant
from timerstore.services.looking.timer_places import unlinked_messages
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.values.ids import Int64s, parse_id

pytestmark = pytest.mark.long

SECOND = timedelta(seconds=1)
START_MS = 1_800_000_000_000
FAR_S = 500


def naive_copies(store: TimerStore, offsets: list[int]) -> list[int]:
    """Look at each message that has no unit."""
    core = store.core
    at = capture_instant(core.engine).snapshot
    found = read_messages(core, unlinked_messages(core.engine, at), at.hold)
    return [
        int(message)
        for message, high, low in zip(found.message, found.high, found.low, strict=True)
        if high == IDENTITY_OURS and low in offsets and low != message
    ]


def kept_copies(store: TimerStore, offsets: list[int]) -> list[int]:
    core = store.core
    at = capture_instant(core.engine).snapshot
    return is_pending.unlinked_copies(core, at, np.array(offsets, np.int64)).tolist()


def offset_of(id: str) -> int:
    part = parse_id(id)
    assert part is not None
    return part.offset


@contextmanager
def moved_store(path: Path, count: int) -> Iterator[tuple[TimerStore, ManualClock, list[str]]]:
    """A store in which cleaning has removed the first messages of so many timers."""
    clock = ManualClock(START_MS)
    with TimerStore(path / "s", config=SMALL, clock=clock) as store:
        delays_ms = [1_000 * (FAR_S + i) for i in range(count)]
        ids = list(store.put_many([b"far"] * count, topic="default", delay_ms=delays_ms))
        for _ in range(3):
            live_on(store, clock, 3)
            clean_all(store)
            live_on(store, clock, 3)
        assert store.core.engine.commitlog.start > offset_of(ids[-1])
        yield store, clock, ids


STEPS = st.lists(
    st.sampled_from(("put", "clean", "link", "reschedule", "look", "look", "live")), max_size=25
)


@given(steps=STEPS)
@settings(max_examples=how_many("UNLINKED", 4, 20))
def test_they_are_what_all_messages_say(steps: list[str]) -> None:
    with TemporaryDirectory() as folder, moved_store(Path(folder), 12) as (store, clock, ids):
        offsets, moved = [offset_of(id) for id in ids], 0
        for step in steps:
            match step:
                case "put":
                    store.put_many([b"short"] * 30, delay_ms=1_000)
                case "clean":
                    clean_all(store)
                case "link":
                    store.core.play_now()
                case "reschedule":
                    ids[moved % 12] = store.reschedule(ids[moved % 12], delay=FAR_S * SECOND)
                    moved += 1
                case "live":
                    live_on(store, clock, 2)
                case "look":
                    for asked in (offsets, offsets[:1], offsets[3:5]):
                        assert kept_copies(store, asked) == sorted(naive_copies(store, asked))


def test_each_message_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def counted(core: Core, messages: Int64s, hold: Hold) -> Found:
        nonlocal read
        read += len(messages)
        return read_messages(core, messages, hold)

    monkeypatch.setattr(is_pending, "read_messages", counted)
    with moved_store(tmp_path, 100) as (store, _, ids):
        clean_all(store)
        assert len(naive_copies(store, [offset_of(id) for id in ids])) == 100
        store.put_many([b"unlinked"] * 1_000, delay_ms=9_000)
        later = [store.reschedule(ids[0], delay=FAR_S * SECOND)]
        before = read
        later += [store.reschedule(id, delay=FAR_S * SECOND) for id in ids[1:]]
        assert before >= 1_100 and read - before == 3 * 99  # its own, and two for each call
        assert all(store.get(id) for id in later)
        assert not any(store.get(id) for id in ids)
