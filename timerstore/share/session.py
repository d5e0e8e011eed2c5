"""What one client holds at its owner: batches that it pulled, listings that it began.

Ground rules: several connections of a client ask at the same time, each in a thread of its own;
`_lock` is held for a moment, never while the store is asked. When a client's last connection has
ended, or it was not heard of for a while, what it pulled can be pulled by others at once.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, TypeVar

from timerstore.calls.consuming.run import Run
from timerstore.calls.pending.timers import Timer
from timerstore.errors import InvalidArgumentError, StoreClosedError
from timerstore.jit.guards import Lock
from timerstore.share.wire import Header, Part, Wire

T = TypeVar("T")
ANSWER_BYTES_MAX: Final = 1 << 20
"""Of an answer that is kept; of one that is longer, the log's tail tells."""
_ANSWERS_MAX: Final = 256
LISTINGS_MAX: Final = 16
"""Listings that a client has begun; the oldest one ends."""


@dataclass(slots=True)
class _Held:
    """A batch, of which the places in `open` are not settled."""

    batch: Run
    open: set[int] = field(default_factory=set)


Answered = tuple[Header, Sequence[Part]]


class LastAnswers:
    """The last answer on each connection of a client, until it asks the next thing there.

    It was made, and may not have arrived. One connection has one thread at a time.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[int, Answered]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def find(self, slot: str, number: object) -> Answered | None:
        """Return what was answered to a question; None if that is not known."""
        last = self._last.get(slot)
        return last[1] if last is not None and last[0] == number else None

    def keep(self, slot: str, number: object, answered: Answered) -> None:
        """Keep an answer, in place of the last one there."""
        self._last.pop(slot, None)
        length = sum(map(len, answered[1]))
        if isinstance(number, int) and length <= ANSWER_BYTES_MAX:
            self._last[slot] = number, answered
            while len(self._last) > _ANSWERS_MAX:
                self._last.popitem(last=False)

    def forget(self, slot: str) -> None:
        """Forget what was answered there: it has arrived."""
        self._last.pop(slot, None)


class Session:
    """One client; it has a name that it chose, by which it is known on all its connections."""

    def __init__(self, name: str, life: str) -> None:
        """`life`: of the owner; batches of different lives have different names."""
        self.name, self._life = name, life
        self.wires: set[Wire] = set()
        self.seen_s = time.monotonic()
        self.answers = LastAnswers()
        self._numbers = count(1)
        self._held: dict[str, _Held] = {}
        self._listings: dict[str, Iterator[Timer]] = {}
        self._slots: dict[str, Lock] = {}
        self._lock = Lock()

    def slot(self, number: str) -> Lock:
        """Return what is held while a connection of that number asks."""
        with self._lock.guard():
            return self._slots.setdefault(number, Lock())

    # --- batches

    def hold(self, batch: Run) -> str:
        """Remember a batch that is handed to the client; return its name."""
        name = f"{self._life}.{next(self._numbers)}"
        with self._lock.guard():
            self._held[name] = _Held(batch, set(range(len(batch))))
        return name

    def batch(self, name: object) -> Run | None:
        """Return a batch of which something is held; None if it was taken back."""
        with self._lock.guard():
            held = self._held.get(name) if isinstance(name, str) else None
            return None if held is None else held.batch

    def settle(self, name: str, places: list[int] | None, *, handled: bool = True) -> bool:
        """Acknowledge messages of a batch, None for all; tell whether it was held."""
        batch, mine = self._take(name, places)
        if batch is not None and mine:
            if len(mine) == len(batch) and handled:
                batch.ack()
            else:
                batch.settle_some(mine, handled=handled)
        return batch is not None

    def use(self, name: str, place: int, do: Callable[[Run], T]) -> T | None:
        """Do something that settles one message; None if it is not held, and nothing done.

        If that raises, the message is held as before.
        """
        batch, mine = self._take(name, [place])
        if batch is None or not mine:
            return None
        try:
            return do(batch)
        except BaseException:
            with self._lock.guard():
                self._held.setdefault(name, _Held(batch)).open.add(place)
            raise

    def give_back(self, name: str, places: list[int] | None = None) -> None:
        """Let messages of a batch, None for all, be pulled again by any consumer of the group."""
        batch, mine = self._take(name, places)
        if batch is not None and mine:
            with contextlib.suppress(StoreClosedError):
                batch.give_back(mine)

    def _take(self, name: object, places: list[int] | None) -> tuple[Run | None, list[int]]:
        """Take places out of what is held: the caller alone then handles them."""
        with self._lock.guard():
            held = self._held.get(name) if isinstance(name, str) else None
            if held is None:
                return None, []
            wanted = held.open if places is None else held.open.intersection(places)
            mine = sorted(wanted)
            held.open -= set(mine)
            if not held.open:
                del self._held[name]  # type: ignore[arg-type]
            return held.batch, mine

    # --- listings

    def begin(self, listing: Iterator[Timer]) -> str:
        """Remember a listing; return its name."""
        name = f"{self._life}.{next(self._numbers)}"
        with self._lock.guard():
            self._listings[name] = listing
            while len(self._listings) > LISTINGS_MAX:
                del self._listings[next(iter(self._listings))]
        return name

    def listing(self, name: object) -> Iterator[Timer]:
        """Return a listing that was begun; one thread asks for it at a time."""
        with self._lock.guard():
            found = self._listings.get(name) if isinstance(name, str) else None
        if found is None and isinstance(name, str) and not name.startswith(f"{self._life}."):
            raise StoreClosedError("The process that read this listing has ended. Begin a new one.")
        if found is None:
            raise InvalidArgumentError("This listing has ended. Begin a new one.")
        return found

    def end_listing(self, name: str) -> None:
        """Forget a listing."""
        with self._lock.guard():
            self._listings.pop(name, None)

    # --- the end

    def release(self) -> None:
        """Let others pull what it held."""
        with self._lock.guard():
            names = list(self._held)
            self._listings.clear()
        for name in names:
            self.give_back(name)
