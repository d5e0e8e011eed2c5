"""The model of a broker in between: right rules go wrong nowhere, each one taken away is found."""

import pytest

from tests.models import handover_model
from tests.models.rules_model import FIRES_WAITING, found
from tests.tiers import how_many

pytestmark = pytest.mark.long

RUNS = how_many("HANDOVER_RUNS", 100, 2000)
# Where something goes wrong first without each rule, and what.
FIRSTS = [
    (12, "twice"),
    (13, "twice"),
    (10, "twice"),
    (175, "lost"),
    (7, "twice"),
    (13, "twice"),
    (34, "lost"),
    (204, "twice"),
]


def test_nothing_goes_wrong() -> None:
    assert found(handover_model.History, 0, RUNS) == set()
    assert found(handover_model.History, RUNS, RUNS, **FIRES_WAITING) == set()


@pytest.mark.parametrize(
    ("wrong", "first"), [*zip(handover_model.WRONG, FIRSTS, strict=True)], ids=str
)
def test_a_broker_without_a_rule_is_found(wrong: dict[str, object], first: tuple[int, str]) -> None:
    seed, what = first
    assert what in found(handover_model.History, seed, 1, **wrong)
