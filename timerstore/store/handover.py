"""Handover: leaves a directory that a RocketMQ broker can go on with.

The commit log, the queues, the offsets of groups and levels are a broker's as they are. The timer
index is made anew (`services/broker/for_broker.py`). So the services stop wherever they are: what
was fired has no unit any more, what was not has one. The store is as it was until the new index is
checked; then it is closed, and the index put in its place.
"""

from __future__ import annotations

import time

from timerstore.calls.consuming.consuming import Consuming
from timerstore.core.clockmark import remove_clock_mark
from timerstore.core.core import Core
from timerstore.errors import TimerStoreError
from timerstore.services.broker.for_broker import NewIndex, check_whole, make_index, use_index
from timerstore.services.calls.appending import append_all, compose_delete
from timerstore.store.broker_files import check_wheel, write_broker_files
from timerstore.store.close import close
from timerstore.timelog.writing.compose import Staged, stage_messages


def handover(core: Core, consuming: Consuming) -> int | None:
    """Make the store fit for a broker and close it; see `TimerStore.handover`."""
    core.check_open()
    core.check_unlocked()
    engine = core.engine
    precision = engine.precision_ms
    check_wheel(engine)
    if engine.read_slot > core.clock.now_ms // precision + 1:
        raise TimerStoreError(
            f"The store has fired timers up to {engine.read_slot * precision} (epoch ms), but "
            "the clock was set back and is before that. Set the clock right, or wait until then."
        )
    if core.switches.find("firing", core.clock.now_ms):
        raise TimerStoreError('Firing is paused. Call resume("firing"), then hand over.')
    check_whole(engine)
    core.refuse("The store is being handed over to a broker. Put into the broker.")
    try:
        while core.gate.others_inside():  # those who put before it was refused
            time.sleep(0.0005)
        with core.gate.guard():
            core.cleaner.stop()
            core.runner.stop()
            _check_levels(core)
            _append_last(core)
            core.check_open()
            index = make_index(engine, core.clock.now_ms)
            until_ms = write_broker_files(core, index)
    except BaseException:
        core.cleaner.resume()
        core.runner.resume()
        core.refuse(None)
        raise
    core.refuse(None)
    close(core, consuming, flush=True, last=lambda: _leave(core, index))
    return until_ms


def _check_levels(core: Core) -> None:
    """Refuse if a broker would deliver too much from the levels."""
    cancelled = core.engine.cancelled.set.level_count
    if cancelled:
        raise TimerStoreError(
            f"{cancelled} cancelled messages still wait in a delay level, and a broker would "
            "deliver them. Hand over after their time has passed."
        )


def _append_last(core: Core) -> None:
    """Append a delete of nothing as the timer queue's last entry, which has the last unit then."""
    engine, now_ms = core.engine, core.clock.now_ms
    due_ms = max(now_ms, engine.read_slot * engine.precision_ms)
    message = compose_delete(engine, b"timerstore_handover", b"0" * 32, due_ms, now_ms)
    stage = core.take_stage()
    count = stage_messages(stage, [Staged(message, 0, 0, -1, 0)])
    append_all(engine, stage, count, now_ms)
    core.free_stage(stage)


def _leave(core: Core, index: NewIndex) -> None:
    """Put the new index in its place, and remove what a broker makes for itself."""
    checkpoint = core.flusher.last
    assert checkpoint is not None
    core.engine.keys.remove()
    remove_clock_mark(core.engine)
    use_index(core.engine, index, checkpoint)
