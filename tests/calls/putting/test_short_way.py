"""The short way of a put writes what the long way writes; what is wrong is left to that."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.small_store import SMALL
from timerstore import Config, InvalidArgumentError, TimerStore
from timerstore.calls.putting.short_way import ShortWay
from timerstore.jit.kernel import INTERPRETED
from timerstore.timelog.writing.append import BATCH_BYTES
from timerstore.values.kinds import whole_ms
from timerstore.values.puts import Put

FAR_MS = 4_000_000_000_000
TOKYO = timezone(timedelta(hours=9))
WAYS: list[dict[str, Any]] = [
    {"at_ms": FAR_MS},
    {"at_ms": FAR_MS, "key": "user:7"},
    {"at_ms": FAR_MS, "tag": "mail"},
    {"at_ms": FAR_MS, "tag": "é𝄞", "key": "k é", "properties": {"a": "b", "trace": "0" * 40}},
    {"at_ms": FAR_MS, "properties": {}},
    {"delay": timedelta(days=40_000, microseconds=1)},
    {"delay": timedelta(days=3), "key": "k", "tag": "t"},
    {"at": datetime(2111, 1, 2, 3, 4, 5, 678_901, TOKYO)},
    {"at": datetime(2111, 1, 2, 3, 4, 5, tzinfo=UTC), "properties": {"x": "y"}},
    {"delay_level": 3},
    {"delay_level": 2, "key": "k", "tag": "t", "properties": {"a": "b"}},
    {"delay_level": 99},
]
LEVELS = "1h 2h 3h"


def without_times(message: naive.Message) -> naive.Message:
    """A message without what the clock and the log's end decide."""
    properties = dict(message.properties)
    properties["UNIQ_KEY"] = properties["UNIQ_KEY"][24:]
    if properties.get("TIMER_OUT_MS") != str(FAR_MS):
        properties.pop("TIMER_OUT_MS", None)
    return replace(message, properties=properties, offset=0, queue_offset=0, born_ms=0, stored_ms=0)


@pytest.mark.parametrize("durability", ["process", "group"])
def test_both_ways_write_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    config = replace(SMALL, durability=durability, delay_levels=LEVELS)
    with TimerStore(tmp_path / "s", config=config) as store:
        long = [store.putting.put(Put(b"body", "t", **way)) for way in WAYS]
        store.core.engine.commitlog.make_room(store.core.engine.commitlog.end + (1 << 14))
        with monkeypatch.context() as patch:
            if not INTERPRETED:  # there is no short way there
                patch.setattr(store.putting, "put", None)  # whatever goes the long way now fails
            short = [store.put(b"body", topic="t", **way) for way in WAYS]
        for way, one, other in zip(WAYS, long, short, strict=True):
            first, second = store.get(one), store.get(other)
            assert first is not None and second is not None and second.id == other
            apart = abs(second.due_ms - first.due_ms)
            assert apart == 0 if "at" in way or "at_ms" in way else apart < 60_000
            described = (first.body, first.topic, first.key, first.tag, first.properties)
            other_one = second.body, second.topic, second.key, second.tag, second.properties
            assert described == other_one
        queues = store.core.engine.queues
        codes = queues.read(0, 0, queues.next_index(0))["tags_code"].tolist()
        assert codes[: len(codes) // 2] == codes[len(codes) // 2 :] and any(codes)
    log = (tmp_path / "s" / "commitlog" / ("0" * 20)).read_bytes()
    written = naive.scan_commit_log({0: log}).messages
    assert len(written) == 2 * len(WAYS)
    for one, other in zip(written[: len(WAYS)], written[len(WAYS) :], strict=True):
        assert list(one.properties) == list(other.properties)
        assert without_times(one) == without_times(other)


WRONG: list[dict[str, Any]] = [
    {"delay": "5"},
    {"delay": timedelta(1), "at_ms": FAR_MS},
    {"at": datetime(2111, 1, 1)},  # noqa: DTZ001
    {"at": date(2111, 1, 1)},
    {"at": "tomorrow"},
    {"at_ms": 5.0},
    {"at_ms": True},
    {"at_ms": 1_700_000_000},
    {"at_ms": 10**15},
    {"delay": timedelta.max},
    {"key": ""},
    {"key": 5},
    {"tag": "a\x01"},
    {"properties": [("a", "b")]},
    {"properties": {"KEYS": "b"}},
    {"properties": {"a": "\ud800"}},
    {"properties": {"a": "x" * 40_000}},
    {"delay_level": 0},
    {"delay_level": True},
    {"delay_level": 1, "delay": timedelta(1)},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_is_wrong_is_said_and_nothing_put(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        store.put(b"x", topic="t", at_ms=FAR_MS)  # from now on it may take the short way
        store.put(b"x", topic="t", delay_level=1)
        end = store.core.engine.commitlog.end
        with pytest.raises(InvalidArgumentError):
            store.put(b"x", topic="t", **wrong)
        with pytest.raises(InvalidArgumentError):
            store.put(bytearray(), topic="t", **wrong)
        assert store.core.engine.commitlog.end == end


def test_what_is_larger_than_a_batch_goes_without_the_gil(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[bool]()
    with TimerStore(tmp_path / "s", config=Config(durability="process")) as store:
        store.put(b"x", topic="t", at_ms=FAR_MS)  # from now on it may take the short way
        put = ShortWay.put

        def telling(way: ShortWay, *given: Any) -> str | None:
            id = put(way, *given)
            told.append(id is not None)
            return id

        monkeypatch.setattr(ShortWay, "put", telling)
        for size in [BATCH_BYTES] * 9 + [BATCH_BYTES + 1] * 9:  # now and then there is no room
            timer = store.get(store.put(bytes(size), topic="t", at_ms=FAR_MS))
            assert timer is not None and len(timer.body) == size
    assert any(told[:9]) != INTERPRETED and not any(told[9:])


def test_the_largest_with_properties(tmp_path: Path) -> None:
    with TimerStore(tmp_path / "s", config=Config(durability="process")) as store:
        store.put(b"x", topic="t", at_ms=FAR_MS)
        key = "k" * 1_000
        room = store.core.engine.content_bytes_max - len(b"KEYS\x01\x02") - len(key)
        id = store.put(bytes(room), topic="t", at_ms=FAR_MS, key=key)
        timer = store.get(id)
        assert timer is not None and len(timer.body) == room and timer.key == key
        with pytest.raises(InvalidArgumentError):
            store.put(bytes(room + 1), topic="t", at_ms=FAR_MS, key=key)


@given(st.timedeltas())
def test_a_duration_in_whole_ms_rounds_up(delay: timedelta) -> None:
    assert whole_ms(delay) == -(-(delay // timedelta(microseconds=1)) // 1_000)
