"""The calls on single timers: putting, looking, cancelling, moving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import pyarrow as pa

from timerstore.calls.pending.cancel import cancel_many, get, reschedule
from timerstore.calls.pending.is_pending import Bools
from timerstore.calls.pending.keyed import Keyed, check_condition
from timerstore.calls.pending.listing import (
    Horizon,
    count_by_bucket,
    list_pending,
    pending_columns,
)
from timerstore.calls.pending.short_way import UNCHANGED, ById, Payload, check_payload
from timerstore.calls.pending.timers import Timer
from timerstore.calls.putting.putting import Putting
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.errors import InvalidArgumentError, TooLateError
from timerstore.values.check_arguments import DUE_MS_MAX, Range, resolve_due_ms
from timerstore.values.kinds import check_name
from timerstore.values.put_rows import Given, Put


class PendingTimers:
    """What is pending in an open store; any number of threads may use it."""

    def __init__(self, core: Core, putting: Putting) -> None:
        self.core, self.gate = core, core.gate
        self._putting, self._short_way = putting, putting.short_way
        self._is_group = core.is_group
        self._by_id = ById(core.engine, core.gate)
        self.keyed = Keyed(core, putting, self._by_id)

    def get(self, id: str) -> Timer | None:
        """Return a timer; see `TimerStore.get`."""
        return self._by_id.get(id) or self._get(id)

    @inside
    def _get(self, id: str) -> Timer | None:
        self.core.check_open()
        return get(self.core, id)

    def is_pending(self, id: str) -> bool | None:
        """Tell whether one that lies ahead is pending, without a lock; None: `get` it."""
        return self._by_id.is_pending(id)

    def get_key(self, topic: str, key: str) -> Timer | None:
        """Return a timer by its key; see `TimerStore.get_key`."""
        with self.gate.guard():
            self.core.check_open()
            self.core.check_unlocked()
            return self.keyed.get(topic, key)

    def list(self, where: Range) -> Iterator[Timer]:
        """Yield timers in order; see `TimerStore.pending`."""
        self.core.check_open()
        if where.key is not None:
            return iter(self._list_key(where, where.key))
        return list_pending(self.core, where)

    @inside
    def _list_key(self, where: Range, key: str) -> Sequence[Timer]:
        self.core.check_unlocked()
        topic, start_ms, end_ms, limit, _ = where.checked()
        if topic is None:
            raise InvalidArgumentError("key was passed without a topic. Pass topic as well.")
        timers = sorted(
            self.keyed.list(topic, key), key=lambda each: (each.due_ms, each.put_ms, each.id)
        )
        low, high = start_ms or 0, DUE_MS_MAX + 1 if end_ms is None else end_ms
        return [each for each in timers if low <= each.due_ms < high][:limit]

    @inside
    def columns(self, where: Range, columns: Sequence[str] | None) -> pa.Table:
        """Return timers by columns; see `TimerStore.pending_columns`."""
        self.core.check_open()
        return pending_columns(self.core, where, columns)

    @inside
    def count(self, topic: str | None) -> int:
        """Return how many there are. O(1)."""
        self.core.check_open()
        return self.core.engine.pending_count(None if topic is None else check_name(topic))

    @inside
    def horizon(self, bucket_ms: int, start_ms: int | None, end_ms: int | None) -> Horizon:
        """Count them by bucket; see `TimerStore.horizon`."""
        self.core.check_open()
        return count_by_bucket(self.core, bucket_ms, start_ms, end_ms)

    def cancel(self, id: str) -> bool:
        """Cancel one; see `TimerStore.cancel`."""
        cancelled = self._by_id.cancel(id)
        if cancelled is None:
            return bool(self.cancel_many([id])[0])
        if self._is_group:
            self.core.wait_durable()
        return cancelled

    @inside
    def cancel_key(self, topic: str, key: str) -> int:
        """Cancel all with a key; see `TimerStore.cancel_key`."""
        self.core.check_writable()
        self.core.check_unlocked()
        count, is_to_tell = self.keyed.cancel(topic, key)
        if is_to_tell:
            self.core.after_append(self.core.clock.now_ms)
        elif count and self.core.is_group:
            self.core.wait_durable()
        return count

    def put(self, given: Given) -> str:
        """Put one timer; see `TimerStore.put`. `given`: the fields of a `Put`."""
        id = self._short_way.put(given)
        if id is None:
            put = Put._make(given)
            return self._put_conditional(put) if put.is_conditional else self._putting.put(put)
        if self._is_group:
            self.core.wait_durable()
        return id

    @inside
    def _put_conditional(self, put: Put) -> str:
        """Put a timer unless its key has one, or in its place."""
        self.core.check_putting()
        self.core.check_unlocked()
        key = check_condition(put)
        prepared = self._putting.prepare(put)
        if put.if_absent:
            id, prepared = self.keyed.put_if_absent(prepared, key)
        else:
            own = dict(put.properties or {})
            payload = Payload(prepared.body, own, put.tag, keeps_tag=False)
            id, prepared = self.keyed.put_in_place(prepared, key, payload)
        self.core.after_append(prepared.now_ms, prepared.due_ms)
        return id

    @inside
    def cancel_many(self, ids: Sequence[str]) -> Bools:
        """Cancel many; see `TimerStore.cancel_many`."""
        self.core.check_writable()
        done = cancel_many(self.core, ids)
        self.core.after_append(self.core.clock.now_ms)
        return done

    def reschedule(
        self,
        id: str,
        delay: timedelta | None,
        at: datetime | None,
        at_ms: int | None,
        body: bytes | None,
        properties: Mapping[str, str] | None,
    ) -> str:
        """Move or change one; see `TimerStore.reschedule`."""
        core = self.core
        if body is None and properties is None and self._putting.has_no_limits:
            now_ms = core.clock.now_ms
            due_ms = resolve_due_ms(now_ms, delay, at, at_ms, None)
            new_id = self._by_id.reschedule(id, due_ms, now_ms, UNCHANGED)
            if new_id is not None:
                if self._is_group:
                    core.wait_durable()
                return new_id
        return self._reschedule(id, delay, at, at_ms, body, properties)

    @inside
    def _reschedule(
        self,
        id: str,
        delay: timedelta | None,
        at: datetime | None,
        at_ms: int | None,
        body: bytes | None,
        properties: Mapping[str, str] | None,
    ) -> str:
        core, putting, payload = self.core, self._putting, UNCHANGED
        core.check_putting()
        now_ms = core.clock.now_ms
        if body is not None or properties is not None:
            payload = check_payload(core, body, properties)
        has_time = not (delay is None and at is None and at_ms is None)
        if payload is not UNCHANGED and not has_time:
            due_ms = self._due_ms(id)
        else:
            due_ms = resolve_due_ms(now_ms, delay, at, at_ms, core.engine.config.max_delay_ms)
        putting.congestion.check(due_ms, now_ms)
        putting.admission.enter()  # before any lock
        putting.space.check()
        now_ms = core.clock.now_ms
        new_id = self._by_id.reschedule(id, due_ms, now_ms, payload)
        if new_id is None or core.clock.manual:
            new_id = new_id or reschedule(core, id, due_ms, now_ms, payload)
            core.after_append(now_ms, due_ms)
        elif core.is_group:
            core.wait_durable()
        return new_id

    def _due_ms(self, id: str) -> int:
        """Return when a pending timer is due: that of an id never changes."""
        timer = self._by_id.get(id) or get(self.core, id)
        if timer is None:
            raise TooLateError(f"The timer {id} was fired or cancelled. Put a new timer.")
        return timer.due_ms
