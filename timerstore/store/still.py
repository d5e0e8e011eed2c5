"""A store in which nothing fires, not even what was overdue when it was opened."""

from __future__ import annotations

from timerstore.store.store import Calls, TimerStore


class StillStore(TimerStore):
    """A store whose pending timers stay where they are, for who takes them away.

    A pause that is kept stays as it is for the next opening.
    """

    def _make_calls(self) -> Calls:
        self.core.switches.hold_firing()  # before the services start
        return super()._make_calls()
