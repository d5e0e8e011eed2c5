"""The models of rolls that hop: right rules go wrong nowhere, each one taken away is found."""

import pytest

from tests.models import hops_cleaning_model, hops_handover_model, hops_model
from tests.tiers import how_many

RUNS = how_many("HOPS_RUNS", 100, 2000)
BROKER_FIRSTS = {
    "pass": (22, "twice"),
    "cut": (87, "twice"),
    "last": (4, "twice"),
    "files": (91, "lost"),
    "match": (44, "twice"),
}


def played(make: type[hops_model.Store], first: int, count: int, **switches: object) -> set[str]:
    """What a model's oracle finds wrong in so many histories."""
    histories = [make(seed, **switches).history() for seed in range(first, first + count)]
    return {what for history in histories for what, n in history.bad.items() if n}


@pytest.mark.parametrize(
    "make", [hops_model.Store, hops_cleaning_model.History, hops_handover_model.History]
)
def test_nothing_goes_wrong(make: type[hops_model.Store]) -> None:
    assert played(make, 0, RUNS) == set()


@pytest.mark.parametrize(
    "same",
    [
        {"old": 1},  # all roll by messages when they are made
        {"cancelled": "hop"},  # what was cancelled hops on
        {"roll": "claimed", "old": 0},  # a unit hops when its chain is walked
    ],
    ids=str,
)
def test_what_makes_no_difference(same: dict[str, object]) -> None:
    assert played(hops_model.Store, 0, 50, **same) == set()


@pytest.mark.parametrize(
    ("rule", "wrong", "seed", "finds"),
    [
        ("base", "w", 23, "stuck: R behind"),
        ("claim", "formula", 0, "not fired when due"),
        ("dele", "clock", 2102, "reschedule: both"),
        ("ring", "R", 135, "lost"),
        ("roll", "claimed", 41, "stuck: livelock"),
        ("reopen", "", 15, "lost"),
        ("leap", "over units", 3, "lost"),
        ("leap", "R alone", 1, "outside range"),
        ("leap", "unclaimed", 1008, "False though pending"),
        ("counts", "all", 22, "twice"),
        ("counts", "first", 0, "lost"),
        ("T", "end", 22, "twice"),
        ("until", "forget", 31, "twice"),
        ("hops", "no", 29, "lost"),
        ("hop", "base", 56, "a hop leads nowhere"),
        ("ahead", "no", 3, "a hop leads nowhere"),
        ("H", hops_model.W, 99, "stuck: livelock"),
        ("copies", "fired", 41, "twice"),
        ("leaves", "first slot", 93, "cancelled but fired"),
    ],
)
def test_a_rule_that_is_broken_is_found(rule: str, wrong: object, seed: int, finds: str) -> None:
    assert finds in played(hops_model.Store, seed, 1, **{rule: wrong})


def test_cleaning_without_each_rule_is_found() -> None:
    # Where something goes wrong first without each rule, and what.
    firsts = {
        ("mark", "F"): (0, "twice"),
        ("at", "slot"): (0, "twice"),
        ("find", "first units"): (0, "lost"),
        ("find", "messages"): (13, "twice"),
        ("frontier", "no"): (0, "twice"),
        ("begins", "fired"): (10, "twice"),
        ("flight", "no"): (12, "twice"),
        ("end", "early"): (0, "lost"),
        ("end", "late"): (0, "count at end"),
        ("units", "first"): (0, "read what was removed"),
        ("rebuild", "L"): (5, "twice"),
        ("counts", "all"): (0, "two live units"),
        ("T", "end"): (67, "two live units"),
        ("near", "copy"): (0, "twice"),
        ("wait", "no"): (2, "count at end"),
        ("L", "early"): (0, "twice"),
        ("capture", "late"): (904, "lost"),
        ("order", "F first"): (14, "removed unconsumed"),
        ("remove", "memory"): (6, "read what was removed"),
        ("reach", "all"): (5, "lost"),
        ("deletes", "drop"): (70, "count: units - cancelled - done"),
        ("deletes", "forget"): (0, "count at end"),
        ("eaten", 0): (10, "removed unconsumed"),
        ("cancel", "split"): (0, "lost"),
        ("walk", "-1"): (0, "read what was removed"),
        ("floor", "no"): (0, "read what was removed"),
        ("dead", "copy"): (6, "reschedule: both"),
    }
    assert len(firsts) == len(hops_cleaning_model.WRONG)
    for wrong in hops_cleaning_model.WRONG:
        seed, what = firsts[next(iter(wrong.items()))]
        assert what in played(hops_cleaning_model.History, seed, 1, **wrong), wrong
    for same in hops_cleaning_model.SAME:
        assert played(hops_cleaning_model.History, 0, 10, **same) == set(), same


@pytest.mark.parametrize("wrong", hops_handover_model.WRONG, ids=str)
def test_a_broker_without_a_rule_is_found(wrong: dict[str, object]) -> None:
    seed, finds = BROKER_FIRSTS[next(iter(wrong))]
    assert finds in played(hops_handover_model.History, seed, 1, **wrong)
