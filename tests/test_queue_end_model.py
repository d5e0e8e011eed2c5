"""The model of where a queue ends: it fails as soon as one of its rules is taken away."""

from collections import Counter

import pytest

from tests.models.queue_end_model import SAME, WRONG, Store
from tests.tiers import how_many

RUNS = how_many("QUEUE_END_RUNS", 1_000, 20_000)

FIRSTS = [
    (1, "made anew, and all was sound"),
    (0, "a message is not handed out"),
    (26, "an index is given twice"),
    (0, "a message is not handed out"),
    (19, "made anew, and all was sound"),
]
"""Where something goes wrong first without each rule, and what."""


def bad(runs: int, **rules: str) -> Counter[str]:
    return sum((Store(seed, **rules).history().bad for seed in range(runs)), Counter[str]())


def test_the_rules_hold() -> None:
    assert not bad(RUNS)
    seen = sum((Store(seed).history().seen for seed in range(200)), Counter[str]())
    assert seen["power cuts"] > 200 and seen["made anew"] > 50


@pytest.mark.parametrize("same", SAME, ids=str)
def test_what_makes_no_difference(same: dict[str, str]) -> None:
    assert not bad(RUNS, **same)


@pytest.mark.parametrize(("wrong", "first"), [*zip(WRONG, FIRSTS, strict=True)], ids=str)
def test_each_rule_is_needed(wrong: dict[str, str], first: tuple[int, str]) -> None:
    seed, what = first
    assert Store(seed, **wrong).history().bad[what]
