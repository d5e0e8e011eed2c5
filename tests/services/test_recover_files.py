"""Files that were cut or lost: what was flushed must be there with its full length."""

import os
from pathlib import Path

import pytest

from tests.services.alone import ENQUEUE_GET, START_MS, Alone, timer
from timerstore.errors import CorruptStoreError
from timerstore.services.engine.rebuild import QUEUES, TIMERS
from timerstore.services.opening.recover_damage import check_files
from timerstore.timelog.files.checkpoint import TimerCheckpoint


def filled(alone: Alone) -> TimerCheckpoint:
    """Fill three segments of each log; return a checkpoint that says that all are durable."""
    for i in range(50):
        alone.put(timer(alone.tag, "t", START_MS + i))
    for number in range(3):
        alone.engine.timerlog.ensure(number)
    return TimerCheckpoint(commitlog_flushed=alone.engine.commitlog.end, timerlog_flushed=3 * 520)


def names(folder: Path) -> list[Path]:
    """The segments of a log."""
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    ("folder", "rebuilt"),
    [("commitlog", []), ("timerlog", [TIMERS]), ("consumequeue/rmq_sys_wheel_timer/0", [QUEUES])],
)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_file_that_was_cut_is_named(folder: str, rebuilt: list[str], number: int) -> None:
    with Alone(ENQUEUE_GET) as alone:
        checkpoint = filled(alone)
        os.truncate(names(alone.path / folder)[number], 100)
        with pytest.raises(CorruptStoreError, match=folder) as caught:
            check_files(alone.engine, checkpoint, [])
        size = {"commitlog": 4_096, "timerlog": 520}.get(folder, 200)
        assert caught.value.offset == number * size + 100
        if rebuilt:
            check_files(alone.engine, checkpoint, rebuilt)  # nobody will look at it


def test_without_a_checkpoint_of_ours_the_last_file_may_have_been_about_to_be_made() -> None:
    for checkpoint in (None, TimerCheckpoint(by_broker=True)):
        with Alone(ENQUEUE_GET) as alone:
            filled(alone)
            last = names(alone.path / "commitlog")[-1]
            os.truncate(last, 0)
            check_files(alone.engine, checkpoint, [])
            os.truncate(names(alone.path / "commitlog")[0], 0)
            with pytest.raises(CorruptStoreError, match="commitlog"):
                check_files(alone.engine, checkpoint, [])


def test_a_file_behind_what_was_flushed_may_be_short() -> None:
    with Alone(ENQUEUE_GET) as alone:
        checkpoint = filled(alone)
        checkpoint.commitlog_flushed, checkpoint.timerlog_flushed = 4_096, 520
        for folder in ("commitlog", "timerlog"):
            os.truncate(names(alone.path / folder)[1], 5)
        check_files(alone.engine, checkpoint, [])


def test_units_that_lack_at_the_start_are_missed() -> None:
    """Not while another process, which may be removing them, has the store open."""
    with Alone(ENQUEUE_GET) as alone:
        checkpoint = filled(alone)
        checkpoint.timerlog_from = alone.engine.timerlog.start
        check_files(alone.engine, checkpoint, [])
        checkpoint.timerlog_from -= 1
        check_files(alone.engine, checkpoint, [TIMERS])
        check_files(alone.engine, checkpoint, [], is_live=True)
        with pytest.raises(CorruptStoreError, match="timerlog"):
            check_files(alone.engine, checkpoint, [])
