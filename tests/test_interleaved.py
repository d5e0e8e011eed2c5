"""The real kernels, interpreted, with a plan of who goes on at each of their boundaries.

Hypothesis makes up what callers do, the turns, kills and power cuts; `INTERLEAVED_RUNS=1000` plays
so many seeded histories, from `SEED` on. Wrong variants of the kernels are each
caught. Where the suite runs compiled, one process plays all of it interpreted.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings

from tests.calls.pending.test_overtaken import Parked
from tests.models import interleaved
from tests.models.interleaved import (
    Life,
    Plan,
    play,
    seeded,
    with_stops,
)
from tests.models.ledger import read_ledger
from tests.models.scenes import SCENES, scene
from tests.models.wrong_kernels import WRONG, wrong
from tests.rigs.baton import StuckError
from tests.rigs.history import START_MS, History
from tests.rigs.program import python
from tests.services import test_owed
from tests.services.test_owed import (
    test_listing_cancelling_and_rescheduling_see_what_is_owed as owed_listing,
)
from tests.small_store import SMALL
from tests.sparse_copy import copy_tree
from tests.tiers import SEED, how_many
from timerstore import CorruptStoreError, ManualClock, TimerStore
from timerstore.jit.kernel import INTERPRETED
from timerstore.testing import QuietDisk, check_damaged
from timerstore.testing.damage import flip_bit

RUNS = how_many("INTERLEAVED_RUNS", 6, 50)
CUTS = how_many("INTERLEAVED_CUTS", 2, 40)

LONG_STOP = Plan((Life(((("tick", 9_000), ("put", 30)),), ()),))
"""The read cursor is ninety slots behind the clock: nobody may sleep until it has come."""

SEEDS = (1477,)
"""Of histories that found a fault: enqueue-get slept while a timer fell due."""

# In which scene each wrong variant is caught, and at which turn; or after which stops.
FOUND_IN: dict[str, tuple[str, int] | int] = {
    "claims without wheel": ("claim against link", 0),
    "the claim cursor moves before the head is read": ("claim against link", 1),
    "the claim cursor is read before wheel": ("link against claim", 2),
    "the read cursor is read before wheel": ("the read cursor against a walk", 1),
    "the read cursor moves without wheel": ("cancel at a slot's end", 3),
    "the read cursor jumps without wheel": ("link against a jump", 1),
    "the read cursor jumps over units": ("jumps", 0),
    "the read cursor jumps while something waits": ("jumps", 0),
    "the read cursor is judged before wheel": ("cancel at a slot's end", 3),
    "set is read before fire": ("cancel against taking", 0),
    "settles after fire": ("cancel against taking", 0),
    "levels without fire": ("cancel against a level", 3),
    "level offset after fire": ("cancel against a level", 3),
    "needs are answered under fire": ("cancel against taking", 0),
    "frontier late": ("owed, cancel", 0),
    "the queue cursor after the late ring": ("cancel against taking", 1),
    "a level's clock is read before its end": ("put at a level against its clock", 3),
    "deletes at once": ("cancel at a slot's end", 0),
    "what was not appended is settled": ("cancel against taking", 0),
    "levels pass what was not appended": ("cancel against a level", 0),
    "levels wait for a clock that went back": ("a clock that falls", 0),
    "levels clamp without slack": ("a level's cancel that is held", 0),
    "the copies cursor without fire": ("link against the read cursor", 0),
    "the read cursor before the copies cursor": ("flush against the read cursor", 0),
    "level offset is captured before": ("flush against a level", 0),
    "level file before the log": ("a level, power in a flush", 1),
    "held deletes are forgotten": ("a level's cancel that is held", 0),
    "the copies cursor ignores held deletes": ("a level's cancel that is held, flush", 0),
    "reschedule in two appends": ("reschedule against put", 0),
    "cancel passes the late ring by": ("cancel of what is overdue", 3),
    "cancel passes the dequeue ring by": ("cancel of what is overdue", 1),
    "the read cursor before the hops cursor": ("flush against a hop", 0),
    "the hops cursor forgets what hopped": ("hop, flush", 0),
}


def play_history(folder: Path, seed: int = 0) -> None:
    """One random history of a whole store, with kills and power cuts."""
    History(folder, seed).run()


def play_damage(folder: Path) -> None:
    """A bit of a body flips, in a store that is open."""
    clock = ManualClock(START_MS)
    with TimerStore(folder / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        store.put_many([b"body"] * 9, delay_ms=5_000)
        before = read_ledger(store.path)
        flip_bit(store.path / "commitlog" / f"{0:020d}", b"body")
        clock.advance(20)
        check_damaged(store, before)
        assert store.stats().unreadable_count == 1


def play_files(folder: Path, harm: Callable[[Path], None]) -> None:
    """Files of a store are damaged that was killed, and had removed some of its timer log."""
    clock = ManualClock(START_MS)
    store = TimerStore(folder / "s", config=SMALL, clock=clock, disk=QuietDisk())
    for _ in range(3):
        store.put_many([b"far"] * 30, delay_ms=10_000)
        store.put_many([b"body"] * 60, delay_ms=range(300, 6_300, 100))
        clock.advance(3)
        store.flush()
    path = copy_tree(store.path, folder / "killed")
    store.close()
    before = read_ledger(path)
    harm(path)
    clock = ManualClock(clock.now_ms)
    try:
        with TimerStore(path, config=SMALL, clock=clock, disk=QuietDisk()) as store:
            clock.advance(20)
            check_damaged(store, before)
    except CorruptStoreError as e:
        raise AssertionError("it is refused") from e


def lose_first_units(path: Path) -> None:
    min((path / "timerlog").iterdir()).unlink()


def swap_messages(path: Path) -> None:
    first, second, *_ = sorted((path / "commitlog").iterdir())
    first.rename(path / "first")
    second.rename(first)
    (path / "first").rename(second)


def play_listing(folder: Path) -> None:
    """Retention overtakes a listing."""
    parked = Parked(folder / "s", 300)
    with parked.store as store:
        listing = store.pending()
        seen = [next(listing).id]
        parked.overtake()
        try:
            seen += [timer.id for timer in listing]
        except CorruptStoreError as e:
            raise AssertionError("what a listing reads was removed") from e
        assert sorted(seen) == sorted(parked.ids)


SHOWN_BY: dict[str, Callable[[Path], None]] = {
    "the read cursor passes what is owed": test_owed.test_the_read_cursor_waits_for_what_is_owed,
    "what is left is not owed": partial(owed_listing, in_first=1),
    "what is owed is claimed twice": (
        test_owed.test_what_is_put_into_a_slot_that_owes_fires_at_once_and_not_again
    ),
    "deletes go before what is owed": test_owed.test_deletes_wait_for_rolls_that_are_owed,
    "the copies cursor forgets copies behind what is owed": (
        test_owed.test_copies_of_slots_not_passed_keep_the_copies_cursor
    ),
    "cancel passes what is owed by": partial(owed_listing, in_first=1),
    "a listing passes what is owed by": partial(owed_listing, in_first=1),
    "the checkpoint is written before the log is flushed": partial(play_history, seed=1),
    "the queue cursor is captured at the queue's end": play_history,
    "no origin is read": play_history,
    "no CRC is checked": play_damage,
    "no message's own offset is read": partial(play_files, harm=swap_messages),
    "the timer log may begin anywhere": partial(play_files, harm=lose_first_units),
    "the floor passes what a listing reads": play_listing,
}
"""Those that a test of its own catches, step by step."""
TO_BE_FOUND_ANEW = {"what found no room is forgotten"}
"""Variants that no known plan catches since the kernels' boundaries have moved; looked for so far:
stops 0 to 400, seeds 2,990 to 3,400."""
TURNS = 5


if INTERPRETED:
    # The same histories each time: what is rare is looked for by many seeds, not by chance.
    @settings(
        max_examples=20,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=[*HealthCheck],
    )
    @example(LONG_STOP)
    @given(interleaved.plans())
    def test_histories_that_hypothesis_makes_up(
        tmp_path_factory: pytest.TempPathFactory, plan: Plan
    ) -> None:
        play(plan, tmp_path_factory.mktemp("history") / "h")

    @pytest.mark.timeout(60 + 10 * RUNS)
    @pytest.mark.parametrize("make", [seeded, with_stops])
    def test_seeded_histories(make: Callable[[int], Plan], tmp_path: Path) -> None:
        """In most of them segments are used again. After stops much is owed."""
        reusing = 0
        for seed in range(SEED, SEED + RUNS):
            try:
                played = play(make(seed), tmp_path / str(seed))
                assert played.boundaries > 50
            except BaseException as e:
                e.add_note(f"in history {seed}")
                raise
            reusing += played.reused > 0
        assert 2 * reusing > RUNS or RUNS < 10

    @pytest.mark.parametrize("seed", SEEDS)
    def test_history_that_found_a_fault(seed: int, tmp_path: Path) -> None:
        play(seeded(seed), tmp_path / "h")

    @pytest.mark.parametrize("name", SCENES)
    def test_scene(name: str, tmp_path: Path) -> None:
        """The second caller goes on at some of the boundaries."""
        boundaries = play(scene(name), tmp_path / "all").boundaries
        for cut in range(1, boundaries, boundaries // CUTS):
            play(scene(name, cut=cut), tmp_path / str(cut))

    def look_for(name: str, folder: Path) -> None:
        """Play the plan that catches a variant, then others, for its kernel may have changed."""
        found = FOUND_IN[name]
        if isinstance(found, int):
            for stops in range(found, found + 40):
                play(with_stops(stops), folder / str(stops))
            return
        play(scene(*found), folder / "found")
        for turn in range(TURNS):
            play(scene(found[0], turn), folder / str(turn))

    @pytest.mark.parametrize(
        "play",
        [
            *(partial(play_history, seed=1), play_damage),
            *(partial(play_files, harm=each) for each in (lose_first_units, swap_messages)),
        ],
    )
    def test_right_kernels_keep_their_promises(
        play: Callable[[Path], None], tmp_path: Path
    ) -> None:
        play(tmp_path)

    NOT_CAUGHT = pytest.mark.xfail(run=False, reason="its plan has to be found anew")

    @pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=NOT_CAUGHT) if name in TO_BE_FOUND_ANEW else name
            for name in WRONG
        ],
    )
    def test_wrong_kernels_are_caught(name: str, tmp_path: Path) -> None:
        with wrong(name), pytest.raises((AssertionError, StuckError)):
            SHOWN_BY.get(name, partial(look_for, name))(tmp_path)

else:

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_interpreted() -> None:
        """All of this file, in a process that interprets kernels."""
        run = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
        python(*run, cwd=Path(__file__).parent.parent, timeout_s=290, NUMBA_DISABLE_JIT="1")
