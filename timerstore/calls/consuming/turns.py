"""Turns: how many messages a second a group is handed of a topic, or of each key of a property.

The rule is GCRA, a token bucket in one number: for each key the time at which its whole burst is
free again. To take a turn moves it an interval ahead; a turn is free if it is then at most a burst
of intervals ahead. Times are in nanoseconds, of a clock that is never set: what is kept over a
restart is cut to a burst ahead, so a clock that was set back costs an interval.

What waits is not handed out: here only its place in the queue is known, by key. The places of up to
AHEAD_COUNT_MAX messages are, so a key over its rate holds up others only behind so many that wait.

Ground rules: all calls under the lock of the group.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from math import inf
from typing import Any, Final

from timerstore.calls.consuming.cursors import QueueCursor
from timerstore.calls.consuming.groupreader import read_queued
from timerstore.core.core import Core
from timerstore.core.offsets import merged
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.values.kinds import check_int

NEVER: Final = 1 << 62
AHEAD_COUNT_MAX: Final = 10_000
"""So many messages of a topic wait for turns at most; nothing behind them is looked at."""
KEYS_MAX: Final = 100_000
"""So many keys may have less than their burst; further ones wait until one has all of it."""
BURST_MAX: Final = 1_000_000
_SECOND_NS: Final = 1_000_000_000
_PERIODS_NS: Final = {"s": _SECOND_NS, "m": 60 * _SECOND_NS, "h": 3_600 * _SECOND_NS}
_USUAL_BURST_NS: Final = _SECOND_NS // 10
_PRUNED_MIN: Final = 1_000
_RATE: Final = re.compile(r"([1-9][0-9]{0,6})/([smh])")
_KEY_CHARACTERS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Rate:
    """`burst` turns at once, then one each `interval_ns`; `by`: a property, "" for a topic."""

    text: str
    interval_ns: int
    burst: int
    by: str

    @classmethod
    def of(cls, rate: Any, burst: Any, by: Any) -> Rate | None:
        """Take what a consumer was given, or refuse it; None: no rate.

        >>> Rate.of("10/m", None, "tenant")
        Rate(text='10/m', interval_ns=6000000000, burst=1, by='tenant')
        """
        if rate is None:
            if burst is None and by is None:
                return None
            raise InvalidArgumentError("burst and rate_by go only with rate. Pass rate as well.")
        found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
        if found is None:
            raise InvalidArgumentError(
                f'rate is {rate!r}. Pass a str such as "100/s", "10/m" or "5/h": a whole number '
                "from 1 to 9999999, and a second, a minute or an hour."
            )
        number, period_ns = int(found[1]), _PERIODS_NS[found[2]]
        if burst is None:
            burst = max(1, number * _USUAL_BURST_NS // period_ns)
        if by is not None and not (isinstance(by, str) and by):
            raise InvalidArgumentError(f"rate_by is {by!r}. Pass the name of a property, a str.")
        burst = check_int(burst, "burst", 1, BURST_MAX)
        return cls(rate, -(-period_ns // number), burst, by or "")

    def __str__(self) -> str:
        return f"{self.text} by {self.by!r}" if self.by else self.text


def key_in(properties: dict[str, str], by: str) -> str:
    """Return a message's key; those without the property share one. A long one is a digest."""
    key = properties.get(by, "")
    if len(key) <= _KEY_CHARACTERS_MAX:
        return key
    return "\0" + blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Buckets:
    """The turns that each key has left; `full_ns` is kept over a restart by who made it."""

    def __init__(self, rate: Rate, full_ns: dict[str, int], now_ns: int) -> None:
        """Go on from what is known: of a clock, or a rate, that was another one, from no turn."""
        self.rate, self.full_ns = rate, full_ns
        self._burst_ns = rate.burst * rate.interval_ns
        for key, each_ns in full_ns.items():
            full_ns[key] = min(each_ns, now_ns + self._burst_ns)
        self._prune_at, self._pruned_ns = 0, -NEVER

    def free_ns(self, key: str, now_ns: int) -> int:
        """Return when a key's next turn is free; not after `now_ns` if one is."""
        return max(self.full_ns.get(key, 0), now_ns) + self.rate.interval_ns - self._burst_ns

    def take(self, key: str, now_ns: int) -> None:
        """Take a turn that is free."""
        self.full_ns[key] = max(self.full_ns.get(key, 0), now_ns) + self.rate.interval_ns

    def give_back(self, key: str) -> None:
        """Give back a turn that was taken just now, for what nobody was handed."""
        self.full_ns[key] = max(0, self.full_ns.get(key, 0) - self.rate.interval_ns)

    def has_room(self, now_ns: int) -> bool:
        """Tell whether another key may take a turn; forget those that have their whole burst."""
        full = self.full_ns
        if len(full) >= self._prune_at and now_ns - self._pruned_ns >= _SECOND_NS:
            for key in [key for key, full_ns in full.items() if full_ns <= now_ns]:
                del full[key]
            self._pruned_ns = now_ns
            self._prune_at = min(KEYS_MAX, max(_PRUNED_MIN, 2 * len(full)))
        return len(full) < KEYS_MAX


EndOf = Callable[[QueueCursor], int]
Room = Callable[[QueueCursor, int, int], int]
Place = tuple[int, QueueCursor, int]
"""Its number in the order of looking; a cursor, and an index there."""
Found = tuple[QueueCursor, int, int, Sequence[str]]
"""A run: its cursor, its entries [start, stop), and the keys whose turns they took."""


class Turns:
    """What waits for its turn, of one group and topic."""

    def __init__(self, core: Core, topic: str, rate: Rate, full_ns: dict[str, int]) -> None:
        """`full_ns`: see `Buckets`; in epoch ns, by a clock that is set only here."""
        self.rate, self._core, self._topic = rate, core, topic
        self._epoch_us = 1_000 * core.clock.now_ms - round(1_000 * core.steady_ms())
        self._now_ns = self._clock_ns()
        self._buckets = Buckets(rate, full_ns, self._now_ns)
        self.next_ns = NEVER
        """When the next turn is free that something waits for, as the last pull saw it."""
        self._waits_until_ns = 0  # so long it is said that something waits: turns come and go
        self._waiting_count = 0  # messages that were looked at, and not handed out
        self._looked: dict[int, int] = {}  # by row, the index from which on nothing was looked at
        self._back_count = 0
        self._waiting: dict[str, deque[Place]] = {}
        self._ready: list[tuple[int, str]] = []  # a heap: the number of a key's first, the key
        self._later: list[tuple[int, str]] = []  # a heap: when its turn is free, the key
        self._numbers = count()

    def left_ms(self) -> float:
        """Return how long it is to the next turn that is waited for; infinity if none is."""
        next_ns = self.next_ns
        return inf if next_ns == NEVER else max(0.0, (next_ns - self._clock_ns()) / 1e6)

    def waits_of(self, left_count: int) -> int:
        """Return how many of a group's messages that are not handed out wait for turns."""
        if self._clock_ns() >= self._waits_until_ns:
            return 0
        return max(0, min(left_count, self._waiting_count) if self.rate.by else left_count)

    def _clock_ns(self) -> int:
        return 1_000 * (round(1_000 * self._core.steady_ms()) + self._epoch_us)

    def hand_out(
        self, cursors: Sequence[QueueCursor], end_of: EndOf, count_max: int, room: Room | None
    ) -> Found | None:
        """Hand out the next run whose turns are free, and take these; None: see `next_ns`.

        The oldest message that has a free turn goes first, with those that follow it in its queue.
        What waits in a queue that has no `room` is set aside: other queues go on.
        """
        self._begin(cursors)
        found: tuple[QueueCursor, int, int] | None = None
        keys, aside, full = list[str](), list[tuple[str, Place]](), set[QueueCursor]()
        try:
            self._look_ahead(cursors, end_of, count_max)
            while self._ready:
                key = self._ready[0][1]
                place = _, cursor, index = self._waiting[key][0]
                if found is None:
                    if cursor not in full:
                        allowed = self._allowed(cursor, index, end_of(cursor), count_max, room)
                    if cursor in full or allowed <= 0:
                        full.add(cursor)
                        aside.append((key, place))
                        self._leave()
                        if not self._ready:
                            rest = [each for each in cursors if each not in full]
                            self._look_ahead(rest, end_of, count_max, len(aside))
                        continue
                elif (cursor, index) != (found[0], found[2]) or len(keys) >= allowed:
                    break
                if cursor.take(index):
                    found = (cursor, index if found is None else found[1], index + 1)
                    keys.append(key)
                    self._buckets.take(key, self._now_ns)
                self._leave()
            self._put_back(aside)
        except BaseException:  # a signal's, say: nobody got them
            if found is not None:
                found[0].take_back(self._topic, *found[1:])
            raise
        if found is None and self._later:
            self.next_ns = self._later[0][0]
        elif found is None and not self._buckets.has_room(self._now_ns):
            self.next_ns = self._now_ns + _SECOND_NS
        if self.next_ns != NEVER:
            self._waits_until_ns = self.next_ns + _SECOND_NS
        return None if found is None else (*found, keys)

    def _allowed(
        self, cursor: QueueCursor, index: int, end: int, count_max: int, room: Room | None
    ) -> int:
        """Return how many a queue may give now."""
        if self.rate.by:  # then `room` asks for no span: others wait in between
            cursor.reach(index + 1)
        if room is None or not cursor.has_more(self._topic, end):
            return count_max
        return room(cursor, end, count_max)

    def _put_back(self, aside: list[tuple[str, Place]]) -> None:
        """Have what was set aside wait again, as the first of its key."""
        for key, place in reversed(aside):
            self._waiting_count += 1
            waiting = self._waiting.setdefault(key, deque())
            waiting.appendleft(place)
            if len(waiting) == 1:
                self._line_up(key)
        if aside:
            self._ready = [(self._waiting[key][0][0], key) for _, key in self._ready]
            heapq.heapify(self._ready)

    def give_back(self, start: int, keys: Sequence[str], handed: Collection[int]) -> None:
        """Give back the turns that a run, from `start` on, took for what it could not hand out."""
        given = {key for index, key in enumerate(keys, start) if index not in handed}
        for index, key in enumerate(keys, start):
            if index not in handed:
                self._buckets.give_back(key)
        if not given.isdisjoint(self._waiting):  # what waits for these turns has them sooner
            sooner = [key for _, key in self._later if key in given]
            self._later = [each for each in self._later if each[1] not in given]
            heapq.heapify(self._later)
            for key in sooner:
                self._line_up(key)

    def _begin(self, cursors: Sequence[QueueCursor]) -> None:
        """Look at all again if anything was given back: it goes first."""
        self._now_ns, self.next_ns = self._clock_ns(), NEVER
        back_count = sum(each.back_count for each in cursors)
        if back_count != self._back_count:
            self._back_count, self._waiting_count = back_count, 0
            for known in (self._waiting, self._ready, self._later, self._looked):
                known.clear()
        while self._later and self._later[0][0] <= self._now_ns:
            self._line_up(heapq.heappop(self._later)[1])

    def _look_ahead(
        self, cursors: Sequence[QueueCursor], end_of: EndOf, count_max: int, aside_count: int = 0
    ) -> None:
        """Have more messages wait, until there are enough or no more; so many are set aside."""
        found_any = True
        while found_any and self._wants(count_max, aside_count):
            found_any = False
            for cursor in cursors:
                start = self._looked.get(cursor.row, 0)
                places, stop = cursor.look(self._topic, end_of(cursor), start)
                self._looked[cursor.row] = stop
                found_any |= stop > start
                keys = self._keys_of(cursor, places)
                for index in places:
                    self._enter(keys.get(index, ""), cursor, index)

    def _wants(self, count_max: int, aside_count: int) -> bool:
        waiting_count = self._waiting_count
        is_full = waiting_count + aside_count >= AHEAD_COUNT_MAX
        if is_full or not self._buckets.has_room(self._now_ns):
            return False
        return waiting_count < count_max or (not self._ready and bool(self.rate.by))

    def _keys_of(self, cursor: QueueCursor, places: list[int]) -> dict[int, str]:
        """Return the keys of entries that can be read; who reads the others says what is wrong."""
        by, keys = self.rate.by, dict[int, str]()
        for start, stop in merged([(i, i + 1) for i in places]) if by else []:
            with suppress(CorruptStoreError):
                for index, message in read_queued(self._core, cursor.row, start, stop):
                    keys[index] = key_in(message.properties, by)
        return keys

    def _enter(self, key: str, cursor: QueueCursor, index: int) -> None:
        """Have a message wait, the last of its key."""
        self._waiting_count += 1
        waiting = self._waiting.setdefault(key, deque())
        waiting.append((next(self._numbers), cursor, index))
        if len(waiting) == 1:
            self._line_up(key)

    def _leave(self) -> None:
        """Let the first that is ready go: it was handed out, now or by somebody else before."""
        key = heapq.heappop(self._ready)[1]
        self._waiting[key].popleft()
        self._waiting_count -= 1
        if self._waiting[key]:
            self._line_up(key)
        else:
            del self._waiting[key]

    def _line_up(self, key: str) -> None:
        free_ns = self._buckets.free_ns(key, self._now_ns)
        if free_ns <= self._now_ns:
            heapq.heappush(self._ready, (self._waiting[key][0][0], key))
        else:
            heapq.heappush(self._later, (free_ns, key))
