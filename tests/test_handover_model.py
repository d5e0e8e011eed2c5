"""Lives of a broker between those of a store that hops; each rule taken away is found."""

import pytest

from tests.models import handover_model
from tests.tiers import how_many

RUNS = how_many("HANDOVER_RUNS", 150, 1500)
FIRSTS = {
    "pass": (22, "twice"),
    "cut": (87, "twice"),
    "last": (4, "twice"),
    "files": (91, "lost"),
    "match": (44, "twice"),
}


def played(first: int, count: int, **switches: object) -> set[str]:
    """What the model's oracle finds wrong in so many histories."""
    histories = [
        handover_model.History(seed, **switches).history() for seed in range(first, first + count)
    ]
    assert count == 1 or sum(history.info["that had hopped"] for history in histories)
    return {what for history in histories for what, n in history.bad.items() if n}


def test_the_model_itself() -> None:
    assert played(0, RUNS) == set()


@pytest.mark.parametrize("wrong", handover_model.WRONG, ids=str)
def test_a_rule_that_is_broken_is_found(wrong: dict[str, object]) -> None:
    seed, finds = FIRSTS[next(iter(wrong))]
    assert finds in played(seed, 1, **wrong)
