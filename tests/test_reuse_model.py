"""The rules of using segments again: the model fails as soon as one of them is taken away.

REUSE_RUNS=20000 in the environment plays more.
"""

from collections import Counter
from typing import Any

import pytest

from tests.models.reuse_model import RULES, WRONG, Store
from tests.tiers import how_many

pytestmark = pytest.mark.long

RUNS = how_many("REUSE_RUNS", 500, 10_000)
SEEDS_MAX = 8_000
"""Histories in which a wrong variant must have failed."""


def test_the_rules_hold() -> None:
    bad, seen = Counter[str](), Counter[str]()
    for seed in range(RUNS):
        store = Store(seed, **RULES).history()
        bad += store.bad
        seen += store.seen
    assert not bad
    assert seen["reused"] > RUNS and seen["crashes"] > RUNS


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_each_rule_is_needed(wrong: dict[str, Any]) -> None:
    assert any(Store(seed, **wrong).history().bad for seed in range(SEEDS_MAX))
