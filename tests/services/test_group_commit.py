"""Group commit: one leads, all others sleep until it is done."""

import signal
import threading
import time

import pytest

from tests.interrupting import alarms
from tests.models.commit_model import CHECKPOINT, PUTTER, WRONG, FoundError, play
from tests.rigs.together import together
from timerstore.jit.kernel import INTERPRETED
from timerstore.services.durable.group_commit import (
    HAS_FAILED,
    IS_DURABLE,
    LEADS,
    MAY_LEAD,
    GroupCommit,
)

pytestmark = pytest.mark.on_disk

SCENES = (((PUTTER,) * 2, 2), ((PUTTER,) * 3, 1), ((PUTTER, PUTTER, CHECKPOINT), 1))


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize(("kinds", "puts"), SCENES)
def test_no_order_of_steps_loses_anybody(kinds: tuple[str, ...], puts: int) -> None:
    assert play(kinds, puts=puts, fails=CHECKPOINT in kinds) > 10_000


@pytest.mark.parametrize("wrong", WRONG)
def test_the_model_finds_each_mistake(wrong: str) -> None:
    with pytest.raises(FoundError):
        play((PUTTER,) * 2, puts=2, wrong=wrong)


def test_who_waits_is_told_what_there_is_to_say() -> None:
    commit = GroupCommit(100)
    assert (commit.durable_end, commit.leads) == (100, False)
    assert (commit.wait(100), commit.wait(101)) == (IS_DURABLE, MAY_LEAD)
    with commit.leading.guard():
        assert commit.leads
        commit.advance(150)
    assert (commit.leads, commit.wait(150)) == (False, IS_DURABLE)
    commit.fail()
    assert (commit.wait(150), commit.wait(151)) == (IS_DURABLE, HAS_FAILED)


def test_who_leads_does_not_wait_for_itself() -> None:
    commit = GroupCommit(0)
    for section in (commit.leading, commit.alone):
        with section.guard():
            assert (commit.wait(1), commit.leads) == (LEADS, True)
    with commit.leading.guard():  # a signal's handler was quicker
        commit.advance(5)
        commit.advance(3)
    assert commit.durable_end == 5


@pytest.mark.parametrize("alone", [False, True])
def test_one_leads_at_a_time(alone: bool) -> None:
    commit, inside, most = GroupCommit(0), [0], [0]

    def lead(i: int) -> None:
        for _ in range(200):
            with commit.alone.guard() if alone or i == 0 else commit.leading.guard():
                if commit.leads:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    inside[0] -= 1

    together(lead, range(4))
    assert (most[0], inside[0], commit.leads) == (1, 0, False)


def test_nobody_begins_to_lead_before_who_wants_to_be_alone() -> None:
    commit, order = GroupCommit(0), list[str]()

    def be_alone() -> None:
        with commit.alone.guard():
            order.append("alone")

    thread = threading.Thread(target=be_alone)
    with commit.leading.guard():
        thread.start()
        while not commit.words[32]:
            time.sleep(0.001)
    with commit.leading.guard():
        order.append("leads" if commit.leads and not order else "does not")
    thread.join(60)
    assert order in (["does not", "alone"], ["alone", "leads"], ["alone", "does not"])


@pytest.mark.parametrize("fails", [False, True])
def test_all_who_wait_hear_of_it(fails: bool) -> None:
    commit, heard, begin = GroupCommit(0), list[int](), threading.Event()

    def wait(i: int) -> None:
        begin.wait()
        heard.append(commit.wait(1 + i))

    def lead(i: int) -> None:
        if i:
            return wait(i)
        with commit.alone.guard():
            begin.set()
            while commit.words[16] < 7:
                time.sleep(0.001)
            if fails:
                commit.fail()
            else:
                commit.advance(8)
        return None

    together(lead, range(8))
    assert heard == [HAS_FAILED if fails else IS_DURABLE] * 7


def test_who_leads_waits_for_the_crowd_but_not_for_ever() -> None:
    commit, syncs, served = GroupCommit(0), [0], [0]
    end, lock = [0], threading.Lock()

    def put(i: int) -> None:
        for _ in range(50):
            with lock:
                end[0] += 1
                mine = end[0]
            while commit.wait(mine) != IS_DURABLE:
                with commit.leading.guard():
                    if commit.leads and commit.durable_end < mine:
                        commit.gather()
                        syncs[0] += 1
                        commit.advance(end[0])
            served[0] += 1

    together(put, range(8))
    assert served[0] == 400 == commit.durable_end
    assert syncs[0] <= 400


@pytest.mark.skipif(INTERPRETED, reason="machine code keeps signals out")
@pytest.mark.timeout(60)
def test_a_signals_exception_leaves_nobody_leading() -> None:
    commit = GroupCommit(0)
    with alarms(KeyboardInterrupt):
        until = time.monotonic() + 1
        while time.monotonic() < until:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                while True:
                    with commit.leading.guard():
                        pass
                    with commit.alone.guard():
                        pass
            except KeyboardInterrupt:
                assert not commit.leads
    assert commit.wait(1) == MAY_LEAD
