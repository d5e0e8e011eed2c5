"""Where a group stands in a queue, beside a list of what became of each entry."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from timerstore.consuming.cursors import QueueCursor

NEW, OUT, DONE = "new", "out", "done"


class Cursors(RuleBasedStateMachine):
    """Entries are handed out in runs, taken one by one, done, given back."""

    @initialize(first=st.integers(0, 3))
    def begin(self, first: int) -> None:
        self.first, self.end = first, first
        self.cursor = QueueCursor(0, first)
        self.state: dict[int, str] = {}
        self.flights: dict[int, Any] = {}

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        for index in range(self.end, self.end + count):
            self.state[index] = NEW
        self.end += count

    @rule(count=st.integers(1, 5))
    def hand_out(self, count: int) -> None:
        start, stop, flight = self.cursor.hand_out(self.end, count)
        assert (stop > start) == (NEW in self.state.values()) and stop - start <= count
        for index in range(start, stop):
            assert self.state[index] == NEW
            self.state[index], self.flights[index] = OUT, flight

    @rule(at=st.integers(0, 40))
    def take(self, at: int) -> None:
        index = self.first + at
        if index < self.end:
            flight = self.cursor.take(index)
            assert (flight is not None) == (self.state[index] == NEW)
            if flight is not None:
                self.state[index], self.flights[index] = OUT, flight

    def pick(self, at: int) -> int | None:
        out = [index for index, state in self.state.items() if state == OUT]
        return out[at % len(out)] if out else None

    @rule(at=st.integers(0, 40))
    def settle(self, at: int) -> None:
        if (index := self.pick(at)) is not None:
            self.cursor.settle(index)
            self.state[index] = DONE

    @rule(at=st.integers(0, 40))
    def give_back(self, at: int) -> None:
        if (index := self.pick(at)) is not None:
            self.cursor.take_back("t", self.flights[index], [index])
            self.state[index] = NEW

    @rule(by_ranges=st.booleans())
    def reopen(self, by_ranges: bool) -> None:
        done, ranges = self.cursor.done_ahead(), self.cursor.done_ranges()
        self.cursor = QueueCursor(0, self.cursor.committed)
        if by_ranges:
            self.cursor.pass_done([*ranges, (0, self.cursor.next)])
        else:
            for index in done:
                assert self.cursor.take(index) is not None
                self.cursor.settle(index)
        self.flights.clear()
        self.state = {i: DONE if state == DONE else NEW for i, state in self.state.items()}

    @invariant()
    def it_agrees(self) -> None:
        if not hasattr(self, "cursor"):
            return
        left = [index for index, state in sorted(self.state.items()) if state != DONE]
        committed = left[0] if left else self.end
        assert self.cursor.committed == committed
        ahead = [i for i, state in sorted(self.state.items()) if state == DONE and i > committed]
        assert sorted(self.cursor.done_ahead()) == ahead
        states = list(self.state.values())
        assert self.cursor.in_flight_count == states.count(OUT)
        assert self.end - self.cursor.next + self.cursor.open_count == len(left)


TestCursors = Cursors.TestCase
TestCursors.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
