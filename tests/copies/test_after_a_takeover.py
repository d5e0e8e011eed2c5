"""What a copy that became the store leaves behind: the one before it, points that go later."""

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.cli.shell import SMALL
from tests.copies.kept import AHEAD_MS, TINY, objects
from tests.copies.test_standby import Pair
from tests.rigs.objects import CutDestination
from tests.rigs.waiting import wait_until
from tests.tiers import how_many
from timerstore import InvalidArgumentError, StoreLockedError, TimerStoreError
from timerstore.copies.backup import keep_newest, remove_needless, thin_out
from timerstore.copies.catalog import Catalog, read_catalog
from timerstore.copies.destination import find_destination
from timerstore.copies.promote import promote
from timerstore.copies.standby import Standby
from timerstore.services.world.background import Flag

ROUNDS = how_many("PROMOTE_ROUNDS", 3, 60)
EACH = how_many("PROMOTE_STEP", 2, 1)
pytestmark = [pytest.mark.timeout(120 + 10 * ROUNDS), pytest.mark.long]


def become_promoted(pair: Pair) -> Path:
    pair.fetch()
    pair.promote()
    return pair.local


def become_restored(pair: Pair) -> Path:
    pair.kept.restore()
    return pair.kept.restored


@pytest.mark.parametrize("become", [become_promoted, become_restored])
@pytest.mark.parametrize("thinned", ["to a minute", "to the last ones"])
def test_points_from_before_may_go(
    tmp_path: Path, become: Callable[[Pair], Path], thinned: str
) -> None:
    """The log goes on without a gap, also if the last point of the store before was removed."""
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    for _ in range(5):
        pair.ship(10)
    path = become(pair)
    with timerstore.open(path, config=TINY, clock=pair.kept.clock) as store:
        for _ in range(3):
            store.put(b"new", topic="t", delay_ms=AHEAD_MS)
            pair.kept.tick()
            store.backup(pair.place)
    catalog = read_catalog(find_destination(pair.place))
    before = len(catalog.points)
    if thinned == "to a minute":
        thin_out(catalog, pair.kept.clock.now_ms + 3_600_000, 48 * 3_600_000)
    else:
        keep_newest(catalog, 2)
    assert len(catalog.points) < before - 3
    remove_needless(catalog)
    assert timerstore.verify(pair.place).ok
    report = timerstore.restore(pair.place, tmp_path / "again", clock=pair.kept.clock)
    assert (report.pending_count, report.ok) == (53, True)
    with timerstore.open(path, config=TINY, clock=pair.kept.clock) as store:
        store.put(b"new", topic="t", delay_ms=AHEAD_MS)
        store.backup(pair.place, keep=1)
    assert timerstore.restore(pair.place, tmp_path / "last").pending_count == 54
    pair.close()


def test_an_idle_follower_is_told_and_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute later at most; what it would thin out belongs to the copy that became the store."""
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    for _ in range(4):
        pair.ship(10)
    pair.fetch()
    pair.kept.store.close()
    pair.kept.follower.step()
    pair.promote()
    before = objects(pair.place)
    pair.kept.clock.advance(timedelta(days=9))
    pair.kept.follower._cared_s -= 61
    with pytest.raises(StoreLockedError, match="taken over"):
        pair.kept.follower.run(Flag())
    assert objects(pair.place) == before
    with timerstore.open(pair.kept.path, config=TINY, clock=pair.kept.clock) as store:
        (warning,) = [e for e in store.health().warnings if e.kind == "copy is behind"]
        assert "taken over" in warning.what


@pytest.mark.promise
def test_promoted_while_it_is_followed(tmp_path: Path) -> None:
    """Whatever the follower does just then: it is refused, and the copy has all that counts."""
    rnd = random.Random(1)
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        place = f"file://{folder}/objects"
        folder.mkdir()
        with timerstore.open(folder / "store", config=SMALL) as store:
            following = store.follow(place, every=0.01)
            put = {store.put(b"first", delay=timedelta(hours=1))}
            wait_until(lambda: following.status.shipped_end)  # noqa: B023
            locals_ = [folder / "one", folder / "two"]
            for local in locals_:
                standby = Standby(local, find_destination(place), place)
                standby.step()
                standby.close()
            for _ in range(rnd.randrange(1, 30)):
                body = bytes(rnd.randrange(1, 3_000))
                put |= {*store.put_many([body] * rnd.randrange(1, 40), delay=timedelta(hours=1))}
            shipped_end = following.status.shipped_end
            promote(locals_[0], config=SMALL)
            store.put(b"too late", delay=timedelta(hours=1))
            wait_until(lambda: following.status.ended)  # noqa: B023
            with pytest.raises(StoreLockedError, match="taken over"):
                following.close()
            (warning,) = [e for e in store.health().warnings if e.kind == "copy is behind"]
            assert "taken over" in warning.what
        held = pending(locals_[0])
        assert held <= put
        assert pending_restored(place, folder / "a") == held
        with timerstore.open(locals_[0], config=SMALL) as store:
            assert store.stats().commitlog_end >= shipped_end
            following = store.follow(place, every=0.01)
            store.put(b"in the first copy", delay=timedelta(hours=1))
            end = store.stats().commitlog_end
            wait_until(lambda: following.status.shipped_end == end)  # noqa: B023
            promote(locals_[1], config=SMALL)
            store.put(b"too late", delay=timedelta(hours=1))
            wait_until(lambda: following.status.ended)  # noqa: B023
            with suppress(StoreLockedError):
                following.close()
        again = pending(locals_[1])
        assert held < again and len(again) == len(held) + 1
        assert pending_restored(place, folder / "b") == again
        assert timerstore.verify(place).ok


def pending(path: Path) -> set[str]:
    with timerstore.open(path, read_only=True, config=SMALL) as store:
        return {each.id for each in store.pending()}


def pending_restored(place: str, path: Path) -> set[str]:
    assert timerstore.restore(place, path, config=SMALL).ok
    return pending(path)


@pytest.mark.parametrize("done", [False, True])
def test_wherever_the_destination_fails_a_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """Before a call or, `done`, behind it, with its answer lost: the next try has all of it."""
    left = 0
    while True:
        folder = tmp_path / str(left)
        pair = Pair(folder, f"file://{folder}/objects")
        pair.ship(12)
        pair.fetch()
        pair.ship(3)
        cut = CutDestination(find_destination(pair.place), left, done=done)
        with monkeypatch.context() as patch:
            patch.setattr("timerstore.copies.promote.find_destination", lambda place: cut)  # noqa: B023
            try:
                pair.promote()
            except TimerStoreError:
                assert timerstore.verify(pair.local).ok
            else:
                break
        assert pair.promote().pending_count == 15
        pair.kept.put(1)
        pair.goes_on(15)
        pair.close()
        left += EACH
    assert left > 6
    pair.close()


def test_a_promotion_that_was_interrupted_is_no_standby(tmp_path: Path) -> None:
    """A step would fetch points behind the one from which the new store goes on."""
    pair = Pair(tmp_path, f"file://{tmp_path}/objects")
    pair.ship(5)
    pair.fetch()
    pair.ship(5)
    shipper = pair.kept.follower._shipper
    assert shipper is not None
    cut = CutDestination(
        find_destination(pair.place),
        1 << 30,
        fails=lambda call: call.startswith("put") and call.endswith("json"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("timerstore.copies.promote.find_destination", lambda place: cut)
        with pytest.raises(TimerStoreError):
            pair.promote()
    shipper.check_is_ours = lambda: None  # type: ignore[method-assign]
    pair.ship(5)  # its look was before the claim
    with pytest.raises(InvalidArgumentError, match="Run: timerstore promote"):
        pair.fetch()
    assert pair.promote().pending_count == 10
    with timerstore.open(pair.local, config=TINY, clock=pair.kept.clock) as store:
        store.backup(pair.place)
    assert Catalog(find_destination(pair.place)).points[-1].number == 3
    assert pair.kept.restore().pending_count == 10
    pair.close()
