"""Listings that retention overtakes: what is pending all the while is listed, once."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.small_store import SMALL
from timerstore import Config, ManualClock, StoreFullError, TimerStore, Tuning
from timerstore.calls.pending import is_pending, listing
from timerstore.services.cleaning import retention
from timerstore.services.cleaning.retention import Retention
from timerstore.services.engine import holds
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold, LapsedError, while_held
from timerstore.services.looking import timer_places
from timerstore.services.looking.read_units import all_units
from timerstore.timelog.bytes.unit import Units

pytestmark = pytest.mark.long

START_MS = 1_800_000_000_000
DAY = timedelta(days=1)
COUNT = 700
CONFIG = dataclasses.replace(
    SMALL, retention_ms=0, tuning=dataclasses.replace(SMALL.tuning, cleaning_factor=1)
)
assert isinstance(CONFIG, Config) and isinstance(CONFIG.tuning, Tuning)


class Parked:
    """A store in which timers are parked; others come and go."""

    def __init__(self, folder: Path, count: int = COUNT, *, key_index: bool = True) -> None:
        self.count, self.clock = count, ManualClock(START_MS)
        config = dataclasses.replace(
            CONFIG, tuning=dataclasses.replace(CONFIG.tuning, key_index=key_index)
        )
        self.store = TimerStore(folder, config=config, clock=self.clock)
        self.far_ms = START_MS + 30 * 86_400_000
        self.ids = [
            # 300 of them are due at one millisecond: more than are decoded at once.
            self.store.put(
                b"%d" % i, topic="parked", key=f"p{i}", at_ms=self.far_ms + max(0, i - 300)
            )
            for i in range(count)
        ]
        self.live()

    @property
    def start(self) -> int:
        """Where the commit log begins."""
        return self.store.core.engine.commitlog.start

    def live(self) -> None:
        """Let more timers come and go than there are parked, and clean the store."""
        self.store.put_many([b"z" * 200] * (self.count + 300), topic="t", delay_ms=100)
        self.clock.advance(timedelta(seconds=3))
        while len(batch := self.store.pull("t", timeout=0, max_count=1_000)):
            batch.ack()
        for _ in range(3):
            self.store.clean()
            self.store.flush()
            self.clock.advance(timedelta(seconds=2))

    def overtake(self) -> None:
        """Clean until all that lay in the log does not lie there any more, if it may go."""
        for _ in range(3):
            self.live()


@pytest.fixture
def parked(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Parked]:
    made = Parked(tmp_path / "store", key_index=getattr(request, "param", True))
    with made.store:
        yield made


@pytest.fixture(params=["held", "lapsed"])
def overtaken(
    parked: Parked, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], bool]:
    """Let each call be overtaken once, between its capture and its reading; tell if one was."""
    if request.param == "lapsed":
        monkeypatch.setattr(Retention, "_is_full", lambda _: True)
    ready = [True]

    def once() -> None:
        if ready:
            ready.pop()
            before = parked.start
            other = threading.Thread(target=parked.overtake)  # this one is inside a call
            other.start()
            other.join(60)
            assert not other.is_alive()
            assert (parked.start > before) == (request.param == "lapsed")

    def read_messages(*args: Any) -> Any:
        once()
        return read(*args)

    def rows(*args: Any) -> Any:
        once()
        yield from read_rows(*args)

    read, read_rows = is_pending.read_messages, listing.read_rows
    monkeypatch.setattr(is_pending, "read_messages", read_messages)
    monkeypatch.setattr(listing, "read_rows", rows)
    return lambda: not ready


def test_each_way_of_listing_shows_all(parked: Parked, overtaken: Callable[[], bool]) -> None:
    assert sorted(timer.id for timer in parked.store.pending()) == sorted(parked.ids)
    assert overtaken()


def test_columns_show_all(parked: Parked, overtaken: Callable[[], bool]) -> None:
    listed = parked.store.pending_columns(topic="parked", columns=["id"])["id"].to_pylist()
    assert sorted(listed) == sorted(parked.ids)
    assert overtaken()


def test_the_first_columns_are_shown(parked: Parked, overtaken: Callable[[], bool]) -> None:
    listed = parked.store.pending_columns(limit=310, columns=["key"])["key"].to_pylist()
    assert sorted(listed[300:]) == sorted(f"p{i}" for i in range(300, 310))
    assert overtaken()


def test_a_horizon_counts_all(parked: Parked, overtaken: Callable[[], bool]) -> None:
    assert int(parked.store.horizon(3_600_000).count.sum()) == COUNT
    assert overtaken()


@pytest.mark.tier("promise", only=("held-get_key-False",))
@pytest.mark.tier("prove", only=("lapsed-[!gr]*",))
@pytest.mark.parametrize("parked", [False], indirect=True)
@pytest.mark.parametrize("what", ["get_key", "if_absent", "replace", "cancel_key", "pending"])
def test_keys_without_an_index(parked: Parked, overtaken: Callable[[], bool], what: str) -> None:
    store, at_ms = parked.store, parked.far_ms + 5
    if what == "get_key":
        timer = store.get_key("parked", "p7")
        assert timer is not None and timer.id == parked.ids[7]
    elif what == "if_absent":
        new = store.put(b"new", topic="parked", key="p7", at_ms=at_ms, if_absent=True)
        assert new == parked.ids[7]
    elif what == "replace":
        assert store.put(b"new", topic="parked", key="p7", at_ms=at_ms, replace=True)
        (timer,) = store.pending(topic="parked", key="p7")
        assert timer.body == b"new"
    elif what == "cancel_key":
        assert store.cancel_key("parked", "p7") == 1
    else:
        (timer,) = store.pending(topic="parked", key="p7")
        assert timer.id == parked.ids[7]
    assert overtaken()
    assert store.count() == COUNT - (what == "cancel_key")


@pytest.mark.tier("promise", only=("1-60",))
@pytest.mark.tier("prove", but=("1-60", "256--1", "300--1", "600-60"))
@pytest.mark.parametrize("rests_s", [60, -1])
@pytest.mark.parametrize("taken", [1, 255, 256, 300, 600])
def test_a_slow_listing_goes_on(
    parked: Parked, monkeypatch: pytest.MonkeyPatch, rests_s: int, taken: int
) -> None:
    """Also if its hold lapses in the midst of what is due at one millisecond."""
    monkeypatch.setattr(holds, "RESTS_S", rests_s)
    monkeypatch.setattr(holds, "CAPTURES_KEPT", rests_s)
    listing, before = parked.store.pending(limit=COUNT - 5), parked.start
    seen = [timer.id for timer in itertools.islice(listing, taken)]
    parked.overtake()
    assert (parked.start > before) == (rests_s < 0)
    parked.store.cancel(parked.ids[650])
    seen += [timer.id for timer in listing]
    once, pending = Counter(seen), {timer.id for timer in parked.store.pending()}
    assert set(once.values()) == {1}
    assert len(seen) in (COUNT - 5, COUNT - 6)
    assert len(pending - set(seen)) <= 5


def test_what_nobody_goes_on_with_keeps_nothing(parked: Parked) -> None:
    listing, before = parked.store.pending(), parked.start
    next(listing)
    parked.overtake()
    assert parked.start == before
    with suppress(ZeroDivisionError):  # an exception that is forgotten holds nothing either
        for _ in parked.store.pending():
            raise ZeroDivisionError
    del listing
    gc.collect()
    parked.overtake()
    assert parked.start > before


def test_retention_looks_once_at_what_a_listing_keeps(
    parked: Parked, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = Counter[int]()

    def look(engine: Engine, start: int, *rest: Any) -> Iterator[Units]:
        looked[start] += 1
        return all_units(engine, start, *rest)

    listing, kept = parked.store.pending(), parked.store.core.engine.timerlog.start
    next(listing)
    monkeypatch.setattr(retention, "all_units", look)
    parked.overtake()
    assert parked.store.core.engine.timerlog.start == kept < max(looked)
    assert max(looked.values()) < 5, looked


def test_too_much_that_is_kept_lapses(parked: Parked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holds, "KEPT_BYTES", 0)
    listing, before = parked.store.pending(), parked.start
    seen = [next(listing).id]
    for _ in range(4):
        parked.overtake()
    assert parked.start > before
    assert sorted(seen + [timer.id for timer in listing]) == sorted(parked.ids)


def test_listings_that_overlap_do_not_keep_all_for_ever(parked: Parked) -> None:
    listings, starts = [parked.store.pending()], list[int]()
    next(listings[0])
    for _ in range(6):
        parked.live()
        listings.append(parked.store.pending())
        next(listings[-1])
        listings.pop(0)
        starts.append(parked.start)
    assert len(set(starts)) > 3, starts


def test_a_full_store_says_so(parked: Parked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each capture has to go before it could be read."""

    def lapse(*_: object, **__: object) -> None:
        raise LapsedError

    monkeypatch.setattr(Hold, "pass_missing", lapse)
    monkeypatch.setattr(timer_places, "chain_units", lapse)
    for call in (lambda: list(parked.store.pending()), lambda: parked.store.horizon(1_000)):
        with pytest.raises(StoreFullError, match="raise max_bytes"):
            call()


def test_a_look_is_taken_again_until_it_succeeds() -> None:
    tries = iter([LapsedError, LapsedError, None])

    def look() -> int:
        if (error := next(tries)) is not None:
            raise error
        return 7

    assert while_held(look) == 7
