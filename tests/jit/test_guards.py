"""Guards: what they took is given back, wherever an exception ends the block."""

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.interrupting import Interrupt, alarms, interrupted
from timerstore.jit.guards import Guarded, Lock, RLock
from timerstore.jit.kernel import INTERPRETED
from timerstore.jit.locks import Gate, TurnLock
from timerstore.services.durable.group_commit import GroupCommit

Held = Callable[[], bool]


def lock() -> tuple[Guarded, Held]:
    made = Lock()
    return made, made.locked


def lock_if_free() -> tuple[Guarded, Held]:
    made = Lock()
    return made.if_free, made.locked


def again() -> tuple[Guarded, Held]:
    made = RLock()
    return made, made.is_mine


def turn_lock() -> tuple[Guarded, Held]:
    made = TurnLock()
    return made, lambda: bool(made.words[0] != made.words[8])


def turn_lock_if_free() -> tuple[Guarded, Held]:
    made = TurnLock()
    return made.if_free, lambda: bool(made.words[0] != made.words[8])


def gate() -> tuple[Guarded, Held]:
    made = Gate()
    return made, lambda: bool(made.words.any())


def leading() -> tuple[Guarded, Held]:
    made = GroupCommit(0)
    return made.leading, lambda: made.leads


def alone() -> tuple[Guarded, Held]:
    made = GroupCommit(0)
    return made.alone, lambda: made.leads


OF_PYTHON = [lock, lock_if_free, again]
OF_KERNELS = [turn_lock, turn_lock_if_free, gate, leading, alone]
ALL = [*OF_PYTHON, *OF_KERNELS]


def fail(guarded: Guarded, held: Held) -> None:
    with guarded.guard():
        assert held()
        raise ZeroDivisionError


@pytest.mark.parametrize("make", ALL)
def test_a_block_holds_it(make: Callable[[], tuple[Guarded, Held]]) -> None:
    guarded, held = make()
    for _ in range(3):
        with guarded.guard() as taken:
            assert taken is True and held()
        assert not held()
        with pytest.raises(ZeroDivisionError):
            fail(guarded, held)
        assert not held()
        with suppress(ZeroDivisionError):
            try:
                with guarded.guard():
                    raise ZeroDivisionError
            finally:
                assert not held(), "it is free before what comes next"
    guarded.guard()
    assert not held(), "nothing was entered"


def test_a_trace_that_is_kept_keeps_no_lock() -> None:
    kept = RLock()
    with pytest.raises(ZeroDivisionError) as raised:
        fail(kept, kept.is_mine)
    assert not kept.is_mine()
    assert traceback.format_exception(raised.value)


@pytest.mark.parametrize("make", [RLock, Gate])
def test_a_block_within_a_block_gives_back_its_own(make: Callable[[], Guarded]) -> None:
    guarded = make()
    held = guarded.is_inside if isinstance(guarded, Gate) else guarded.is_mine  # type: ignore[attr-defined]
    with guarded.guard():
        with suppress(ZeroDivisionError), guarded.guard():
            raise ZeroDivisionError
        with guarded.guard(), guarded.guard():
            pass
        assert held()
    assert not held()


@pytest.mark.parametrize("make", [lock_if_free, turn_lock_if_free, leading])
def test_what_is_not_free_is_not_given_back(make: Callable[[], tuple[Guarded, Held]]) -> None:
    guarded, held = make()
    with guarded.guard():
        with guarded.guard() as taken:  # a signal's handler
            assert taken is False
        assert held()
    assert not held()


@pytest.mark.timeout(60)
def test_who_waits_can_be_interrupted() -> None:
    """The main thread waits for a lock that another one keeps: Ctrl-C ends the wait."""
    kept, inside, leave = RLock(), threading.Event(), threading.Event()

    def keep() -> None:
        with kept.guard():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=keep)
    thread.start()
    inside.wait()
    with signals(0.05) as interrupter, pytest.raises(Interrupt):
        interrupter.disturb(kept, kept.is_mine)
    leave.set()
    thread.join()
    with kept.guard():
        assert kept.is_mine()


class Interrupter:
    """What says whether a signal raises: once each time it is armed.

    A signal may still be on its way once its timer was stopped; it must not fall into what is
    looked at afterwards.
    """

    armed = False

    def disturb(self, guarded: Guarded, held: Held) -> None:
        """Be armed while somebody waits."""
        self.armed = True
        fail(guarded, held)

    def is_wanted(self, _: Any) -> bool:
        """Tell whether it is armed, and disarm it."""
        armed, self.armed = self.armed, False
        return armed


@contextmanager
def signals(every_s: float) -> Iterator[Interrupter]:
    """Have a signal come to the main thread again and again."""
    interrupter = Interrupter()
    with alarms(Interrupt, interrupter.is_wanted):
        signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
        yield interrupter


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", OF_PYTHON if INTERPRETED else ALL)
def test_no_signal_leaves_it_held(make: Callable[[], tuple[Guarded, Held]]) -> None:
    guarded, held = make()
    hits = 0

    def hold() -> None:  # apart, for a `try` does not cover all of a loop in it
        interrupter.armed = True
        while interrupter.armed:
            with guarded.guard():
                for _ in range(3):
                    pass

    with signals(0.00005) as interrupter:
        while hits < 500:
            try:
                hold()
            except Interrupt:
                hits += 1
            assert not held(), hits


def _block(guarded: Guarded) -> None:
    """Take it in each kind of block; for the rig below."""
    for i in range(2):
        with guarded.guard():
            for _ in range(2):
                if i:
                    continue
        while i < 2:
            with guarded.guard() as taken:
                if taken:
                    break
        try:
            with guarded.guard():
                int("x")
        except ValueError:
            pass


@pytest.mark.parametrize("make", OF_PYTHON if INTERPRETED else ALL)
def test_no_place_leaves_it_held(make: Callable[[], tuple[Guarded, Held]]) -> None:
    """Wherever any version of Python looks for signals, and at the places between."""
    guarded, held = make()
    at = 0
    while True:
        with suppress(Interrupt), interrupted(at, "test_guards.py", everywhere=True) as count:
            _block(guarded)
        assert not held(), at
        assert sys.exc_info()[1] is None, at
        if not count.raised:
            break
        at += 1
    assert at > 50 and sys.gettrace() is None
