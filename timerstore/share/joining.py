"""Puts that many threads of a client make at the same time go to the owner as one question.

A few go each by itself, on a connection of its own. If more are under way, they wait in a list, of
which one thread *leads*: it takes all that wait, and asks for them together. Meanwhile others come;
once it has told each its id, one of those leads. The owner answers with the ids of those that it
put, from the first on, and with the error of the next one; what is behind that waits again. So each
caller has an id or an error of its own. Nobody waits for others to come, unless the owner waits for
its disk: then those who lead let a crowd gather, as in `services/durable/group_commit.py`.

Only the main thread runs handlers of signals, which may raise anywhere: it neither leads nor waits.
If another one cannot go on while it leads, for lack of memory say, those that it asked for have an
error. A thread that waits looks now and then whether nobody leads. Who leads has a connection
before it takes those that wait: so each waits for an owner as long as its client lets it.
"""

from __future__ import annotations

import threading
import time
from _thread import allocate_lock, get_ident
from contextlib import suppress
from copy import copy
from typing import Any, Final

from timerstore.errors import StoreClosedError, TimerStoreError
from timerstore.share.link import Link
from timerstore.share.wire import error_from_json
from timerstore.values.blocked_loop import note_blocking

ALONE_MAX: Final = 8
"""So many threads put each by itself; if there are more, they join."""
BODY_BYTES_MAX: Final = 1 << 14
"""A put whose body is longer goes by itself: no other waits while it is copied."""
_COUNT_MAX: Final = 512
"""Puts in one question."""
_LOOK_S: Final = 1.0
_QUIET_S: Final = 0.0001

Said = dict[str, Any]
"""The arguments of a put as JSON says them, without its body."""


class Waiting:
    """A put that waits for who leads."""

    __slots__ = ("body", "said", "told", "until_s", "woken")

    def __init__(self, said: Said, body: bytes, until_s: float) -> None:
        self.said, self.body, self.until_s = said, body, until_s
        self.told: str | TimerStoreError | None = None
        self.woken = allocate_lock()  # held until there is something to look at
        self.woken.acquire()

    def tell(self, told: str | TimerStoreError) -> None:
        """Say its id, or what went wrong."""
        self.told = told
        self.wake()

    def wake(self) -> None:
        """Have its thread look."""
        with suppress(RuntimeError):  # it does already
            self.woken.release()


def put_joined(link: Link, said: Said, body: bytes) -> str:
    """Put one timer, together with others if many are under way; return its id."""
    threads, me = link.putting, get_ident()
    threads.add(me)
    try:
        is_alone = len(threads) <= ALONE_MAX or len(body) > BODY_BYTES_MAX
        if is_alone or me == threading.main_thread().ident:
            id: str = link.ask("put", said, [body])[0]["result"]
            return id
        return _join(link, Waiting(said, body, time.monotonic() + link.patience_s))
    finally:
        threads.discard(me)


def _join(link: Link, mine: Waiting) -> str:
    note_blocking()
    link.waiting.append(mine)
    while mine.told is None:
        with link.leading.if_free.guard() as leads:
            if leads and mine.told is None:  # so it is in the list
                _lead(link, mine)
        if leads:
            with suppress(IndexError):
                link.waiting[0].wake()  # it came meanwhile, and leads next
        else:
            mine.woken.acquire(timeout=_LOOK_S)
    if isinstance(mine.told, TimerStoreError):
        raise mine.told
    return mine.told


def _gather(link: Link) -> None:
    """Let as many come as were here when the last question was answered, if that took a fsync.

    Else one of two questions has a single put. It ends once nobody came for a while.
    """
    waiting, seen = link.waiting, 0
    while seen < len(waiting) < link.crowd:
        seen = len(waiting)
        time.sleep(_QUIET_S)


def _lead(link: Link, mine: Waiting) -> None:
    """Ask for those that wait, `mine` among them, and tell each what became of it."""
    waiting = link.waiting
    try:
        slot = link.take_connected(mine.until_s)
    except BaseException:
        waiting.remove(mine)
        raise
    _gather(link)
    asked = waiting[:_COUNT_MAX]
    problem: TimerStoreError | None = StoreClosedError(
        "The thread that asked for this put, beside its own, ended before it was answered. The "
        "timer may have been put: check that, then try again."
    )
    try:
        given = {"puts": [each.said for each in asked], "sizes": [len(each.body) for each in asked]}
        bodies = b"".join([each.body for each in asked])
        header, _ = link.ask_on(slot, "put_each", given, [bodies])
        ids, refused, waited = header["result"]
        link.crowd = len(waiting) if waited else 0
        for each, id in zip(asked, ids, strict=False):
            each.tell(id)
        if refused is not None:
            asked[len(ids)].tell(error_from_json(refused))
        problem = None
    except TimerStoreError as e:
        problem = e
    finally:
        for each in asked if problem is not None else ():
            if each.told is None:
                each.tell(copy(problem))
        del waiting[: sum(each.told is not None for each in asked)]  # others came behind them
