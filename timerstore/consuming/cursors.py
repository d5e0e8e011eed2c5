"""Cursors: where a group stands in a queue, with what it handed out but has not settled."""

from __future__ import annotations

from collections import deque
from typing import Literal

from timerstore.ground.ranges import Ranges, behind, merged

HandedState = Literal["waiting", "handed out", "done"]


class Flight:
    """A run of indexes of one queue that was handed out."""

    __slots__ = ("done", "left", "start", "stop")

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop, self.left = start, stop, stop - start
        self.done: bytearray | None = None  # 1 for each index that is done

    def settle(self, index: int) -> bool:
        """Say that an index is done; tell whether it was not."""
        done = self.done
        if done is None:
            done = self.done = bytearray(self.stop - self.start)
        if done[index - self.start]:
            return False
        done[index - self.start] = 1
        self.left -= 1
        return True

    def first_open(self) -> int:
        """Return the smallest index that is not done, or the end."""
        if self.left == 0:
            return self.stop
        return self.start if self.done is None else self.start + self.done.find(0)

    def is_done(self, index: int) -> bool:
        """Tell whether an index is done."""
        return self.left == 0 or bool(self.done and self.done[index - self.start])

    def done_ranges(self) -> Ranges:
        """Return what is done."""
        if self.left == 0:
            return [(self.start, self.stop)]
        found: Ranges = []
        done = self.done or b""
        at = done.find(1)
        while at >= 0:
            end = done.find(0, at)
            end = len(done) if end < 0 else end
            found.append((self.start + at, self.start + end))
            at = done.find(1, end)
        return found


class QueueCursor:
    """Where a group stands in one queue. All calls under the group's lock."""

    def __init__(self, row: int, committed: int) -> None:
        self.row = row
        self.next = committed
        self.flights: deque[Flight] = deque()
        self.given_back: deque[int] = deque()

    @property
    def committed(self) -> int:
        """The smallest index that is not done."""
        return self.flights[0].first_open() if self.flights else self.next

    @property
    def open_count(self) -> int:
        """How many of those before `next` are not done."""
        return sum(flight.left for flight in self.flights)

    @property
    def in_flight_count(self) -> int:
        """How many were handed out, and are neither done nor given back."""
        return self.open_count - len(self.given_back)

    def state_of(self, index: int) -> HandedState:
        """Tell what became of one entry. O(entries in flight)."""
        if index >= self.next or index in self.given_back:
            return "waiting"
        for flight in self.flights:
            if flight.start <= index < flight.stop:
                return "done" if flight.is_done(index) else "handed out"
        return "done"

    def has_more(self, topic: str, visible_end: int) -> bool:
        """Tell whether there is anything to hand out."""
        return bool(self.given_back) or visible_end > self.next

    def hand_out(self, visible_end: int, count_max: int) -> tuple[int, int, Flight | None]:
        """Return the next run (start, stop) and its flight; an empty run if nothing is new."""
        if self.given_back:
            start = self.given_back.popleft()
            stop = start + 1
            while self.given_back and self.given_back[0] == stop and stop - start < count_max:
                stop = self.given_back.popleft() + 1
            for flight in self.flights:
                if flight.start <= start < flight.stop:
                    stop_here = min(stop, flight.stop)
                    self.given_back.extendleft(reversed(range(stop_here, stop)))
                    return start, stop_here, flight
        start, stop = self.next, min(visible_end, self.next + count_max)
        if stop <= start:
            return start, start, None
        flight = Flight(start, stop)
        self.flights.append(flight)
        self.next = stop
        return start, stop, flight

    def take(self, index: int) -> Flight | None:
        """Hand out one entry, wherever it stands; None if it is done, or in flight.

        O(entries before it that are not handed out).
        """
        if index >= self.next:
            flight = Flight(self.next, index + 1)
            self.given_back.extend(range(self.next, index))
            self.flights.append(flight)
            self.next = index + 1
            return flight
        if index not in self.given_back:
            return None
        self.given_back.remove(index)
        return next(each for each in self.flights if each.start <= index < each.stop)

    def pass_done(self, ranges: Ranges) -> None:
        """Take entries that are not handed out yet for done. O(entries before them)."""
        for start, stop in merged(ranges):
            start = max(start, self.next)
            if start >= stop:
                continue
            if start > self.next:
                self.flights.append(Flight(self.next, start))
                self.given_back.extend(range(self.next, start))
            flight = Flight(start, stop)
            flight.left = 0
            self.flights.append(flight)
            self.next = stop
        self.trim()

    def settle(self, index: int) -> None:
        """Say that an entry that was taken is done."""
        next(each for each in self.flights if each.start <= index < each.stop).settle(index)
        self.trim()

    def settle_anywhere(self, index: int) -> bool:
        """Say that an entry is done, handed out or not; tell whether it was not done before.

        O(entries before it that are not handed out).
        """
        if index < self.committed:
            return False
        flight = self.take(index)
        if flight is None:
            flight = next((each for each in self.flights if each.start <= index < each.stop), None)
        if flight is None or flight.is_done(index):
            return False
        flight.settle(index)
        self.trim()
        return True

    def done_ahead(self) -> list[int]:
        """Return the indexes behind the committed one that are done. O(entries in flight)."""
        return [index for start, stop in self.done_ranges() for index in range(start, stop)]

    def done_ranges(self) -> Ranges:
        """Return what is done behind the committed index. O(flights and their entries)."""
        found = [each for flight in self.flights for each in flight.done_ranges()]
        return behind(merged(found), self.committed)

    def take_back(self, topic: str, flight: Flight, indexes: list[int]) -> None:
        """Take back entries that were handed out, but not used; what comes first is first again."""
        behind = bool(self.given_back) and bool(indexes) and self.given_back[-1] > min(indexes)
        self.given_back.extend(indexes)
        if behind:
            self.given_back = deque(sorted(self.given_back))

    def trim(self) -> None:
        """Forget flights at the front that are done."""
        while self.flights and self.flights[0].left == 0:
            self.flights.popleft()
