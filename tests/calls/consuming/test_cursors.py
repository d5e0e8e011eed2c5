"""Where a group stands in a queue, beside a list of what became of each entry."""

import sys
from contextlib import suppress
from threading import Thread

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.interrupting import Interrupt, interrupted
from timerstore.calls.consuming import window as win
from timerstore.calls.consuming.cursors import QueueCursor

NEW, OUT, DONE, HELD = "new", "out", "done", "held"


class Cursors(RuleBasedStateMachine):
    """Entries are handed out in runs, taken one by one, done, given back."""

    @initialize(first=st.integers(0, 3))
    def begin(self, first: int) -> None:
        self.first, self.end = first, first
        self.cursor = QueueCursor(0, first)
        self.state: dict[int, str] = {}

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        for index in range(self.end, self.end + count):
            self.state[index] = NEW
        self.end += count

    @rule(count=st.one_of(st.integers(1, 5), st.integers(1_000, 3_000)))
    def hand_out(self, count: int) -> None:
        start, stop = self.cursor.hand_out(self.end, count)
        assert (stop > start) == (NEW in self.state.values()) and stop - start <= count
        for index in range(start, stop):
            assert self.state[index] == NEW
            self.state[index] = OUT
        if stop > start:  # the first that waits goes first
            assert all(state != NEW for index, state in self.state.items() if index < start)

    @rule(at=st.integers(0, 40))
    def take(self, at: int) -> None:
        index = self.first + at
        if index < self.end:
            assert self.cursor.take(index) == (self.state[index] == NEW)
            if self.state[index] == NEW:
                self.state[index] = OUT

    @rule(at=st.integers(-1, 40), count=st.integers(0, 6))
    def settle(self, at: int, count: int) -> None:
        start = self.first + at
        stop = min(start + count, self.cursor.next)
        open_ones = [i for i in range(start, stop) if self.state.get(i, DONE) != DONE]
        assert self.cursor.settle(start, start + count) == len(open_ones)
        self.state |= dict.fromkeys(open_ones, DONE)

    @rule(at=st.integers(0, 40))
    def settle_anywhere(self, at: int) -> None:
        index = self.first + at
        if index < self.end:
            assert self.cursor.settle_anywhere(index) == (self.state[index] != DONE)
            self.state[index] = DONE

    @rule(at=st.integers(-1, 40), count=st.integers(0, 6))
    def give_back(self, at: int, count: int) -> None:
        start = self.first + at
        self.cursor.take_back("t", start, start + count)
        out = [i for i in range(start, start + count) if self.state.get(i) == OUT]
        self.state |= dict.fromkeys(out, NEW)

    @rule(at=st.integers(0, 40))
    def hold(self, at: int) -> None:
        index = self.first + at
        if index < self.cursor.next and self.state.get(index) in (NEW, OUT):
            self.state[index] = HELD
        self.cursor.hold(index)
        assert self.cursor.holds_any == (HELD in self.state.values())

    @rule(count=st.integers(1_000, 3_000))
    def append_many(self, count: int) -> None:
        if self.end < 5_000:
            self.append(count)

    @rule(by_ranges=st.booleans())
    def reopen(self, by_ranges: bool) -> None:
        ranges = self.cursor.done_ranges()
        self.cursor = QueueCursor(0, self.cursor.committed)
        if by_ranges:
            self.cursor.pass_done([*ranges, (0, self.cursor.next)])
        else:
            for index in (i for start, stop in ranges for i in range(start, stop)):
                assert self.cursor.take(index)
                assert self.cursor.settle(index, index + 1) == 1
        self.state = {i: DONE if state == DONE else NEW for i, state in self.state.items()}

    @invariant()
    def it_agrees(self) -> None:
        if not hasattr(self, "cursor"):
            return
        left = [index for index, state in sorted(self.state.items()) if state != DONE]
        committed = left[0] if left else self.end
        assert self.cursor.committed == committed
        ahead = [i for i, state in sorted(self.state.items()) if state == DONE and i > committed]
        assert [i for each in self.cursor.done_ranges() for i in range(*each)] == ahead
        for index in (self.first, committed, self.end - 1):
            if index in self.state:
                shown = {NEW: "waiting", OUT: "handed out", DONE: "done", HELD: "waiting"}
                said = shown[self.state[index]]
                assert self.cursor.state_of(index) == said
        states = list(self.state.values())
        assert self.cursor.in_flight_count == states.count(OUT)
        assert self.end - self.cursor.next + self.cursor.open_count == len(left)


TestCursors = Cursors.TestCase
TestCursors.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_its_ring_grows_whole_wherever_a_signal_comes() -> None:
    at, raised = 0, True
    while raised:
        cursor = QueueCursor(0, 0)
        assert cursor.hand_out(1_000, 1_000) == (0, 1_000) and cursor.settle(3, 500) == 497
        with suppress(Interrupt), interrupted(at, "consuming/cursors.py") as count:
            cursor.hand_out(5_000, 3_000)
        others = [np.full(cursor.window.length, 7, np.uint8) for _ in range(64)]
        del others[:]  # memory that was given back says something else
        said = [cursor.state_of(index) for index in range(1_000)]
        assert said == ["handed out"] * 3 + ["done"] * 497 + ["handed out"] * 500
        cursor.hand_out(9_000, 5_000)
        assert cursor.done_ranges() == [(3, 500)]
        at, raised = at + 1, count.raised
    assert at > 3


def test_it_can_be_looked_at_while_others_go_on() -> None:
    cursor, ended, errors = QueueCursor(0, 0), False, []

    def look() -> None:
        try:
            while not ended:
                assert cursor.done_ranges() == []
                assert cursor.state_of(cursor.committed - 1) == "done"
        except Exception as e:
            errors.append(e)

    before, looks = sys.getswitchinterval(), Thread(target=look)
    sys.setswitchinterval(1e-6)
    try:
        looks.start()
        for _ in range(30_000):
            cursor._extend(cursor.next + 3, win.DONE)
            if errors:
                break
    finally:
        ended = True
        looks.join()
        sys.setswitchinterval(before)
    assert not errors
