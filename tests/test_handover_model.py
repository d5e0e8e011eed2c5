"""The model of a broker in between: right rules go wrong nowhere, each one taken away is found."""

import pytest

from tests.models import handover_model
from tests.models.rules_model import FIRES_WAITING, found
from tests.tiers import how_many

RUNS = how_many("HANDOVER_RUNS", 100, 2000)
# Where something goes wrong first without each rule, and what.
FIRSTS = {
    "pass": (4, "twice"),
    "cut": (87, "twice"),
    "last": (4, "twice"),
    "files": (337, "lost"),
    "match": (19, "count: units - cancelled - done"),
    "beside": (772, "cancelled but fired"),
}


def test_nothing_goes_wrong() -> None:
    assert found(handover_model.History, 0, RUNS) == set()
    assert found(handover_model.History, RUNS, RUNS, **FIRES_WAITING) == set()


@pytest.mark.parametrize("wrong", handover_model.WRONG, ids=str)
def test_a_broker_without_a_rule_is_found(wrong: dict[str, object]) -> None:
    seed, what = FIRSTS[next(iter(wrong))]
    assert what in found(handover_model.History, seed, 1, **wrong)
