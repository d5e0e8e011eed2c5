"""What each service does and waits for, how long a stage takes; how far copies lag."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final, Literal

from timerstore.calls.consuming.groupreader import read_queued
from timerstore.copies.follow_status import CopyStatus, read_statuses
from timerstore.core.core import Core
from timerstore.errors import CorruptStoreError
from timerstore.services.world import needs
from timerstore.services.world.state import (
    DELIVER_LEVELS,
    DEQUEUE_GET,
    DEQUEUE_PUT,
    ENQUEUE_GET,
    ENQUEUE_PUT,
    SERVICE_NAMES,
    waiting_places,
)
from timerstore.services.world.world import (
    STAGE_ENTRIES,
    STAGE_LONGEST_NS,
    STAGE_NAMES,
    STAGE_NS,
    STAGE_STEPS,
    STAGE_WORDS,
)
from timerstore.wheel.near import is_full

log = logging.getLogger("timerstore")

ServiceState = Literal["running", "idle", "waiting", "stopped"]
SERVICE_STATES: Final[tuple[ServiceState, ...]] = ("running", "idle", "waiting", "stopped")

_ROOM: Final = "room on the disk"
_PAUSE: Final = "the end of the pause of firing"
_NEXT: Final = {
    ENQUEUE_GET: SERVICE_NAMES[ENQUEUE_PUT],
    ENQUEUE_PUT: SERVICE_NAMES[DEQUEUE_GET],
    DEQUEUE_GET: SERVICE_NAMES[DEQUEUE_PUT],
}
WAITED_FOR: Final = {
    needs.COMMITLOG_SEGMENT: "a segment of the commit log",
    needs.QUEUE_SEGMENT: "a segment of a queue",
    needs.TIMERLOG_SEGMENT: "a segment of the timer log",
    needs.COMMITLOG_READ: "a segment of the commit log",
    needs.TIMER_QUEUE_READ: "a segment of the timer topic's queue",
    needs.TOPIC: "a topic's queue",
    needs.CANCELLED_ROOM: "room in the set of cancelled timers",
    needs.DAMAGED_TIMERLOG: "a damaged unit to be named",
    needs.LEVEL_READ: "a segment of a delay level's queue",
    needs.LOST: "a lost range to be named",
    needs.BAD_ENTRY: "the message of a damaged entry",
    needs.BAD_LEVEL_ENTRY: "the message of a damaged entry of a delay level",
}


@dataclass(frozen=True, slots=True)
class ServiceStats:
    """A look at one service.

    `busy_share`: of the time since the store was opened, what was spent in its steps, by whichever
    thread. `queue_count`: entries that wait for it; of deliver-levels those that are due.
    `done_count`: what it did since then, to tell a rate by: entries read, linked, appended.

    `state`: "running"; "idle", if nothing is to be done yet; "waiting", and then `waits_for`
    says for whom or what, in words; "stopped". It is of the moment, and mostly "idle".
    """

    name: str
    busy_share: float
    queue_count: int
    step_count: int
    done_count: int
    state: ServiceState
    waits_for: str | None


@dataclass(frozen=True, slots=True)
class StageStats:
    """How long one stage of a timer's way took, since the store was opened.

    A stage is the steps of a service; or "read-units", what of dequeue-get's was spent in walking
    chains of units, and "read-messages", what of dequeue-put's was spent in reading messages and
    making their copies ready. `step_count`: steps that did something, with `entry_count` entries,
    in `busy_ms`; the longest took `longest_ms`. On a manual clock nothing is measured.
    """

    name: str
    step_count: int
    entry_count: int
    busy_ms: float
    longest_ms: float


def read_services(core: Core, due_count: int) -> tuple[ServiceStats, ...]:
    """Collect what each service does; `due_count`: messages of delay levels that are due."""
    engine, world = core.engine, core.engine.world
    open_ns = max(1.0, (time.monotonic() - core.opened_s) * 1e9)
    waiting = {
        ENQUEUE_GET: engine.queues.next_index(0) - world.enqueue_get.fetched_index,
        ENQUEUE_PUT: len(waiting_places(world.enqueue_ring.ends)),
        DEQUEUE_GET: len(waiting_places(world.late_ring.ends)),
        DEQUEUE_PUT: len(waiting_places(world.dequeue_ring.ends)),
        DELIVER_LEVELS: due_count,
    }
    found = []
    for service, name in enumerate(SERVICE_NAMES):
        thread, (state, waits_for) = engine.services[service], _state(core, service)
        found.append(
            ServiceStats(
                name=name,
                busy_share=min(1.0, float(thread.busy_ns) / open_ns),
                queue_count=max(0, waiting[service]),
                step_count=thread.step_count,
                done_count=thread.done_count,
                state=state,
                waits_for=waits_for,
            )
        )
    return tuple(found)


def _state(core: Core, service: int) -> tuple[ServiceState, str | None]:
    """Return what a service does just now, and whom or what it waits for."""
    engine = core.engine
    thread, callers = engine.services[service], engine.world.callers
    if core.engine.failure.error is not None or callers.stop or not core.disk.writes:
        return "stopped", None
    waits_for = _waits_for(core, service)
    if waits_for is not None:
        return "waiting", waits_for
    if core.clock.manual or (thread.sleeping_until_ms and not thread.step & 1):
        return "idle", None
    return "running", None


def _waits_for(core: Core, service: int) -> str | None:
    engine, now_ms = core.engine, core.clock.now_ms
    world, thread, need = engine.world, engine.services[service], engine.need(service)
    has_no_room = core.runner.waiting_for_space is not None
    if need != needs.NOTHING:
        return _ROOM if has_no_room else WAITED_FOR.get(need, "an answer of its own thread")
    if thread.blocked:
        return _NEXT.get(service)
    if service == DEQUEUE_GET and is_full(engine.near):
        return "room in the near wheel"
    if service in (DEQUEUE_GET, DELIVER_LEVELS) and now_ms < world.callers.fire_from_ms:
        return _PAUSE
    return None


def read_stages(core: Core) -> tuple[StageStats, ...]:
    """Collect how long each stage took. O(1)."""
    rows = core.engine.world.stages.reshape(-1, STAGE_WORDS).tolist()
    return tuple(
        StageStats(
            name=name,
            step_count=row[STAGE_STEPS],
            entry_count=row[STAGE_ENTRIES],
            busy_ms=row[STAGE_NS] / 1e6,
            longest_ms=row[STAGE_LONGEST_NS] / 1e6,
        )
        for name, row in zip(STAGE_NAMES, rows, strict=True)
    )


def unlinked_age_ms(core: Core) -> int:
    """Return how long ago the oldest put that has no unit yet was stored; 0 if all have one.

    Also if its message cannot be read. O(1).
    """
    engine = core.engine
    index = int(engine.world.enqueue_put.linked_index)
    if index >= engine.queues.next_index(0):
        return 0
    try:
        for _, message in read_queued(core, 0, index, index + 1):
            return max(0, core.clock.now_ms - message.stored_ms)
    except CorruptStoreError:
        log.debug("%s: the timer topic's queue has no entry %d", core.path, index)
    return 0


# --- how far copies elsewhere lag


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStats(CopyStatus):
    """A look at one copy that is followed into a destination."""

    lag_ms: int
    """For how long something has waited to be in it; 0 if nothing does."""
    lag_bytes: int
    """How much of the log is not in it."""


def read_copies(core: Core) -> tuple[CopyStats, ...]:
    """Look at each copy. O(copies): a small file for each is read."""
    now_ms, end = core.clock.now_ms, core.engine.commitlog.end
    return tuple(_look(each, now_ms, end) for each in read_statuses(core.path, core.disk.at))


def _look(status: CopyStatus, now_ms: int, end: int) -> CopyStats:
    lag_bytes = max(0, end - status.shipped_end)
    lag_ms = max(0, now_ms - status.shipped_ms) if lag_bytes and status.shipped_ms else 0
    return CopyStats(**status.to_dict(), lag_ms=lag_ms, lag_bytes=lag_bytes)
