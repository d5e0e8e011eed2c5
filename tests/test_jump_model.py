"""The model of the read cursor's jump over slots without units."""

import pytest

from tests.models import jump_model
from tests.models.rules_model import found
from tests.tiers import how_many

pytestmark = pytest.mark.long

MODEL_RUNS = how_many("MODEL_RUNS", 80, 3000)

FIRSTS = [(0, "lost"), (0, "lost")]
"""Where something goes wrong first without each rule, and what."""


def test_the_model_itself() -> None:
    assert found(jump_model.Store, 0, MODEL_RUNS) == set()


def test_it_jumps() -> None:
    assert sum(jump_model.Store(seed).history().info["jumps"] for seed in range(20)) > 100


@pytest.mark.parametrize("same", jump_model.SAME, ids=str)
def test_what_makes_no_difference(same: dict[str, object]) -> None:
    assert found(jump_model.Store, 0, 50, **same) == set()


@pytest.mark.parametrize(("wrong", "first"), [*zip(jump_model.WRONG, FIRSTS, strict=True)], ids=str)
def test_a_history_without_a_rule_is_found(
    wrong: dict[str, object], first: tuple[int, str]
) -> None:
    seed, what = first
    assert what in found(jump_model.Store, seed, 1, **wrong)
