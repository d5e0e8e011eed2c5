"""What state machines of a whole store share: a folder, a manual clock, an end that judges."""

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine

from timerstore import ManualClock, TimerStore
from timerstore.jit.kernel import INTERPRETED

START_MS = 1_800_000_000_000


class StoreMachine(RuleBasedStateMachine):
    """A store on a manual clock, beside what the test knows of it; it is judged in the end."""

    store: TimerStore
    clock: ManualClock

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="machine"))
        self.now_ms = START_MS

    @property
    def is_open(self) -> bool:
        """Whether its first store was opened: an invariant is asked before as well."""
        return hasattr(self, "store")

    def let_pass(self, ms: int) -> None:
        """Move the clock, on or back."""
        self.now_ms += ms
        self.clock.advance(timedelta(milliseconds=ms))

    def teardown(self) -> None:
        try:
            if self.is_open:
                self.finish()
        finally:
            mock.patch.stopall()
            shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self) -> None:
        """Let everything come to its end, and judge it."""
        raise NotImplementedError


def cases_of(machine: type[StoreMachine], examples: int, steps: int, *, shrinks: bool) -> Any:
    """Return the test case; one that does not shrink would outlast the time that a test has."""
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=12 if INTERPRETED else steps,
        deadline=None,
        print_blob=True,
        phases=[*Phase] if shrinks else phases,
        suppress_health_check=list(HealthCheck),
    )
    return machine.TestCase
