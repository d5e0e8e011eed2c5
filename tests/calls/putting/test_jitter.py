"""Jitter: a time that is later by what is drawn, never earlier, never by more than was said."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests.small_store import SMALL
from timerstore import InvalidArgumentError, ManualClock, TimerStore
from timerstore.testing.disk import QuietDisk
from timerstore.values.check_arguments import DUE_MS_MAX, check_due_array, jittered
from timerstore.values.ids import parse_id

NOW_MS = 4_000_000_000_000
SECOND = timedelta(seconds=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    clock = ManualClock(NOW_MS)
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        yield store


def due_ms(id: str) -> int:
    parsed = parse_id(id)
    assert parsed is not None
    return parsed.due_ms


@given(
    st.integers(0, 10**9), st.integers(-(10**9), 10**9), st.sampled_from(["delay", "at", "at_ms"])
)
def test_later_by_the_jitter_at_most(jitter_us: int, offset_ms: int, kind: str) -> None:
    jitter, most_ms = timedelta(microseconds=jitter_us), jitter_us // 1_000
    delay = timedelta(milliseconds=offset_ms) if kind == "delay" else None
    at = datetime.fromtimestamp(NOW_MS / 1_000, UTC) + timedelta(milliseconds=offset_ms)
    at_ms = NOW_MS + offset_ms
    given = (
        delay,
        at if kind == "at" else None,
        at_ms if kind == "at_ms" else None,
    )
    later, later_ms = jittered(jitter, *given, None)
    if kind == "delay":
        assert later_ms is None and later is not None
        more_ms = later / timedelta(milliseconds=1) - offset_ms
    else:
        assert later is None and later_ms is not None
        more_ms = later_ms - at_ms
    assert 0 <= more_ms <= most_ms
    many = check_due_array(50, NOW_MS, None, offset_ms, None, jitter) - (NOW_MS + offset_ms)
    assert many.min() >= 0 and many.max() <= most_ms


def test_each_millisecond_may_come_and_a_seed_repeats_them(store: TimerStore) -> None:
    """Of 2,000 draws each of four values is missed once in 10²⁴⁹ runs."""
    told = []
    for _ in range(2):
        random.seed(7)
        one = [
            due_ms(store.put(b"x", at_ms=NOW_MS, jitter=timedelta(milliseconds=3)))
            for _ in range(2_000)
        ]
        many = store.put_many([b"x"] * 2_000, delay=SECOND, jitter=0.003).due_ms
        told.append((one, many.tolist()))
    assert told[0] == told[1]
    assert set(one) == {NOW_MS + i for i in range(4)}
    assert set(many.tolist()) == {NOW_MS + 1_000 + i for i in range(4)}
    random.seed(8)
    other = store.put_many([b"x"] * 2_000, delay=SECOND, jitter=0.003).due_ms
    assert many.tolist() != other.tolist()


def test_none_is_as_without(store: TimerStore) -> None:
    assert due_ms(store.put(b"x", delay=SECOND, jitter=0)) == NOW_MS + 1_000
    assert (store.put_many([b"x"], jitter=timedelta()).due_ms == NOW_MS).all()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"jitter": -1}, "jitter is -1. Pass a length of time from 0"),
        ({"jitter": "x"}, "jitter is 'x'. Pass a datetime.timedelta"),
        ({"jitter": timedelta(days=10**6)}, "from 0 to 36,500 days"),
        ({"jitter": 1, "delay_level": 1}, "jitter and delay_level exclude each other"),
        ({"jitter": 1, "delay": 1, "at_ms": NOW_MS}, "exclude each other"),
        ({"jitter": 1, "at_ms": DUE_MS_MAX + 1}, "after the year 9999"),
        ({"jitter": 1, "delay": timedelta.max}, "Use -|Pass shorter"),
    ],
)
def test_what_is_refused(store: TimerStore, given: dict[str, object], why: str) -> None:
    for put in (lambda: store.put(b"x", **given), lambda: store.put_many([b"x"], **given)):  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=why):
            put()
    assert store.count() == 0


def test_a_delay_that_is_too_long_with_it_is_refused(tmp_path: Path) -> None:
    limited = timerstore.Config(tuning=timerstore.Tuning(max_delay_ms=1_000))
    random.seed(3)
    with timerstore.open(tmp_path / "s", config=limited) as store:
        with pytest.raises(InvalidArgumentError, match="max_delay_ms"):
            store.put_many([b"x"] * 100, delay=1, jitter=1)
        assert store.count() == 0
        assert len(store.put_many([b"x"] * 100, jitter=0.9)) == 100


def test_times_of_a_column_are_each_later(store: TimerStore) -> None:
    times = np.arange(NOW_MS, NOW_MS + 100)
    drawn = store.put_many([b"x"] * 100, at_ms=times, jitter=SECOND).due_ms - times
    assert drawn.min() >= 0 and drawn.max() <= 1_000 and len(set(drawn.tolist())) > 10
