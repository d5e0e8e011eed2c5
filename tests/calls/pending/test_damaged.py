"""One damaged message among what is pending is left out by all calls."""

import os
import shutil
from dataclasses import astuple, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.models.ledger import read_messages
from tests.small_store import SMALL
from tests.sparse_copy import copy_tree
from timerstore import (
    Config,
    CorruptStoreError,
    ManualClock,
    TimerStore,
    salvage,
    verify,
)
from timerstore.testing.damage import flip_bit
from timerstore.testing.disk import QuietDisk
from timerstore.validation.rounds import validate

START_MS = 1_800_000_000_000
HOUR = timedelta(hours=1)
CONFIG = replace(SMALL, commitlog_segment_bytes=1 << 16)
COUNT, LOST = 9, 4
FLIP_EVERY = int(os.environ.get("FLIP_EVERY", "41"))
"""1: every byte of a message."""


def flip(path: Path, at: bytes, within: int = 0) -> int:
    """Flip a bit of the commit log; return where it was."""
    file = min((path / "commitlog").iterdir())
    return flip_bit(file, file.read_bytes().index(at) + within)


def opened(path: Path, config: Config = CONFIG, now_ms: int = START_MS) -> TimerStore:
    return TimerStore(path, config=config, clock=ManualClock(now_ms, force=True), disk=QuietDisk())


@pytest.fixture(params=["found at opening", "found in passing"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A store of nine timers and two messages in a level, of which one each is damaged."""
    path = tmp_path / "s"
    store = opened(path)
    ids = [
        store.put(b"body %d" % i, topic="t", delay=HOUR, key=f"key {i}", properties={"n": str(i)})
        for i in range(COUNT)
    ]
    ids += [store.put(b"level %d" % i, topic="l", delay_level=4) for i in range(2)]
    if request.param == "found in passing":
        store.flush()
        assert store.count() == COUNT + 2
        flip(path, b"body %d" % LOST)
        flip(path, b"level 0")
    else:
        store.close()
        flip(path, b"body %d" % LOST)
        flip(path, b"level 0")
        store = opened(path)
    store.ids = ids  # type: ignore[attr-defined]
    yield store
    store.close()


def bodies(store: TimerStore) -> list[bytes]:
    return sorted(timer.body for timer in store.pending())


SOUND = sorted([*(b"body %d" % i for i in range(COUNT) if i != LOST), b"level 1"])


def test_listings_leave_it_out_and_name_it(store: Any) -> None:
    assert bodies(store) == SOUND
    assert bodies(store) == SOUND
    assert sorted(store.pending_columns()["body"].to_pylist()) == SOUND
    assert len(list(store.pending(topic="t", limit=6))) == 6
    assert sum(store.horizon(3_600_000).count) == len(SOUND)
    named = {place["offset"] for place in store.stats().damage}
    assert named >= {int(store.ids[LOST][12:24], 16)}
    assert len(named) == 2


@pytest.mark.parametrize("number", [LOST, COUNT])
def test_a_call_by_its_id_changes_nothing(store: Any, number: int) -> None:
    id, counted = store.ids[number], store.count()
    for _ in range(2):
        assert store.cancel(id) is False
        assert store.cancel_many([id, store.ids[0]]).tolist()[0] is False
        with pytest.raises(CorruptStoreError):
            store.get(id)
    if number == LOST:
        with pytest.raises(CorruptStoreError):
            store.reschedule(id, delay=2 * HOUR)
    assert store.count() == counted - 1  # of the one beside it
    assert bodies(store) == [body for body in SOUND if body != b"body 0"]


@pytest.mark.parametrize("has_index", [True, False])
def test_a_key_whose_only_timer_is_damaged_is_free(tmp_path: Path, has_index: bool) -> None:
    path, config = tmp_path / "s", replace(CONFIG, key_index=has_index)
    with opened(path, config) as store:
        for i in range(3):
            store.put(b"body %d" % i, topic="t", delay=HOUR, key=f"key {i}")
    places = [flip(path, b"body 0"), flip(path, b"body 1"), flip(path, b"body 2")]
    with opened(path, config) as store:
        for i in range(3):
            assert store.get_key("t", f"key {i}") is None
            assert list(store.pending(topic="t", key=f"key {i}")) == []
            assert store.cancel_key("t", f"key {i}") == 0
        assert store.count() == 0
        store.put(b"new", topic="t", delay=HOUR, key="key 0", if_absent=True)
        store.put(b"new", topic="t", delay=HOUR, key="key 1", replace=True)
        store.put(b"new", topic="t", delay=HOUR, key="key 2")
        for i in range(3):
            timer = store.get_key("t", f"key {i}")
            assert timer is not None and timer.body == b"new"
            assert store.cancel_key("t", f"key {i}") == 1
        assert len(store.stats().damage) == len(places)


@pytest.mark.parametrize("reopened", [0, 1, 3])
def test_it_is_taken_off_the_count_once(store: Any, reopened: int) -> None:
    path = store.core.path
    for _ in range(reopened):
        bodies(store)
        store.close()
        store = opened(path)
    assert bodies(store) == SOUND
    store.core.clock.advance(timedelta(minutes=50))
    assert store.count("l") == 0
    store.core.clock.advance(2 * HOUR)
    assert store.count() == 0
    fired = {delivery.body for topic in "tl" for delivery in store.consume(topic, timeout=0)}
    assert fired == set(SOUND)
    store.close()


MARK = b"__CRC32#"


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_damaged_checksum_makes_no_message_a_brokers(tmp_path: Path, rebuilt: bool) -> None:
    """Without its name, what the checksum covers would be believed, and be due another day."""
    path = tmp_path / "s"
    with opened(path) as store:
        store.put(b"pay 100", topic="t", delay=HOUR, key="k", properties={"amount": "100"})
        store.put(b"other", topic="t", delay=HOUR)
    flip(path, MARK)
    flip(path, b"amount\x01100", 7)
    flip(path, b"TIMER_OUT_MS\x01", 16)
    assert any(each.file == "commitlog" for each in verify(path).problems)
    assert not validate(path).ok
    if rebuilt:
        for file in (path / "timerlog").iterdir():
            file.unlink()
        (path / "timerwheel").unlink()
    report = salvage(path, tmp_path / "new", config=CONFIG)
    assert report.lost and not report.problems
    for each in (path, tmp_path / "new"):
        with opened(each) as store:
            assert bodies(store) == [b"other"]
            assert store.count() == 1
            assert each != path or [place["offset"] for place in store.stats().damage] == [0]


def shown(path: Path) -> tuple[set[Any], set[Any], set[Any]]:
    """What a store passes on: pending timers, what `horizon` counts, messages that are consumed."""
    with opened(path) as store:
        pending = {
            (each.id, each.topic, each.body, each.key, each.due_ms, str(each.properties))
            for each in store.pending()
        }
        counted = set(zip(*(each.tolist() for each in astuple(store.horizon(1))[:2]), strict=True))
        fired = {
            (each.id, each.topic, each.body, each.key, each.due_ms, str(each.properties))
            for each in store.consume("f", timeout=0)
        }
        return pending, counted, fired


@pytest.mark.parametrize("rebuilt", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_no_flipped_byte_is_passed_on(tmp_path: Path, number: int, rebuilt: bool) -> None:
    """Of a pending timer, of a fired one's source, of its copy: nothing comes out changed."""
    path, clock = tmp_path / "s", ManualClock(START_MS - 1_000, force=True)
    with TimerStore(path, config=CONFIG, clock=clock, disk=QuietDisk()) as store:
        store.put(b"body", topic="t", delay=HOUR, key="k", tag="a", properties={"p": "1"})
        store.put(
            b"fired", topic="f", at_ms=START_MS - 500, key="k", tag="a", properties={"p": "1"}
        )
        store.put(b"other", topic="t", delay=2 * HOUR)
        clock.advance(timedelta(seconds=1))
    offsets = [message.offset for message in read_messages(path)]
    message = [offsets[0], offsets[1], offsets[3]][number]
    stop = {offsets[i]: offsets[i + 1] for i in range(3)}.get(message, 0)
    if rebuilt:
        for file in (path / "timerlog").iterdir():
            file.unlink()
        (path / "timerwheel").unlink()
    sound = shown(copy_tree(path, tmp_path / "sound"))
    file = min((path / "commitlog").iterdir())
    data = file.read_bytes()
    stop = stop or message + int.from_bytes(data[message : message + 4], "big")
    for at in range(message + int(rebuilt), stop, FLIP_EVERY):
        copy = copy_tree(path, tmp_path / f"{at}")
        file = min((copy / "commitlog").iterdir())
        file.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        for found, expected in zip(shown(copy), sound, strict=True):
            assert found <= expected, f"byte {at - message} of the message"
        shutil.rmtree(copy)
