"""Who is acting: what an owned record asks before it lets itself be written.

A service is not a thread: whoever holds its token runs its step. So a step says whose it is where
it begins (`act_as`), and Python where it answers a service's need, flushes, or has a store to
itself (`acting_as`). Compiled kernels neither say nor ask; interpreted ones do, so that the tests
prove the table of writers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from timerstore.timelog.kernel import INTERPRETED, inlined

ALONE: Final = -1
"""Nothing else runs in the store: everything may be written."""
CALLER: Final = -2
"""A thread that called the store; whoever says nothing else."""


class _Actor(threading.local):
    who: int = CALLER


_actor = _Actor()


def _act_as_twin(who: int) -> int:
    before, _actor.who = _actor.who, who
    return before


@inlined
def _act_as_nobody(who: int) -> int:
    return who


act_as = _act_as_twin if INTERPRETED else _act_as_nobody
"""act_as(who): in a kernel, say who acts from here on; return who did before."""


@contextmanager
def acting_as(who: int) -> Iterator[None]:
    """Say in Python who acts within the block."""
    before, _actor.who = _actor.who, who
    try:
        yield
    finally:
        _actor.who = before


def may_write(owners: frozenset[int]) -> bool:
    """Tell whether who acts is one of `owners`, or alone."""
    who = _actor.who
    return who in owners or who == ALONE


def actor() -> int:
    """Return who acts."""
    return _actor.who
