"""The calls on single timers: putting, looking, cancelling, moving."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pyarrow as pa

from timerstore.calls.pending.cancel import cancel_many, get, reschedule
from timerstore.calls.pending.is_pending import Bools
from timerstore.calls.pending.listing import Horizon, count_by_bucket, list_pending, pending_columns
from timerstore.calls.pending.timers import (
    UNCHANGED,
    ById,
    Payload,
    Timer,
    check_payload,
    encode_first_put,
    read_timer,
)
from timerstore.calls.putting.putting import Prepared, Putting
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    TooLateError,
    UnknownTimerError,
)
from timerstore.jit.locks import TurnLock
from timerstore.services.calls import key_search
from timerstore.services.calls.key_search import KeySearch
from timerstore.values.check_arguments import (
    DUE_MS_MAX,
    DUE_MS_MIN,
    Range,
    check_text,
    resolve_due_ms,
)
from timerstore.values.kinds import check_name
from timerstore.values.puts import Changes, Debounce, Given, Put

# --- timers by their key: found through the key index, or, without it, by reading all that is
# pending
#
# Everything goes under the lock of the index, which is taken before any other. So a put on
# condition is one step for all others that are: between the look and the put only a plain put can
# add a timer. What the index leads to is judged by its id like any other. A timer that was moved
# meanwhile has another id by then: if one was found and is not pending any more, it is looked for
# again.


class Keyed:
    """Looks for timers by their key in an open store; any number of threads may use it."""

    def __init__(self, core: Core, putting: Putting, by_id: ById) -> None:
        self.core, self._putting, self._by_id = core, putting, by_id
        self._keys = core.engine.keys
        self._search = KeySearch(core.engine.world, self._keys.index)

    # --- looking

    def get(self, topic: str, key: str) -> Timer | None:
        """Return the timer that was put last; see `TimerStore.get_key`."""
        names = _names(topic, key)
        with self._keys.lock.guard():
            if self._keys.is_used:  # the usual one, without a loop: a third of the cost
                engine = self.core.engine
                with engine.commitlog.reading(), engine.queues.files[0].reading():
                    said = self._search.next(names[1], names[0], key_search.BEGIN)
                if said == key_search.SEARCH_NOTHING_LEFT:
                    return None
                if said == key_search.SEARCH_FOUND and (timer := self._read_found()) is not None:
                    return timer
            return next(self._timers(*names), None)

    def _read_found(self) -> Timer | None:
        """Return the timer that was found; None if it is not pending, or only maybe."""
        id, message = self._search.id, self._search.message
        timer = self._by_id.get(id)
        if timer is None and id is not None and self._by_id.is_pending(id):
            with contextlib.suppress(CorruptStoreError):  # copied again: it is looked for
                # It may have rolled: this is its latest copy.
                timer = read_timer(self.core, message, int(id[:12], 16))
        return timer

    def list(self, topic: str, key: str) -> list[Timer]:
        """Return all timers with a key, in no order."""
        names = _names(topic, key)
        with self._keys.lock.guard():
            return list({timer.id: timer for timer in self._timers(*names)}.values())

    def _timers(self, topic: bytes, key: bytes) -> Iterator[Timer]:
        """Yield pending timers, as a rule the newest first; one may come twice."""
        for id in self._ids(topic, key):
            timer = self._by_id.get(id) or self._find(id)
            if timer is not None:
                yield timer

    def _ids(self, topic: bytes, key: bytes) -> Iterator[str]:
        """Yield the ids of pending timers; one may come twice."""
        while True:
            walk = _Walk(self.core, self._search, topic, key) if self._keys.is_used else None
            is_left, was_moved = False, False
            for id in self._scan(topic, key) if walk is None else walk:
                is_pending = self._by_id.is_pending(id)
                if is_pending or (is_pending is None and self._find(id) is not None):
                    is_left = True
                    yield id
                else:
                    was_moved = True
                    if walk is not None:
                        walk.is_settled = True
            if walk is not None and walk.has_no_entry:
                yield from self._scan(topic, key)
            if is_left or not was_moved:
                return

    def _find(self, id: str) -> Timer | None:
        """Return a pending timer, the long way; what is damaged is named, and none."""
        try:
            return get(self.core, id)
        except UnknownTimerError:  # what the message says cannot be
            return None
        except CorruptStoreError as e:
            self.core.engine.damage.note(e.file, e.offset, e.reason)
            return None

    def _scan(self, topic: bytes, key: bytes) -> Iterator[str]:
        """Yield the ids of pending timers, the newest first. O(pending)."""
        found = []
        for timer in list_pending(self.core, Range(topic.decode("utf-8", "surrogateescape"))):
            if timer.key is not None and timer.key.encode("utf-8", "surrogateescape") == key:
                found.append(timer.id)
        yield from sorted(found, key=lambda id: id[12:], reverse=True)

    # --- cancelling

    def cancel(self, topic: str, key: str) -> tuple[int, bool]:
        """Cancel all timers with a key; return how many, and whether the services must be told.

        Their deletes are not durable yet.
        """
        names, done, is_told = _names(topic, key), set[str](), True
        with self._keys.lock.guard():
            if self._keys.is_used:
                count, is_all = self._cancel_usual(*names)
                if is_all:
                    return count, False
            else:
                count = 0
            for id in self._ids(*names):
                if id not in done:
                    cancelled = self._by_id.cancel(id)
                    if cancelled is None:
                        cancelled, is_told = bool(cancel_many(self.core, [id])[0]), False
                    if cancelled:
                        done.add(id)
        return count + len(done), not is_told

    def _cancel_usual(self, topic: bytes, key: bytes) -> tuple[int, bool]:
        """Cancel those that lie ahead; return how many, and whether there are certainly no others.

        Without the loop over all kinds: half the cost.
        """
        count, is_all, how = 0, True, key_search.BEGIN
        while True:
            engine = self.core.engine
            with engine.commitlog.reading(), engine.queues.files[0].reading():
                said = self._search.next(key, topic, how)
            if said != key_search.SEARCH_FOUND:
                return count, is_all and said == key_search.SEARCH_NOTHING_LEFT
            cancelled = self._by_id.cancel_once(self._search.id)
            count += cancelled is True
            is_all = is_all and cancelled is True  # else it may have been moved meanwhile
            how = key_search.GO_ON if cancelled is None else key_search.GO_ON_WITHOUT

    # --- putting

    @property
    def lock(self) -> TurnLock:
        """Held over a look and what is put for it; it is not reentrant."""
        return self._keys.lock

    def find(self, topic: str, key: str) -> str | None:
        """Return the id of a timer that is pending. For the thread that holds the lock."""
        return next(self._ids(*_names(topic, key)), None)

    def put_if_absent(self, prepared: Prepared, key: str) -> tuple[str, Prepared]:
        """Put a timer, or return the id of the one that is pending; and as what it was put.

        It is not durable yet. A delay counts from when it is put: who waited for the lock could
        else put a timer for a time at which another one with the key has fired.
        """
        names = _names(prepared.topic, key)
        with self._keys.lock.guard():
            id = next(self._ids(*names), None)
            return self._append(prepared) if id is None else (id, prepared)

    def _append(self, prepared: Prepared) -> tuple[str, Prepared]:
        prepared = prepared.due_from(self.core.clock.now_ms)
        return self._putting.append_short(prepared) or self._putting.append(prepared), prepared

    def put_in_place(
        self, prepared: Prepared, key: str, payload: Payload, debounce: Debounce | None
    ) -> tuple[str, Prepared]:
        """Put a timer in the place of the one that is pending, if there is one; see above.

        With `debounce` one whose time has come is not replaced: who puts all the time would keep it
        from firing.
        """
        names, by_id, clock = _names(prepared.topic, key), self._by_id, self.core.clock
        unread = set[str]()
        with self._keys.lock.guard():
            while True:
                refused: InvalidArgumentError | None = None
                for id in self._ids(*names):
                    now_ms, most_ms = clock.now_ms, DUE_MS_MAX
                    if debounce is not None:
                        timer = self._by_id.get(id) or self._find(id)
                        if timer is None and id not in unread:
                            unread.add(id)
                            break  # as below; one that is damaged is passed by the second time
                        if timer is None or timer.due_ms <= now_ms:
                            continue
                        first_ms = _first_put_ms(timer, now_ms)
                        most_ms = debounce.most_ms(first_ms)
                        payload = payload._replace(first_put_ms=first_ms)
                    placed = prepared.due_from(now_ms, most_ms)
                    due_ms = placed.due_ms
                    payload = payload._replace(expires_ms=placed.expires_ms)
                    try:
                        moved = None
                        if not clock.manual:
                            moved = by_id.reschedule(id, due_ms, now_ms, payload)
                        moved = moved or reschedule(self.core, id, due_ms, now_ms, payload)
                        return moved, placed
                    except InvalidArgumentError as e:
                        refused = refused or e  # it waits in a level; another may not
                    except TooLateError:
                        break  # it fired, or was moved, just now: look again
                else:
                    if refused is not None:
                        raise refused
                    if debounce is not None:
                        first = encode_first_put(clock.now_ms)
                        prepared = prepared._replace(described=first + prepared.described)
                    return self._append(prepared)


class _Walk:
    """The ids that one key leads to; they may be pending or not."""

    def __init__(self, core: Core, search: KeySearch, topic: bytes, key: bytes) -> None:
        self._core, self._search = core, search
        self._names, self._how = (key, topic), key_search.BEGIN
        self.is_settled = False
        """Set by the thread that finds that the last one is not pending any more."""
        self.has_no_entry = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        engine, search = self._core.engine, self._search
        while True:
            how = key_search.GO_ON_WITHOUT if self.is_settled else self._how
            self.is_settled = False
            with engine.commitlog.reading(), engine.queues.files[0].reading():
                said = search.next(*self._names, how)
            self._how = key_search.GO_ON
            if said == key_search.SEARCH_FOUND:
                id = search.id
                if id is not None or (id := self._read_id(search.message)):
                    return id
            elif said == key_search.SEARCH_BEHIND:
                engine.keys.catch_up_locked()
                self._how = key_search.BEGIN_BEHIND
            elif said == key_search.SEARCH_UNMAPPED:
                engine.commitlog.readable(search.message // engine.commitlog.segment_bytes)
            else:
                self.has_no_entry = said == key_search.SEARCH_NO_WORD
                raise StopIteration

    def _read_id(self, message: int) -> str:
        """Return the id of what a broker put; "" if it cannot be read."""
        try:
            return read_timer(self._core, message, 0).id
        except CorruptStoreError:
            return ""


def _names(topic: str, key: str) -> tuple[bytes, bytes]:
    """Return what is looked for, or refuse it."""
    return check_name(topic), check_text(key, "key")


def _first_put_ms(timer: Timer, now_ms: int) -> int:
    """Return when the first put was of a timer that is debounced; what cannot be counts as now."""
    first_ms = timer.put_ms if timer.first_put_ms is None else timer.first_put_ms
    return first_ms if DUE_MS_MIN <= first_ms <= now_ms else now_ms


def check_condition(put: Put) -> str:
    """Return the key of a put on condition, or refuse it."""
    for name, value in (("if_absent", put.if_absent), ("replace", put.replace)):
        if not isinstance(value, bool | Debounce):
            raise InvalidArgumentError(f"{name} is {value!r}. Use True or False.")
    if put.if_absent and put.replace:
        raise InvalidArgumentError("if_absent and replace are both True. Use one of them.")
    if put.key is None:
        raise InvalidArgumentError(
            "if_absent or replace was passed without a key. Pass key as well."
        )
    if put.replace and put.delay_level is not None:
        raise InvalidArgumentError(
            "replace and delay_level exclude each other, because messages of a delay level keep "
            "their order. Pass delay, at or at_ms."
        )
    return put.key


# --- the calls


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
            debounce = put.replace if isinstance(put.replace, Debounce) else None
            said = {"first_put_ms": None, "expires_ms": prepared.expires_ms}
            payload = Payload(prepared.body, own, put.tag, keeps_tag=False, **said)
            id, prepared = self.keyed.put_in_place(prepared, key, payload, debounce)
        self.core.after_append(prepared.now_ms, prepared.due_ms)
        return id

    @inside
    def cancel_many(self, ids: Sequence[str]) -> Bools:
        """Cancel many; see `TimerStore.cancel_many`."""
        self.core.check_writable()
        done = cancel_many(self.core, ids)
        self.core.after_append(self.core.clock.now_ms)
        return done

    def reschedule(self, id: str, changes: Changes) -> str:
        """Move or change one; see `TimerStore.reschedule`."""
        core, (delay, at, at_ms, body, properties) = self.core, changes
        if body is None and properties is None and self._putting.has_no_limits:
            now_ms = core.clock.now_ms
            due_ms = resolve_due_ms(now_ms, delay, at, at_ms, None)
            new_id = self._by_id.reschedule(id, due_ms, now_ms, UNCHANGED)
            if new_id is not None:
                if self._is_group:
                    core.wait_durable()
                return new_id
        return self._reschedule(id, changes)

    @inside
    def _reschedule(self, id: str, changes: Changes) -> str:
        core, putting, payload = self.core, self._putting, UNCHANGED
        delay, at, at_ms, body, properties = changes
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
