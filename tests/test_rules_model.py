"""The real store in the histories of `tests/models/rules_model.py`, step by step.

Random puts, cancels, reschedules, single steps of each service, clock steps both ways, long stops;
crashes between any two messages of an append, power cuts also in the middle of a flush. Whatever
the history, the log must end where the model's ends: nothing lost, twice, early, or fired after a
cancel, and the count exact. RULES_RUNS=500 in the environment plays more of them.
"""

import os
from pathlib import Path

import pytest

from tests.models import rules_model
from tests.models.rules_model import found
from tests.rigs.history import History
from tests.tiers import how_many
from timerstore.timelog.jit.kernel import INTERPRETED

RUNS = how_many("RULES_RUNS", 4 if INTERPRETED else 20, 200)
FIRST = int(os.environ.get("RULES_FIRST", "0"))


# Where something goes wrong first without each rule, and what.
FIRSTS = [
    (8, "twice"),
    (64, "cancelled but fired"),
    (1597, "count at end"),
    (9, "stuck: livelock"),
    (0, "lost"),
    (0, "lost"),
    (0, "outside range"),
    (203, "False though pending"),
]


def test_the_model_itself() -> None:
    assert found(rules_model.History, 0, 150) == set()


@pytest.mark.parametrize(
    ("wrong", "first"), [*zip(rules_model.WRONG, FIRSTS, strict=True)], ids=str
)
def test_a_history_without_a_rule_is_found(wrong: dict[str, str], first: tuple[int, str]) -> None:
    seed, what = first
    assert what in found(rules_model.History, seed, 1, **wrong)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_history(seed: int, tmp_path: Path) -> None:
    History(tmp_path, seed).run()
