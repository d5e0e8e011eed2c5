"""When cleaning is done: by hand, all that can go; by itself, before each checkpoint."""

from __future__ import annotations

import contextlib
import time

from timerstore.consuming.consuming import Consuming
from timerstore.core.core import Core
from timerstore.core.inside import inside
from timerstore.errors import StoreFullError
from timerstore.services.cleaning.cleaning import Cleaner
from timerstore.services.cleaning.reach import Reach
from timerstore.services.cleaning.retention import Retention
from timerstore.services.world.clock import ManualClock


def clean_by_itself(core: Core, consuming: Consuming) -> None:
    """Let the flusher clean before its checkpoints, piece by piece between, remove behind them."""
    flusher, engine = core.flusher, core.engine
    core.cleaner = Cleaner(engine, Reach(engine, consuming.committed_indexes))
    core.cleaner.on_copies = core.runner.wake_for
    core.retention = Retention(engine, flusher)
    flusher.before = lambda: _before_flush(core, consuming)
    flusher.on_tick, flusher.after = core.cleaner.go_on, core.retention.run


def _before_flush(core: Core, consuming: Consuming) -> None:
    """Do what the next checkpoint is to make durable: groups' offsets, and F."""
    consuming.write_offsets()
    # If there is no room, the flush goes on: it is what makes some.
    with contextlib.suppress(StoreFullError):
        consuming.write_tallies()
    if not core.closed:
        with contextlib.suppress(StoreFullError):
            core.cleaner.run(at_once=core.clock.manual)


@inside
def clean(core: Core) -> int:
    """Clean a store; see `TimerStore.clean`."""
    core.check_writable()
    core.check_unlocked()
    before = core.engine.disk_bytes
    core.flusher.flush()
    until = core.cleaner.reach.find(core.engine.world.cleaning.floor)
    core.cleaner.run(at_once=True, until=until)
    while core.engine.world.cleaning.floor < until and core.cleaner.is_waiting:
        if isinstance(core.clock, ManualClock) or core.switches.find("firing", core.clock.now_ms):
            break  # nobody moves it meanwhile, or nothing fires
        core.check_open()
        time.sleep(0.05)
        core.cleaner.run(at_once=True, until=until)
    core.flusher.flush()
    core.retention.run()
    return max(0, before - core.engine.disk_bytes)
