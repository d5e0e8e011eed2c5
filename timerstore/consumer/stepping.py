"""A consumer on a manual clock: its handlers run in `step`, or while the clock is moved."""

from __future__ import annotations

from timerstore.consumer.storesource import StoreSource
from timerstore.consumer.workings import STARTED, Workings
from timerstore.core.core import Core
from timerstore.pending.found import first_due_ms
from timerstore.services.engine.holds import while_held
from timerstore.services.world.clock import ManualClock, attend, leave


class Stepper:
    """Calls handlers one after the other, in the calling thread; an `Attendant` of its clock."""

    def __init__(self, workings: Workings, core: Core, clock: ManualClock) -> None:
        self._workings, self._core, self._clock = workings, core, clock
        self._is_stepping = False

    def start(self) -> None:
        """Call handlers whenever the clock moves."""
        attend(self._clock, self)

    def stop(self) -> None:
        """Stop doing so."""
        leave(self._clock, self)

    def step(self) -> int:
        """Run what is due now, and what that puts; return how many messages."""
        self._core.play_now()
        return self._step()

    def _step(self) -> int:
        """Run what is there; within a handler nothing new is begun."""
        handling, source = self._workings.handling, self._workings.source
        tasks = handling.tend()
        if self._is_stepping:
            for task in tasks:
                handling.hand_in_again(task, 0)
            return 0
        self._is_stepping, count = True, 0
        try:
            while tasks or (tasks := source.pull(source.settings.pull_count)[0]):
                task = tasks.pop(0)
                count += len(task.deliveries)
                handling.run(task)
                tasks += handling.tend()
        finally:
            self._is_stepping = False
            for task in tasks:
                handling.hand_in_again(task, 0)
        return count

    def next_ms(self, start_ms: int, stop_ms: int) -> int:
        """Return the time at which an advancing clock has to stop for this consumer."""
        if self._core.closed:
            return stop_ms
        first = while_held(lambda: first_due_ms(self._core, start_ms + 1, stop_ms))
        next_ms = self._workings.handling.next_ms(begins=not self._is_stepping)
        return int(min(first, max(next_ms, start_ms + 1), stop_ms))

    def arrived(self) -> None:
        """Call handlers at the clock's present time."""
        if not self._core.closed and self._workings.state == STARTED:
            self._step()


def stepper_of(workings: Workings) -> Stepper | None:
    """Return what calls the handlers if the clock is a manual one."""
    source = workings.source
    if isinstance(source, StoreSource) and isinstance(source.core.clock, ManualClock):
        return Stepper(workings, source.core, source.core.clock)
    return None
