"""All that `max_bytes` lets in falls due at once: it fires, within `max_bytes`, whoever reads."""

from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tests.loop_disk import DISK_BYTES, mounted
from timerstore import Config, InvalidArgumentError, ManualClock, StoreFullError, TimerStore, Tuning
from timerstore.testing.disk import QuietDisk

START_MS = 1_800_000_000_000
DELAY_MS = 60_000
REFUSED = r"takes \d+ bytes, needs \d+ more to fire.*Consume and acknowledge.*raise max_bytes"
WAYS = {  # bytes of a body, and how many are put by one call
    "many": (1_000, 700),
    "at once": (1_000, 60_000),
    "single": (1_000, 1),
    "levels": (1_000, 700),
    "keyed": (1_000, 1),
    "cancelled": (300, 700),
    "moved": (1_000, 700),
    "large": (600_000, 1),
    "odd": (60_000, 1),
    "tiny": (1, 700),
    "topics": (300, 700),
}


def put_until_refused(store: TimerStore, way: str) -> None:
    """Put, by one of several ways, what is due at one instant, until there is no room."""
    size, count = WAYS[way]
    rng = np.random.default_rng(1)
    for number in range(60_000):
        topic = f"t{number % 90}" if way == "topics" else "t"
        body = bytes(int(rng.integers(1, size)) if way == "odd" else size)
        if way == "keyed":
            store.put(body, key=f"k{number % 3_000}", topic=topic, delay_ms=DELAY_MS, replace=True)
        elif count == 1:
            store.put(body, topic=topic, delay_ms=DELAY_MS)
        elif way == "levels":
            store.put_many([body] * count, topic=topic, delay_level=5)
        else:
            ids = store.put_many([body] * count, topic=topic, delay_ms=DELAY_MS)
            if way == "cancelled" and number % 3:
                store.cancel_many(ids)
            elif way == "moved":
                store.reschedule(ids[0], delay=timedelta(milliseconds=DELAY_MS))


def fire_all(store: TimerStore) -> None:
    """Let time pass; nobody reads."""
    clock = store.core.clock
    assert isinstance(clock, ManualClock)
    for _ in range(4):
        clock.advance(timedelta(milliseconds=DELAY_MS // 2))
    assert store.count() == 0 and store.core.runner.waiting_for_space is None


def read_all(store: TimerStore) -> Counter[str]:
    """Consume all of all topics; return how often each id came."""
    came: Counter[str] = Counter()
    for topic in store.stats().topics:
        while len(batch := store.pull(topic.topic, timeout=0, max_count=1_000)):
            came.update(batch.ids.to_pylist())
            batch.ack()
    return came


@pytest.mark.tier("prove", only=("[!tl]*-reopened", "keyed-", "moved-", "odd-", "topics-*"))
@pytest.mark.parametrize("reopened", [False, True], ids=["", "reopened"])
@pytest.mark.parametrize("way", WAYS)
def test_a_burst_fits_the_disk(tmp_path: Path, way: str, reopened: bool) -> None:
    """`max_bytes` is nine tenths of a disk."""
    config = Config.small(DISK_BYTES["tmpfs"] * 9 // 10, durability="process")
    clock = ManualClock(START_MS)
    with mounted(tmp_path, "tmpfs") as disk:
        store = TimerStore(disk / "s", config=config, clock=clock)
        if reopened:
            store.put_many([bytes(1_000)] * 3_000, topic="t", delay_ms=DELAY_MS)
            store.close()
            store = TimerStore(disk / "s", config=config, clock=clock)
        with store:
            with pytest.raises(StoreFullError, match=REFUSED):
                put_until_refused(store, way)
            pending = {timer.id for timer in store.pending()}
            assert len(pending) >= (8 if way == "large" else 100)
            fire_all(store)
            assert store.stats().disk_bytes <= config.max_bytes  # type: ignore[operator]
            assert read_all(store) == Counter(pending)
            clock.advance(timedelta(seconds=30))
            store.flush()  # what was read goes
            store.put(b"room again")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("put", "level", "move", "cancel", "replace", "pass", "reopen")),
            st.integers(1, 40),
            st.integers(1, 700),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_any_history_fires_within_the_limit(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("burst")
    tuning = Tuning(
        commitlog_segment_bytes=4_096,
        consumequeue_segment_bytes=2_000,
        timerlog_segment_bytes=5_200,
        wheel_slot_count=1_024,
        roll_window_slots=600,
        cleaning_slack_bytes=4_096,
    )
    config = Config(durability="process", max_bytes=200_000, tuning=tuning)
    clock = ManualClock(START_MS)
    store = TimerStore(path / "s", config=config, clock=clock, disk=QuietDisk())
    for what, count, size in history:
        pending = [timer.id for timer in store.pending()]
        with suppress(StoreFullError):
            if what == "put":
                store.put_many([bytes(size)] * count, delay_ms=DELAY_MS)
            elif what == "level":
                store.put_many([bytes(size)] * count, delay_level=5)
            elif what == "move" and pending:
                with suppress(InvalidArgumentError):  # it waits in a delay level
                    store.reschedule(pending[0], delay=timedelta(seconds=count), body=bytes(size))
            elif what == "cancel":
                store.cancel_many(pending[:count])
            elif what == "replace":
                store.put(bytes(size), key=f"{count % 5}", delay_ms=DELAY_MS, replace=True)
            elif what == "pass":
                clock.advance(timedelta(seconds=count))
                read_all(store)
                store.flush()
            elif what == "reopen":
                store.close()
                store = TimerStore(path / "s", config=config, clock=clock, disk=QuietDisk())
    pending = [timer.id for timer in store.pending()]
    before = store.core.engine.commitlog.end
    needed_bytes = store.putting.space.firing_bytes()
    fire_all(store)
    assert store.core.engine.commitlog.end - before <= needed_bytes
    assert store.core.engine.disk_bytes <= 200_000
    assert read_all(store) == Counter(pending)
    store.close()
