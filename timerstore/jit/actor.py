"""Who is acting: what an owned record asks before it lets itself be written, or a log be read.

A service is not a thread: the thread that holds its token runs its step. So a step says at its
begin whose it is (`act_as`), and so does Python when it answers a service's need, flushes, or has a
store to itself (`acting_as`). Compiled kernels neither say nor ask; interpreted ones do, so that
the tests prove the table of writers, and that nobody looks into a log whose maps may go meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from timerstore.jit.kernel import INTERPRETED, inlined

ALONE: Final = -1
"""Nothing else runs in the store: everything may be written."""
CALLER: Final = -2
"""A thread that called the store; this holds if nothing else is said."""


class _Actor(threading.local):
    who: int = CALLER
    is_stepping: bool = False

    def __init__(self) -> None:
        self.readings: list[object] = []


_actor = _Actor()


def _act_as_twin(who: int) -> int:
    before, _actor.who = _actor.who, who
    return before


def _step_as_twin(who: int) -> int:
    _actor.is_stepping = who >= 0
    return _act_as_twin(who)


@inlined
def _act_as_nobody(who: int) -> int:
    return who


act_as = _act_as_twin if INTERPRETED else _act_as_nobody
"""act_as(who): in a kernel, say who acts from here on; return who did before."""
step_as = _step_as_twin if INTERPRETED else _act_as_nobody
"""step_as(who): the same at the begin of a service's step, or with what it returned at its end."""


@contextmanager
def acting_as(who: int) -> Iterator[None]:
    """Say in Python who acts within the block."""
    before, _actor.who = _actor.who, who
    was_stepping, _actor.is_stepping = _actor.is_stepping, False
    try:
        yield
    finally:
        _actor.who, _actor.is_stepping = before, was_stepping


def may_write(owners: frozenset[int]) -> bool:
    """Tell whether who acts is one of `owners`, or alone."""
    who = _actor.who
    return who in owners or who == ALONE


def actor() -> int:
    """Return who acts."""
    return _actor.who


def begin_reading(table: object) -> None:
    """Say that this thread keeps what it finds in a log's table, until `end_reading`."""
    if INTERPRETED:
        _actor.readings.append(table)


def end_reading(table: object) -> None:
    """Take it back."""
    if INTERPRETED and table in _actor.readings:
        _actor.readings.remove(table)


def may_look(table: object) -> bool:
    """Tell whether who acts keeps what it finds in a table that others change: see epochs.py."""
    return _actor.is_stepping or _actor.who == ALONE or table in _actor.readings
