"""The protocol of the service threads holds, in all that was played of it.

`THREADS_RUNS=10000` plays so many random histories, from `THREADS_FIRST` on; `THREADS_SECONDS=600`
all interleavings of each scene, or as many as there is time for.
"""

import os
from typing import Any

import pytest

from tests.models import threads_play, wake_model
from tests.models.threads_store import WRONG, BrokenError, OwnerError, Store
from tests.models.wake_model import exchange, search, wait_for
from tests.tiers import how_many

pytestmark = pytest.mark.slow

RUNS = how_many("THREADS_RUNS", 80, 500)
FIRST = int(os.environ.get("THREADS_FIRST", "0"))
SECONDS = float(os.environ.get("THREADS_SECONDS", "0"))

# Where it is found at once: a history's seed, a scene to search, or a scene with the seed of a
# stroll through it. Where the model was changed, other histories are tried.
FOUND_IN: dict[str, int | str | tuple[str, int]] = {
    "claims without wheel": 36,
    "R outruns the checkpoint": 69,
    "Q after ring B": ("cancel against taking", 3246),
    "settles after fire": 314,
    "L without fire": 194,
    "units are synced to Q's end": 89,
    "levels without fire": "cancel against a level",
    "level offset after fire": "cancel against a level",
    "level offset is captured before": 47,
    "level file before the log": "capture, level",
    "reschedule in two appends": 174,
    "torn reschedules stay": "reschedule against firing",
    "cancel passes what was put aside by": 65,
    "R leaves stragglers behind": 823,
    "L forgets what went before": 52,
    "levels clamp without slack": 412,
    "a level's clock is read before its end": 120,
}
HISTORIES_MAX = 3_000


def test_random_histories_with_kills_and_power_cuts() -> None:
    actions = 0
    for seed in range(FIRST, FIRST + RUNS):
        try:
            actions += threads_play.history(seed)
        except BrokenError as e:
            pytest.fail(f"history {seed}: {e}")
    assert actions > 50 * RUNS


def test_all_interleavings_of_a_small_scene() -> None:
    """With a kill and power cuts in each state whose durable part is new."""
    states, complete = threads_play.explore(threads_play.SCENES["claim against link"])
    assert complete and states > 1_000


@pytest.mark.parametrize("name", threads_play.SCENES)
def test_scenes(name: str) -> None:
    scene = threads_play.SCENES[name]
    for seed in range(40):
        threads_play.stroll(scene, seed)
    states, complete = threads_play.explore(
        scene, states_max=None if SECONDS else 150, seconds=SECONDS
    )
    assert states >= 150 or complete


def look_for(rule: str) -> None:
    """Play without a rule until the oracle speaks."""
    found = FOUND_IN.get(rule)
    if isinstance(found, int):
        threads_play.history(found, (rule,))
    elif isinstance(found, str):
        threads_play.explore(threads_play.SCENES[found], (rule,), states_max=3_000)
    elif isinstance(found, tuple):
        threads_play.stroll(threads_play.SCENES[found[0]], found[1], (rule,))
    for seed in range(HISTORIES_MAX):
        threads_play.history(seed, (rule,))


@pytest.mark.parametrize("rule", WRONG)
def test_each_rule_is_needed(rule: str) -> None:
    """With one rule taken away the oracle speaks."""
    with pytest.raises(BrokenError):
        look_for(rule)


def test_words_refuse_a_write_by_another() -> None:
    store = Store()
    store.writer = "dequeue_put"
    store.dequeue_put.passed_slot += 1
    store.dequeue_put.settled[0] += 1
    store.fire.held_from = 3  # whoever has the lock
    for write in (
        lambda: setattr(store.dequeue_get, "claimed_slot", 3),
        lambda: store.dequeue_get.near.append((1, 2, 3)),
        lambda: store.dequeue_get.near.remove((1, 2, 3)),
        lambda: store.enqueue_put.late.__setitem__(0, 1),
    ):
        with pytest.raises(OwnerError, match="dequeue_put writes words of"):
            write()


# --- sleeping, helping, unmapping


@pytest.mark.parametrize("second", [True, False], ids=["fence", "none"])
@pytest.mark.parametrize("first", [True, False], ids=["fence", "none"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (wake_model.hand_on, wake_model.sleep_until_work),
        (wake_model.make_room, wake_model.sleep_until_room),
        (wake_model.look_up, wake_model.unmap),
    ],
    ids=["work", "room", "unmapping"],
)
def test_both_sides_need_a_fence(one: Any, other: Any, first: bool, second: bool) -> None:
    def play() -> int:
        return search(lambda: [one(fenced=first), other(fenced=second)])

    if first and second:
        assert play() > 10
    else:
        with pytest.raises(wake_model.BrokenError):
            play()


def test_a_second_look_before_sleeping_and_a_wait_before_unmapping() -> None:
    with pytest.raises(wake_model.BrokenError, match="sleeps for good"):
        search(lambda: [wake_model.hand_on(), wake_model.sleep_until_work(looks_again=False)])
    with pytest.raises(wake_model.BrokenError, match="after it was unmapped"):
        search(lambda: [wake_model.look_up(), wake_model.unmap(waits=False)])


def test_r_and_who_waits_for_it() -> None:
    """Nobody sleeps for good, neither before R nor behind it."""
    threads = (wake_model.walk, wake_model.settle_and_pass, wake_model.link_roll)
    assert search(lambda: [each() for each in threads]) > 1_000


@pytest.mark.parametrize("rule", wake_model.Rules.__dataclass_fields__)
@pytest.mark.parametrize("wrong", range(3), ids=["dequeue-get", "dequeue-put", "enqueue"])
def test_r_needs_each_fence_look_and_wake(wrong: int, rule: str) -> None:
    threads = (wake_model.walk, wake_model.settle_and_pass, wake_model.link_roll)
    without = wake_model.Rules(**{rule: False})

    def programs() -> list[wake_model.Program]:
        return [each(without if i == wrong else wake_model.ALL) for i, each in enumerate(threads)]

    with pytest.raises(wake_model.BrokenError, match="sleeps for good"):
        search(programs)


def help_first(**rules: bool) -> wake_model.Program:
    """Hand on the first of two entries to a service whose thread sleeps, and help it."""
    yield exchange("tail", 1)
    yield exchange("sleeps", 1)
    yield from wake_model.step(**rules)


def help_second(**rules: bool) -> wake_model.Program:
    """Hand on the second one meanwhile."""
    yield wait_for("sleeps", 1)
    yield from wake_model.help_on(2, **rules)


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        ({}, ""),
        ({"looks_again": False}, "an entry waits"),
        ({"fenced": False}, "an entry waits"),
        ({"takes": False}, "two threads run one step"),
    ],
    ids=["all", "no second look", "given back without a fence", "looked at, then taken"],
)
def test_helpers_leave_nothing_behind(rules: dict[str, bool], what: str) -> None:
    def threads() -> list[wake_model.Program]:
        own = wake_model.own_thread(**rules)
        return [help_first(**rules), help_second(**rules), own]

    if rules:
        with pytest.raises(wake_model.BrokenError, match=what):
            search(threads, wake_model.all_handled(2))
    else:
        assert search(threads, wake_model.all_handled(2)) > 1_000
