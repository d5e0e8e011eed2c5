"""Counting what a stage did."""

from timerstore.services.stages import READ_UNITS, STAGE_WORDS, count_stage, new_stages
from timerstore.timelog.jit.kernel import kernel
from timerstore.timelog.jit.record import Words


@kernel
def _count(stages: Words, stage: int, count: int, elapsed_ns: int) -> None:
    count_stage(stages, stage, count, elapsed_ns)


def test_a_stage_counts_what_it_did() -> None:
    stages = new_stages()
    _count(stages, READ_UNITS, 5, 300)
    _count(stages, READ_UNITS, 2, 100)
    rows = stages.reshape(-1, STAGE_WORDS)
    assert rows[READ_UNITS, :4].tolist() == [2, 7, 400, 300]
    assert rows.sum() == rows[READ_UNITS].sum()
