"""The runner: the one place that knows the services' threads.

On the wall clock each service has a thread that stays in the resident kernel and answers its needs.
On a manual clock there is none: `play` runs the same steps when the clock moves, one thread at a
time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from timerstore.errors import CorruptStoreError, StoreFullError
from timerstore.jit.guards import Lock
from timerstore.jit.host import wake_event
from timerstore.jit.record import acting_as
from timerstore.jit.system import set_thread_name, set_timer_slack_us
from timerstore.services.damage.pass_by import find_level_message, find_timer_message, pass_lost
from timerstore.services.damage.scrub import leave_slot, scan_slots
from timerstore.services.engine.engine import CANCELLED_GROWTH, Engine
from timerstore.services.running.prefetch import Prefetcher
from timerstore.services.running.steps import WALL_CLOCK, run
from timerstore.services.world import needs
from timerstore.services.world.background import BackgroundThread, Flag
from timerstore.services.world.state import (
    CLEANING,
    DEQUEUE_GET,
    DEQUEUE_PUT,
    ENQUEUE_GET,
    SERVICE_NAMES,
)

# --- Answering needs: what a service's step cannot go on without, see needs.py.


def provide(engine: Engine, service: int) -> int:
    """Answer a service's need, and clear it; return which it was.

    Only the thread that runs its steps calls this.
    """
    thread = engine.world.cleaning.thread if service == CLEANING else engine.services[service]
    need, offset = thread.need, thread.need_offset
    with acting_as(service):
        try:
            _provide(engine, service, need, offset)
        finally:
            thread.need = needs.NOTHING
    return need


def _provide(engine: Engine, service: int, need: int, offset: int) -> None:
    engine.let_go()
    if need == needs.COMMITLOG_SEGMENT:
        engine.commitlog.make_room(offset + 1)
        engine.prepare_commitlog()
    elif need == needs.QUEUE_SEGMENT:
        engine.queues.prepare(offset, index=engine.queues.next_index(offset))
    elif need == needs.TIMERLOG_SEGMENT:
        number = offset // engine.timerlog.segment_bytes
        if offset >= engine.timerlog.end:
            engine.timerlog.make_unit_room()
        else:
            _map_units(engine, number, offset)
    elif need == needs.COMMITLOG_READ:
        engine.commitlog.readable(offset // engine.commitlog.segment_bytes)
    elif need == needs.TIMER_QUEUE_READ:
        file = engine.queues.files[0]
        file.existing(offset // file.segment_bytes)
    elif need == needs.LEVEL_READ:
        engine.map_level(offset)
    elif need == needs.TOPIC:
        engine.row_of_message(offset)
    elif need == needs.CANCELLED_ROOM:
        engine.cancelled.grow(CANCELLED_GROWTH)
    elif need == needs.DAMAGED_TIMERLOG:
        leave_slot(engine, offset)
    elif need == needs.LOST:
        pass_lost(engine, engine.services[service])
    elif need == needs.BAD_ENTRY:
        find_timer_message(engine, offset)
    elif need == needs.BAD_LEVEL_ENTRY:
        find_level_message(engine, offset)


def _map_units(engine: Engine, number: int, offset: int) -> None:
    """Map a segment of units; one that retention removed meanwhile is needed no more."""
    try:
        engine.timerlog.existing(number)
    except CorruptStoreError:
        if number in engine.timerlog.numbers:
            raise
        if offset >= engine.world.cleaning.timerlog_start:
            leave_slot(engine, offset)


_LOOK_S: Final = 0.001


class Runner:
    """Runs the services of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.waiting_for_space: StoreFullError | None = None
        self.waiting_since_ms: int | None = None
        self._threads: list[BackgroundThread] = []
        self._playing = Lock()
        self._stop = Flag()

    # --- on the wall clock

    def _expect_random_reads(self) -> None:
        """Have no page that a due timer needs bring others along: opening reads logs in order."""
        for log in (self.engine.commitlog, self.engine.timerlog):
            log.expect_random_reads()

    def start(self) -> None:
        """Start the threads."""
        self._expect_random_reads()
        for service, name in enumerate(SERVICE_NAMES):
            thread = BackgroundThread(f"timerstore-{name}", self._body(service), self.engine.stop)
            self._threads.append(thread)
            thread.start()
        prefetcher = Prefetcher(self.engine)
        thread = BackgroundThread(
            "timerstore-prefetch", lambda: prefetcher.run(self._stop), self.engine.stop
        )
        self._threads.append(thread)
        thread.start()

    def _body(self, service: int) -> Callable[[], None]:
        def body() -> None:
            set_timer_slack_us(1)
            set_thread_name(SERVICE_NAMES[service])
            while not self._stop.is_set():
                run(self.engine.world, service, service, 0, WALL_CLOCK)
                if self.engine.need(service):
                    self._meet(service)

        return body

    def _meet(self, service: int) -> None:
        """Answer a need; if there is no space, the service stands still for a while."""
        thread = self.engine.services[service]
        need, offset = thread.need, thread.need_offset
        try:
            provide(self.engine, service)
        except StoreFullError as e:
            self.waiting_since_ms = self.waiting_since_ms or self.engine.clock.now_ms
            self.waiting_for_space = e
            self._stand_still(service, need, offset)
        else:
            self.waiting_for_space = self.waiting_since_ms = None

    def _stand_still(self, service: int, need: int, offset: int) -> None:
        """Keep a need for half a precision: nobody runs its step, which would need it again."""
        thread = self.engine.services[service]
        with acting_as(service):
            thread.need_offset, thread.need = offset, need
        self._stop.wait(self.engine.precision_ms / 2000)
        self.engine.forget_need(service)

    def link_all(self, patience_s: float) -> None:
        """Wait until each timer message has its unit, or none gets one for so long.

        What has none when the store closes is linked when it opens, which then counts all that is
        pending.
        """
        last, since_s = -1, 0.0
        while self._threads and self._is_behind():
            linked, now_s = self.engine.world.enqueue_put.linked_index, time.monotonic()
            if linked != last:
                last, since_s = linked, now_s
            elif now_s - since_s > patience_s:
                return
            self.engine.wake(ENQUEUE_GET)
            time.sleep(_LOOK_S)

    def _is_behind(self) -> bool:
        """Tell whether a timer message has no unit, and may soon have one."""
        engine = self.engine
        behind = engine.world.enqueue_put.linked_index < engine.queues.next_index(0)
        return behind and self.waiting_for_space is None and self._is_running()

    def _is_running(self) -> bool:
        return all(thread.is_alive for thread in self._threads)

    def stop(self) -> None:
        """Stop the threads; returns when they have ended."""
        self._stop.set()
        self.engine.world.callers.stop = 1
        for eventfd in self.engine.eventfds:
            wake_event(eventfd)
        while self._threads:
            self._threads[-1].join()
            self._threads.pop()

    def resume(self) -> None:
        """Go on after `stop`, also one that was interrupted."""
        if self._stop.is_set():
            self.stop()  # else a thread that has not seen the flag yet would go on beside another
            self._stop.clear()
            self.engine.world.callers.stop = 0
            if not self.engine.clock.manual:
                self.start()

    # --- on a manual clock

    def _provide_alone(self, service: int) -> bool:
        """Answer a service's need; False if it has none."""
        if self.engine.need(service) == needs.NOTHING:
            return False
        provide(self.engine, service)
        return True

    def play(self, start_ms: int, stop_ms: int) -> None:
        """Play all that happens in (start_ms, stop_ms], each event at its own time."""
        self._expect_random_reads()  # no thread does it when a segment is full
        engine, now_ms = self.engine, start_ms
        while True:
            if stop_ms < now_ms:
                now_ms = stop_ms  # the clock was moved back
            with self._playing.guard():
                scan_slots(engine, lambda: self._provide_alone(DEQUEUE_GET))
                now_ms = run(engine.world, ENQUEUE_GET, DEQUEUE_PUT, now_ms, stop_ms)
                service = engine.needing()
                if service >= 0:
                    provide(engine, service)
                elif now_ms >= stop_ms:
                    return
