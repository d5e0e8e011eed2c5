"""The short way of a call on one timer gives the answers of the long way."""

import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config

from tests.rigs.together import together
from tests.small_store import SMALL
from tests.wheel_checks import check_cancelled
from timerstore import (
    InvalidArgumentError,
    ManualClock,
    StoreClosedError,
    TimerStore,
    TooLateError,
    UnknownTimerError,
)
from timerstore.calls.pending import pending, timers
from timerstore.calls.pending.cancel import cancel_many, get
from timerstore.calls.pending.timers import from_parts
from timerstore.store.handover import close
from timerstore.values.ids import parse_id

START_MS = 1_800_000_000_000
FAR_MS = 4_000_000_000_000


def long_get(store: TimerStore, id: str) -> Any:
    """What `get` says the long way."""
    return get(store.core, id)


def long_cancel(store: TimerStore, id: str) -> bool:
    """What `cancel` says the long way."""
    return bool(cancel_many(store.core, [id])[0])


def counted(function: Any, calls: list[str]) -> Any:
    """A function that notes each of its calls."""

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(function.__name__)
        return function(*args, **kwargs)

    return call


def test_what_cleaning_has_dropped_is_gone_while_it_can_still_be_read(tmp_path: Path) -> None:
    """It has forgotten what was cancelled by then: not even that shows it."""
    clock = ManualClock(START_MS)
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock) as store:
        gone, waits = (store.put(b"x", topic="t", at_ms=FAR_MS + i) for i in range(2))
        clock.advance(timedelta(seconds=10))  # both are linked
        store.core.engine.world.cleaning.floor = parse_id(waits).offset  # type: ignore[union-attr]
        for _ in range(2):
            assert store.get(gone) is None and long_get(store, gone) is None
            assert not store.cancel(gone) and not store.cancel_many([gone, gone]).any()
            with pytest.raises(TooLateError):
                store.reschedule(gone, delay=timedelta(hours=1))
        assert store.get(waits) is not None and store.cancel(waits)


def test_an_ordinary_timer_goes_the_short_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TimerStore(tmp_path / "s", config=SMALL, clock=ManualClock(START_MS)) as store:
        ids = {}
        for topic in ("a", "b" * 127):
            described = {"key": "k é", "tag": "t", "properties": {"x": "y"}}
            ids[topic] = [
                store.put(b"%d" % i, topic=topic, at_ms=START_MS + 5_000 + i, **described)
                for i in range(20)
            ]
        expected = {id: long_get(store, id) for each in ids.values() for id in each}
        with monkeypatch.context() as patch:
            long_calls = list[str]()
            for name in ("get", "cancel_many", "reschedule"):
                patch.setattr(pending, name, counted(getattr(pending, name), long_calls))
            for pair in zip(*ids.values(), strict=True):  # topics in turn
                for id in pair:
                    assert store.get(id) == expected[id] is not None
                    moved = store.reschedule(id, at_ms=START_MS + 9_000)
                    after = store.get(moved)
                    assert after is not None and after.body == expected[id].body
                    assert after.properties == expected[id].properties and after.due_ms > START_MS
                    assert (after.key, after.tag) == ("k é", "t") and store.get(id) is None
                    assert store.cancel(id) and store.cancel(moved) and store.cancel(moved)
            # `get` of what is gone; a segment or room in the cancelled set is made.
            assert len(long_calls) < 2 * len(expected) + 20
        assert store.count() == 0 and not list(store.pending())
        assert not any(store.get(id) or long_get(store, id) for id in expected)
        store.core.clock.advance(timedelta(seconds=20))
        assert not len(store.pull("a", timeout=0))
        assert not store.cancel(ids["a"][0])
    with TimerStore(tmp_path / "s", clock=ManualClock(START_MS + 60_000)) as store:
        assert store.count() == 0


def test_what_is_no_id_names_no_timer_and_one_in_lower_case_does(tmp_path: Path) -> None:
    """What was moved does not come back: its delete names it as whoever reads the log does."""
    clock = ManualClock(START_MS)
    store = TimerStore(tmp_path / "s", config=SMALL, clock=clock)
    left = [store.put(b"%d" % i, at_ms=START_MS + 9_000) for i in range(4)]
    for id in left:
        for at in (0, 1, 11, 12, 13, 23, 24, 31):
            for other in " _+-xX\n٣":
                spoilt = id[:at] + other + id[at + 1 :]
                assert store.get(spoilt) is None
                for call in (
                    store.cancel,
                    lambda spoilt: store.cancel_many([spoilt]),
                    lambda spoilt: store.reschedule(spoilt, at_ms=FAR_MS),
                ):
                    with pytest.raises(UnknownTimerError):
                        call(spoilt)
    left[0] = store.reschedule(left[0].lower(), at_ms=FAR_MS)
    assert store.cancel(left.pop().lower())
    assert store.count() == len(left)
    close(store.core, store.consuming, flush=False)
    with TimerStore(tmp_path / "s", clock=clock) as store:
        assert sorted(timer.id for timer in store.pending()) == sorted(left)


def described(timer: Any) -> dict[str, Any]:
    """A timer but for its id, by the names of what `reschedule` takes."""
    known = {"topic": timer.topic, "key": timer.key, "tag": timer.tag, "at_ms": timer.due_ms}
    return known | {"body": timer.body, "properties": timer.properties}


def moved_both_ways(
    stores: list[TimerStore], ids: tuple[str, str], given: dict[str, Any]
) -> tuple[str, str] | None:
    """Reschedule a timer in both stores; return its new ids, None where it is too late in both."""
    moved: list[str | None] = []
    for store, id, short in zip(stores, ids, (True, False), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            if not short:
                patch.setattr(store.timers._by_id, "reschedule", lambda *_: None)
            try:
                moved.append(store.reschedule(id, **given))
            except (TooLateError, InvalidArgumentError):
                moved.append(None)
    assert (moved[0] is None) == (moved[1] is None)
    return None if moved[0] is None or moved[1] is None else (moved[0], moved[1])


PAYLOADS = st.fixed_dictionaries(
    {},
    optional={
        "body": st.binary(min_size=1, max_size=200),
        "properties": st.dictionaries(st.sampled_from("xyz"), st.sampled_from(["1", "é" * 9])),
    },
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 400_000)),
        st.tuples(st.just("level"), st.integers(1, 18)),
        st.tuples(st.just("cancel"), st.integers(0, 1 << 20)),
        st.tuples(st.just("move"), st.integers(0, 1 << 20), st.integers(0, 400_000), PAYLOADS),
        st.tuples(st.just("get"), st.integers(0, 1 << 20)),
        st.tuples(st.just("advance"), st.integers(1, 60_000)),
        st.tuples(st.just("reopen"), st.integers(0, 1)),
    ),
    max_size=60,
)


@pytest.mark.long
@settings(max_examples=25)
@given(steps=STEPS)
def test_both_ways_agree(tmp_path_factory: pytest.TempPathFactory, steps: Any) -> None:
    """Two stores live the same life, one cancels and looks the long way."""
    folder = tmp_path_factory.mktemp("two")
    now_ms = START_MS
    stores = [TimerStore(folder / name, config=SMALL, clock=ManualClock(now_ms)) for name in "ab"]
    ids: list[tuple[str, str]] = []
    try:
        for what, value, *more in steps:
            if what == "put":
                full = {"key": "k", "tag": "t", "properties": {"x": "0"}} if value % 3 else {}
                at_ms = now_ms + value
                ids.append(tuple(s.put(b"x", topic="t", at_ms=at_ms, **full) for s in stores))
            elif what == "level":
                ids.append(tuple(s.put(b"x", topic="t", delay_level=value) for s in stores))
            elif what == "advance":
                now_ms += value
                for each in stores:
                    each.core.clock.advance(timedelta(milliseconds=value))
            elif what == "reopen":
                for i, name in enumerate("ab"):
                    stores[i].abandon() if value else stores[i].close()
                    stores[i] = TimerStore(folder / name, clock=ManualClock(now_ms))
            elif ids:
                short, long = ids[value % len(ids)]
                if what == "move":
                    delay_ms, payload = more
                    given = (
                        payload
                        if payload and delay_ms % 2
                        else payload | {"at_ms": now_ms + delay_ms}
                    )
                    old = stores[0].get(short)
                    moved = moved_both_ways(stores, (short, long), given)
                    if moved is not None:
                        ids.append(moved)
                        new = stores[0].get(moved[0])
                        assert old is not None
                        if new is not None:  # else it was due
                            assert described(new) == described(old) | given
                elif what == "cancel":
                    assert stores[0].cancel(short) == long_cancel(stores[1], long)
                else:
                    one, other = stores[0].get(short), long_get(stores[1], long)
                    assert (one is None) == (other is None)
                    if one is not None:
                        assert one.id == short and described(one) == described(other)
                        assert one == long_get(stores[0], short)
            assert stores[0].count() == stores[1].count()
            for each in stores:
                check_cancelled(each.core.engine.cancelled)
    finally:
        for each in stores:
            each.close()


def test_what_is_no_id_is_refused(tmp_path: Path) -> None:
    with TimerStore(tmp_path / "s", config=SMALL, clock=ManualClock(START_MS)) as store:
        id = store.put(b"x", topic="t", at_ms=FAR_MS)
        tag = id[24:]
        wrong = [f"{FAR_MS:012X}{at:012X}{tag}" for at in (1, 17, 300, 60_000, 70_000, 1 << 46)]
        wrong.append(f"{FAR_MS + 1:012X}{id[12:]}")
        for each in wrong:
            with pytest.raises(UnknownTimerError):
                store.cancel(each)
            with pytest.raises(UnknownTimerError):
                store.get(each)
        assert store.count() == 1 and store.cancel(id)


@pytest.mark.long
@pytest.mark.timeout(120)
def test_many_threads(tmp_path: Path) -> None:
    """Each timer is cancelled by two threads at once; each is told that it will not fire."""
    count = 60 if config.DISABLE_JIT else 600
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        ids = [store.put(b"x" * 300, topic=f"t{i % 3}", at_ms=FAR_MS) for i in range(count)]
        said: list[bool] = []

        def work(mine: list[str]) -> None:
            for id in mine:
                store.get(id)
                said.append(store.cancel(id))

        together(work, (ids[i % 2 :: 2] for i in range(4)))
        assert said == [True] * 2 * count and store.count() == 0
        check_cancelled(store.core.engine.cancelled)


def test_what_was_got_is_there_though_the_store_is_closed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [b"short", b"long" * 2_000]
    for i, body in enumerate(bodies):
        store = TimerStore(tmp_path / str(i))
        id = store.put(body, topic="t", key="k", tag="g", delay=timedelta(hours=1))

        def close_first(*args: Any, store: TimerStore = store) -> Any:
            store.close()
            return from_parts(*args)

        with monkeypatch.context() as patch:
            patch.setattr(timers, "from_parts", close_first)
            timer = store.get(id)
        assert timer is not None and (timer.body, timer.key, timer.tag) == (body, "k", "g")
        with pytest.raises(StoreClosedError):
            store.get(id)


@pytest.mark.timeout(120)
def test_closing_waits_for_who_changes_a_timer(tmp_path: Path) -> None:
    """What a call said holds in the store that is opened next."""
    count = 20 if config.DISABLE_JIT else 2_000
    for durability in ("process", "group"):
        path = tmp_path / durability
        store = TimerStore(path, config=replace(SMALL, durability=durability))
        ids = [store.put_many([b"x"] * count, topic="t", at_ms=FAR_MS) for _ in range(4)]
        gone, moved = set[str](), dict[str, str]()

        def change(mine: list[str], store: TimerStore = store, gone: Any = gone) -> None:
            with suppress(StoreClosedError):
                for id in mine:
                    assert store.cancel(id)
                    gone.add(id)

        def move(mine: list[str], store: TimerStore = store, moved: Any = moved) -> None:
            with suppress(StoreClosedError):
                for id in mine:
                    assert store.get(id) is not None
                    moved[id] = store.reschedule(id, at_ms=FAR_MS + 1)

        works = (change, move, change, move)
        threads = [
            threading.Thread(target=work, args=(list(mine),))
            for work, mine in zip(works, ids, strict=True)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        store.close()
        with TimerStore(path) as again:  # while some of them may still be in a call
            for thread in threads:
                thread.join()
            expected = {id for each in ids for id in each} - gone - moved.keys()
            assert {timer.id for timer in again.pending()} == expected | {*moved.values()}
