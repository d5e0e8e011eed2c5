"""Group commit: many wait for one fsync, which one of them makes.

One thread leads at a time. The threads that wait sleep, without the GIL, until the one that leads
is done. Then one call wakes all of them, those whose bytes are durable return, and one of the
others leads. A wake-up for each, or a lock that is handed from one to the next, would cost each of
them a turn at the GIL before the next fsync can begin.

Who leads first lets a *crowd* gather: as many as were here when the last one was done, those whom
it let go included, who come back with their next bytes after some µs each. Without that two halves
of the crowd would take turns, and each fsync serve half as many. It ends once all are there, or
nobody came for `_QUIET_NS`; a thread that is alone never waits.

Who leads does so by a guard (`timerstore/jit/guards.py`), so a signal's exception ends it. What
that cannot exclude is that such an exception takes away the one thread that was about to lead; so
nobody sleeps longer than `_LOOK_UP_NS` without looking.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Final

import numpy as np

from timerstore.jit.guards import Guarded
from timerstore.jit.intrinsics import compare_exchange, fetch_add, load_acquire, store_release
from timerstore.jit.kernel import caller_of, inlined, kernel_ahead, kernel_ahead_with_gil
from timerstore.jit.record import Words, record
from timerstore.jit.system import sleep_while, thread_id, wake_sleepers

# What `GroupCommit.wait` returns.
IS_DURABLE: Final = 0
HAS_FAILED: Final = 1
MAY_LEAD: Final = 2
LEADS: Final = 3  # this thread does already: a signal's handler waits in the midst of it
_STILL_WAITS: Final = 4

# Its words, a cache line for each that is often written.
_LEADER: Final = 0  # the thread that leads, 0: nobody
_ROUND: Final = 8  # counts how often somebody was done: those who wait sleep here
_WAITING: Final = 16  # how many wait: the one who leads sleeps here while they gather
DURABLE: Final = 24  # bytes of the log before it are durable
_FAILED: Final = 25  # not 0: nothing will be durable any more
_CROWD: Final = 26  # how many were here when the last one was done
_ASKING: Final = 32  # how many want to be alone: nobody else begins to lead
_QUIET: Final = 40  # a struct timespec
_LOOK_UP: Final = 42  # a struct timespec
_WORDS: Final = 48
_QUIET_NS: Final = 100_000
_LOOK_UP_NS: Final = 50_000_000


@record
class Crowd:
    """What those who wait share."""

    words: Words  # int64[_WORDS], see the constants above


@inlined
def _tell(words: Words) -> None:
    """Have all who wait look again; who is not counted yet reads the new round."""
    fetch_add(words, _ROUND, 1)
    if load_acquire(words, _WAITING) + load_acquire(words, _ASKING) != 0:
        wake_sleepers(words, _ROUND)


@inlined
def _look(words: Words, offset: int) -> int:
    """Return what there is to say to who waits for `offset`; STILL_WAITS if nothing."""
    if load_acquire(words, DURABLE) >= offset:
        return IS_DURABLE
    if load_acquire(words, _FAILED) != 0:
        return HAS_FAILED
    leader = load_acquire(words, _LEADER)
    if leader == 0 and load_acquire(words, _ASKING) == 0:
        return MAY_LEAD
    return LEADS if leader == thread_id() else _STILL_WAITS


@kernel_ahead
def _wait(crowd: Crowd, offset: int) -> int:
    """Sleep until there is something to say to who waits for `offset`."""
    words = crowd.words
    outcome = _look(words, offset)
    if outcome != _STILL_WAITS:
        return outcome
    if fetch_add(words, _WAITING, 1) + 2 == load_acquire(words, _CROWD):
        wake_sleepers(words, _WAITING)  # the crowd is complete
    while True:
        round = load_acquire(words, _ROUND)  # before it looks: what changes then changes this
        outcome = _look(words, offset)
        if outcome != _STILL_WAITS:
            break
        sleep_while(words, _ROUND, round, _LOOK_UP)
    fetch_add(words, _WAITING, -1)
    return outcome


@kernel_ahead
def _gather(crowd: Crowd) -> int:
    """Sleep until the crowd is complete, or nobody came for a while; return how many wait."""
    words = crowd.words
    seen = -1
    waiting = load_acquire(words, _WAITING)
    while waiting + 1 < words[_CROWD] and waiting != seen:
        seen = waiting
        sleep_while(words, _WAITING, seen, _QUIET)
        waiting = load_acquire(words, _WAITING)
    return waiting


@kernel_ahead_with_gil
def _lead(crowd: Crowd) -> int:
    """Begin to lead, unless somebody does, or wants to be alone; return whether this did."""
    words = crowd.words
    if load_acquire(words, _ASKING) == 0 and compare_exchange(words, _LEADER, 0, thread_id()):
        return 1
    return 0


@kernel_ahead
def _lead_alone(crowd: Crowd) -> int:
    """Wait until nobody leads, then begin; nobody overtakes."""
    words = crowd.words
    fetch_add(words, _ASKING, 1)
    while True:
        round = load_acquire(words, _ROUND)
        if compare_exchange(words, _LEADER, 0, thread_id()):
            break
        sleep_while(words, _ROUND, round, _LOOK_UP)
    fetch_add(words, _ASKING, -1)
    return 1


@kernel_ahead
def _leave(crowd: Crowd) -> int:
    """End to lead; for the thread that does."""
    words = crowd.words
    words[_CROWD] = load_acquire(words, _WAITING) + 1
    store_release(words, _LEADER, 0)
    _tell(words)
    return 0


@kernel_ahead
def _advance(crowd: Crowd, end: int, at_once: int) -> int:
    """Say what is durable, which never is less; `at_once` let go whom that lets go."""
    words = crowd.words
    if end > words[DURABLE]:
        store_release(words, DURABLE, end)
    if at_once != 0:
        _tell(words)
    return end


class GroupCommit:
    """Those who wait for a log to be durable; any number of threads.

    `with commit.leading.guard() as leads:` tries to lead, `with commit.alone.guard():` waits until
    this thread does. Neither is reentrant. Only who leads may call `gather` and `advance`.
    """

    def __init__(self, durable_end: int) -> None:
        """Begin with nobody; bytes before `durable_end` are durable."""
        self.words = words = np.zeros(_WORDS, np.int64)
        words[DURABLE] = durable_end
        words[_QUIET + 1], words[_LOOK_UP + 1] = _QUIET_NS, _LOOK_UP_NS
        self._crowd = crowd = Crowd(words)
        leave = partial(caller_of(_leave), crowd)
        self.leading = Guarded(caller_of(_lead), crowd, leave)
        self.alone = Guarded(caller_of(_lead_alone), crowd, leave)
        self._wait, self._gather = caller_of(_wait), caller_of(_gather)
        self._advance = caller_of(_advance)

    @property
    def durable_end(self) -> int:
        """Bytes before it are durable."""
        return int(self.words[DURABLE])

    @property
    def leads(self) -> bool:
        """Whether this thread leads."""
        return bool(self.words[_LEADER] == threading.get_ident())

    def wait(self, offset: int) -> int:
        """Sleep until there is something to say: IS_DURABLE, HAS_FAILED, MAY_LEAD or LEADS."""
        return self._wait(self._crowd, offset)

    def gather(self) -> None:
        """Let those come who are about to wait."""
        self._gather(self._crowd)

    def advance(self, end: int, *, at_once: bool = False) -> None:
        """Say that bytes before `end` are durable.

        Those who wait hear of it when this thread leaves, or `at_once`. A signal's handler may have
        said more in the midst of it; that holds.
        """
        self._advance(self._crowd, end, int(at_once))

    def fail(self) -> None:
        """Say that nothing will be durable any more."""
        self.words[_FAILED] = 1
