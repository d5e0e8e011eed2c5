"""The real store in the histories of `tests/models/rules_model.py`, step by step.

Random puts, cancels, reschedules, single steps of each service, clock steps both ways, long stops;
crashes between any two messages of an append, power cuts also in the middle of a flush. Whatever
the history, the log must end where the model's ends: nothing lost, twice, early, or fired after a
cancel, and the count exact. RULES_RUNS=500 in the environment plays more of them, MODEL_RUNS=3000
more of the model's own.
"""

from pathlib import Path

import pytest

from tests.models import rules_model
from tests.models.rules_model import found
from tests.rigs.history import History
from tests.tiers import SEED, Told, how_many
from timerstore.jit.kernel import INTERPRETED

RUNS = how_many("RULES_RUNS", 4 if INTERPRETED else 6, 200)
MODEL_RUNS = how_many("MODEL_RUNS", 80, 3000)


# Where something goes wrong first without each rule, and what.
FIRSTS = [
    (14, "a hop leads nowhere"),
    (118, "lost"),
    (1, "count at end"),
    (1, "lost"),
    (21, "cancelled but fired"),
    (17, "lost"),
    (10, "twice"),
    (0, "lost"),
    (792, "twice"),
    (932, "twice"),
    (175, "cancelled but fired"),
    (114, "a hop leads nowhere"),
    (94, "stuck: livelock"),
    (94, "twice"),
    (1, "reschedule: both"),
    (0, "lost"),
    (0, "claimed twice"),
    (18, "lost"),
    (175, "cancelled but fired"),
    (6, "False though pending"),
    (1, "twice"),
]


@pytest.mark.long
def test_the_model_itself() -> None:
    assert found(rules_model.Store, 0, MODEL_RUNS) == set()


@pytest.mark.parametrize("same", rules_model.SAME, ids=str)
def test_what_makes_no_difference(same: dict[str, object]) -> None:
    assert found(rules_model.Store, 0, 50, **same) == set()


@pytest.mark.parametrize(
    ("wrong", "first"), [*zip(rules_model.WRONG, FIRSTS, strict=True)], ids=str
)
def test_a_history_without_a_rule_is_found(
    wrong: dict[str, object], first: tuple[int, str]
) -> None:
    seed, what = first
    assert what in found(rules_model.Store, seed, 1, **wrong)


@pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
def test_history(seed: int, tmp_path: Path, record_property: Told) -> None:
    history = History(tmp_path, seed)
    history.run()
    record_property("cuts", history.lives)
