"""The manual clock with those who act between its events."""

from datetime import timedelta

import pytest

from timerstore import InvalidArgumentError, ManualClock

SECOND = timedelta(seconds=1)
START_MS = 1_800_000_000_000


class Walker:
    """An attendant that notes where the clock stands, and has something to do at some times."""

    def __init__(self, clock: ManualClock, *times: int, taking: timedelta = timedelta(0)) -> None:
        self.clock, self.times, self.taking = clock, times, taking
        self.seen: list[int] = []
        clock._attend(self)

    def _next_ms(self, start_ms: int, stop_ms: int) -> int:
        later = [START_MS + each for each in self.times if START_MS + each > start_ms]
        return min([stop_ms, *later])

    def _arrived(self) -> None:
        self.seen.append(self.clock.now_ms - START_MS)
        if self.taking:
            taking, self.taking = self.taking, timedelta(0)
            self.clock.advance(taking)


def test_it_stops_where_an_attendant_has_something_to_do() -> None:
    clock, moves = ManualClock(), []
    clock._listen(lambda start_ms, stop_ms: moves.append((start_ms - START_MS, stop_ms - START_MS)))
    walker = Walker(clock, 300, 700, 5_000)
    clock.advance(SECOND)
    assert walker.seen == [0, 300, 700, 1_000]
    assert moves == [(0, 300), (300, 700), (700, 1_000)]
    clock._leave(walker)
    clock.advance(5 * SECOND)
    assert walker.seen[-1] == 1_000 and moves[-1] == (1_000, 6_000)


def test_it_never_goes_back_where_an_attendant_takes_longer() -> None:
    clock = ManualClock()
    Walker(clock, taking=10 * SECOND)
    clock.advance(SECOND)
    assert clock.now_ms == START_MS + 10_000


def test_it_can_be_set_back() -> None:
    clock, moves = ManualClock(), []
    walker = Walker(clock, 300)
    clock._listen(lambda start_ms, stop_ms: moves.append((start_ms - START_MS, stop_ms - START_MS)))
    clock.advance(-SECOND)
    assert clock.now_ms == START_MS - 1_000
    assert (moves, walker.seen) == ([(0, -1_000)], [-1_000])


@pytest.mark.parametrize("bad", [1, 1.5, None])
def test_it_refuses_what_is_no_timedelta(bad: object) -> None:
    with pytest.raises(InvalidArgumentError):
        ManualClock().advance(bad)  # type: ignore[arg-type]
