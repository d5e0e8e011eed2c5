"""The concurrent consumer: handlers in threads, retries that wait longer each time, dead letters.

On a manual clock there are no threads: `step`, or the clock's `advance`, runs the handlers.
"""

from __future__ import annotations

import logging
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from timerstore.anystore import AnyStore
from timerstore.arguments import check_group, check_topic_to_consume
from timerstore.consumer.consumerstats import ConsumerStats, read_consumer_stats
from timerstore.consumer.handling import Handling
from timerstore.consumer.hooks import Hook
from timerstore.consumer.lines import Ordered
from timerstore.consumer.ordered import OrderedSubscription, ordered_limits
from timerstore.consumer.retry_rules import check_backoff
from timerstore.consumer.running import Signals, check_main_thread, exit_status
from timerstore.consumer.subscription import (
    Handler,
    Held,
    Limits,
    Subscription,
    Task,
    check_handler,
)
from timerstore.consumer.threads import Threads
from timerstore.consuming.consuming import dead_topic
from timerstore.consuming.dead_letters import (
    LISTED_MAX,
    DeadLetter,
    drop,
    list_dead_letters,
    redrive,
)
from timerstore.consuming.starting import Start, begin_groups, check_start
from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.kinds import check_bool, check_duration, check_int, check_kind
from timerstore.pending.found import find_pending
from timerstore.services.clock import ManualClock
from timerstore.staying import Stays
from timerstore.store import TimerStore

log = logging.getLogger("timerstore")

THREADS_MAX: Final = 1_024
"""Threads of a consumer: each has a stack."""
ATTEMPTS_MAX: Final = 1 << 30
PULL_COUNT_MAX: Final = 4_096
"""Messages pulled at once; more would leave the other threads without any."""
BROADCAST_PREFIX: Final = "%BROADCAST%"
_NEW, _STARTED, _CLOSED = "new", "started", "closed"
_H = TypeVar("_H", bound=Handler)


class Consumer(Stays):
    """Calls handlers with what falls due, in threads, and sees to what fails.

    A handler gets a `Delivery`, or with `batch_count` above 1 a list of them. When it returns None
    they are acknowledged. When it raises, or returns a `Retry`, or takes longer than `timeout`,
    they are sent back: they come again through the delay levels, later each time, and after
    `max_attempts` retries they go to the dead letters, the topic `%DLQ%group`. It is at least
    once: what was handled before a crash may come again, with the same id.

    >>> consumer = timerstore.Consumer(store, "mailer")
    >>> @consumer.on("reminders")
    ... def send(d):
    ...     print(d.body)
    >>> with consumer:
    ...     id = store.put(b"hello", topic="reminders")
    ...     handled = consumer.step()  # on a manual clock; else threads do it
    b'hello'
    """

    _store_kind = cast(type, TimerStore)
    _handling_kind = Handling
    _subscription_kind = Subscription

    def __init__(
        self,
        store: AnyStore,
        group: str,
        *,
        threads: int = 20,
        batch_count: int = 1,
        pull_count: int = 32,
        max_attempts: int | None = 16,
        backoff: Sequence[timedelta] | None = None,
        timeout: timedelta = timedelta(minutes=15),
        broadcast: bool = False,
        instance: str = "",
        ordered: Ordered = False,
        hooks: Sequence[Hook] = (),
        start: Start = "earliest",
    ) -> None:
        """Prepare; `start` begins.

        `threads`: handlers at the same time. `pull_count`: messages read at once. `max_attempts`:
        retries before a message is given up, None for ever. `backoff`: how long a message waits
        after its first failure, after its second, …, to the millisecond, and the last for all
        further ones, in place of the delay levels. `timeout`: after this a handler's
        messages are sent back; it is not stopped, and keeps its thread until it ends. `hooks`: see
        `Hook`.

        `ordered`: True, and of a topic, "key", and of what has the same key, each message is begun
        when the one before is done; what fails holds back those behind it. docs/consumer.md has the
        rules.

        `broadcast`: each instance gets every message, with an offset of its own, and failures are
        only logged; `instance` names it where a group has more than one. `start`: where a group
        begins that never read a topic: "earliest", "latest", or epoch milliseconds.
        """
        check_int(threads, "threads", 1, THREADS_MAX)
        check_int(pull_count, "pull_count", 1, PULL_COUNT_MAX)
        check_int(batch_count, "batch_count", 1, pull_count)
        if max_attempts is None:
            max_attempts = ATTEMPTS_MAX
        check_int(max_attempts, "max_attempts", 0, ATTEMPTS_MAX)
        if check_duration(timeout, "timeout") <= timedelta(0):
            raise InvalidArgumentError(f"timeout is {timeout!r}. Pass a positive timedelta.")
        check_start(start)
        check_group(group)
        here: Any = store
        if hasattr(here, "_consumer_kind"):
            owned = here._owned() if ordered or broadcast else None
            if owned is None:  # a client's, which asks the owner
                self.__class__ = here._consumer_kind()
                here = self._face_of(here)
            else:  # what these need is here
                here = owned
        check_kind(here, self._store_kind, "store")
        check_kind(instance, str, "instance")
        check_bool(broadcast, "broadcast")
        check_kind(hooks, Sequence, "hooks")
        if not isinstance(ordered, bool | str) or ordered not in (True, False, "key"):
            raise InvalidArgumentError(f'ordered is {ordered!r}. Pass True, "key", or False.')
        if ordered and (broadcast or batch_count > 1):
            raise InvalidArgumentError(
                "An ordered consumer hands out one message at a time, to one of its group. Leave "
                "out batch_count and broadcast."
            )
        if instance and not broadcast:
            raise InvalidArgumentError("instance is for broadcast=True. Leave it out.")
        given: Any = store
        self.store: AnyStore = given
        self.group = group
        self._core, self._consuming = here.core, here.consuming
        self._reads_as = group
        if broadcast:
            self._reads_as = check_group(BROADCAST_PREFIX + group + (instance and "%" + instance))
        self._broadcast, self._start, self._ordered = broadcast, start, ordered
        self._threads_count, self._pull_count = threads, pull_count
        self._batch_count = batch_count
        self._subscriptions: list[Subscription] = []
        self._turn = 0
        self._state = _NEW
        self._threads: Threads | None = None
        self._stepping = False
        self._handling = self._handling_kind(
            here.putting,
            group,
            as_list=batch_count > 1,
            max_attempts=max_attempts,
            backoff=check_backoff(backoff),
            timeout_ms=timeout / timedelta(milliseconds=1),
            broadcast=broadcast,
            ordered=ordered is not False,
            hooks=hooks,
        )

    @staticmethod
    def _face_of(client: Any) -> Any:
        """Return what a client's consumer takes for its store."""
        raise NotImplementedError

    # --- subscribing

    def on(self, topic: str, *, tags: str = "*") -> Callable[[_H], _H]:
        """Subscribe the decorated function to a topic; see `subscribe`."""
        check_topic_to_consume(topic)

        def take(handler: _H) -> _H:
            self.subscribe(topic, handler, tags=tags)
            return handler

        return take

    def subscribe(self, topic: str, handler: Handler, *, tags: str = "*") -> None:
        """Have `handler` called with a topic's messages; before `start`, once for each topic.

        `tags`: "a||b" for messages with one of these tags, "*" for all. Messages with other tags
        are done for the whole group, so all its consumers need the same subscriptions. What comes
        again after a failure is not filtered.
        """
        check_handler(handler)
        self._take(topic, handler, tags)

    def _take(self, topic: str, handler: Any, tags: str) -> None:
        """Take a handler of any kind."""
        self._core.check_process()
        check_topic_to_consume(topic)
        if self._state != _NEW:
            raise InvalidArgumentError("The consumer was started. Subscribe before start().")
        if any(known.topic == topic for known in self._subscriptions):
            raise InvalidArgumentError(f"{topic!r} has a handler already. Call both in one.")
        if self._ordered:
            ordered = OrderedSubscription(topic, handler, tags, self._ordered)
            ordered.hold_back = self._handling.hand_in_again
            self._subscriptions.append(ordered)
        else:
            self._subscriptions.append(self._subscription_kind(topic, handler, tags))

    # --- running

    def start(self) -> None:
        """Begin to call handlers. Durable on return: where a new group starts.

        On a manual clock no thread is started; the clock's `advance` then calls handlers on its
        way, at the very time at which something falls due.
        """
        self._begin()
        if isinstance(self._core.clock, ManualClock):
            self._core.clock._attend(self)
        else:
            self._threads = Threads(self._core, self._handling, self._pull)
            self._threads.start(self._threads_count, f"timerstore-{self.group}")

    def _begin(self) -> None:
        """Begin to read, without anybody who calls handlers yet."""
        self._core.check_writable()
        if self._state != _NEW:
            raise InvalidArgumentError("The consumer was started before. Make another one.")
        if not self._subscriptions:
            raise InvalidArgumentError("There is no handler. Subscribe one before start().")
        self._open()

    def _open(self) -> None:
        names = _broadcasting.setdefault(self.store, set())
        if self._broadcast:
            if self._reads_as in names:
                raise InvalidArgumentError(
                    f"The group {self.group!r} broadcasts to such an instance already. "
                    "Pass each consumer an instance of its own."
                )
            names.add(self._reads_as)
        pairs = [(each.topic, self._reads_as) for each in self._subscriptions]
        begin_groups(self._consuming, pairs, self._start)
        if not self._broadcast:
            # Where nobody has read the dead letters, this keeps retention from removing them.
            begin_groups(self._consuming, [(dead_topic(self.group), self.group)], "earliest")
        held: defaultdict[int, Held] = defaultdict(Held)
        config = self._core.engine.config
        limits = Limits.of(config)
        if self._ordered:
            limits = ordered_limits(config, self._ordered, self._pull_count)
        for subscription in self._subscriptions:
            subscription.open(self._consuming, self._reads_as, limits, held)
        self._state = _STARTED

    def run(self, *, timeout: timedelta | None = None, close_store: bool = True) -> int:
        """Call handlers until SIGTERM or SIGINT comes, then end; return an exit status.

        For a program's main thread. It starts, where `start` was not called. At the signal nothing
        new is begun; it waits for the handlers that run, for `timeout` at most, then closes the
        store, unless told otherwise. A second signal does not wait for handlers any more, a third
        does what it did before; at the end all signals do.

        0: all handlers have ended. 1: an error ended it; it was logged, and stands in `error`.
        128 + the signal's number: handlers still run, in threads that end with the process; what
        they handle comes again. What `start` raises is raised.

        >>> sys.exit(consumer.run())  # doctest: +SKIP
        """
        self._core.check_process()
        check_main_thread()
        timeout_s = _seconds(timeout)
        check_bool(close_store, "close_store")
        if self._core.clock.manual:
            raise InvalidArgumentError("The store has a manual clock. Move that, or call step().")
        with Signals() as signals:
            if self._state != _STARTED:
                self.start()
            threads = self._threads
            assert threads is not None
            signals.wait(lambda: threads.stopping)
            self._state = _CLOSED
            ended = signals.let_end(self._stop, timeout_s)
            failed = self.error is not None
            if close_store:
                try:
                    self.store.close()
                except (TimerStoreError, OSError) as e:
                    log.error("%s: closing failed: %s", self.store.path, e)
                    failed = True
            return exit_status(signals.number, ended=ended, failed=failed)

    def step(self) -> int:
        """On a manual clock: call handlers with all that is there now; return how many messages.

        For tests, in the calling thread, one after the other. Works with and without `start`.
        """
        self._core.check_process()
        if not self._core.clock.manual:
            raise InvalidArgumentError("The store has the wall clock. Call start() instead.")
        if self._state == _CLOSED:
            raise InvalidArgumentError("The consumer was closed. Make another one.")
        self._core.check_writable()
        if self._state == _NEW:
            self._open()
        self._core.play_now()
        return self._step()

    def _step(self) -> int:
        """Run what is there; within a handler nothing new is begun."""
        tasks = self._handling.tend()
        if self._stepping:
            for task in tasks:
                self._handling.hand_in_again(task, 0)
            return 0
        self._stepping, count = True, 0
        try:
            while tasks or (tasks := self._pull()[0]):
                task = tasks.pop(0)
                count += len(task.deliveries)
                self._handling.run(task)
                tasks += self._handling.tend()
        finally:
            self._stepping = False
            for task in tasks:
                self._handling.hand_in_again(task, 0)
        return count

    def _pull(self) -> tuple[list[Task], bool]:
        """Pull from the next topic that has something; tell whether limits kept any back."""
        subscriptions, limited = self._subscriptions, False
        for i in range(len(subscriptions)):
            place = (self._turn + i) % len(subscriptions)
            subscription = subscriptions[place]
            subscription.group.make_visible()
            tasks = subscription.pull(self._pull_count, self._batch_count)
            if tasks:
                self._turn = place + 1
                return tasks, False
            limited |= subscription.limited
        self._core.check_open()
        return [], limited

    # --- for a manual clock, see `Attendant`

    def _next_ms(self, start_ms: int, stop_ms: int) -> int:
        """Return where an advancing clock has to stop for this consumer."""
        if self._core.closed:
            return stop_ms
        due_ms = find_pending(self._core).due_ms
        due_ms = due_ms[due_ms > start_ms]
        first = int(due_ms.min()) if len(due_ms) else stop_ms
        next_ms = self._handling.next_ms(begins=not self._stepping)
        return int(min(first, max(next_ms, start_ms + 1), stop_ms))

    def _arrived(self) -> None:
        """Call handlers at the clock's present time."""
        if not self._core.closed and self._state == _STARTED:
            self._step()

    # --- the end

    def close(self, timeout: timedelta | None = None) -> bool:
        """Begin nothing new, and wait until all handlers have ended; for `timeout` at most.

        Return whether they have. What was not begun is handed out again, to the next consumer of
        the group. A handler that is still running goes on; its messages are acknowledged when it
        ends, if the store is open then, else they come again. Closing twice does nothing; where an
        exception ended it on the way (Ctrl-C), the second time goes on. Raises what has stopped
        the consumer before, if anything. In a forked child it does nothing.
        """
        timeout_s = _seconds(timeout)
        if self._core.forked:
            return True
        was_started, self._state = self._state == _STARTED, _CLOSED
        if not was_started:
            return True
        try:
            ended = self._stop(timeout_s)
        except BaseException:
            self._state = _STARTED  # a signal's, say: the next call goes on
            raise
        if self._threads is not None:
            self._threads.failure.check()
        return ended

    def _stop(self, timeout_s: float | None) -> bool:
        ended = True
        self._handling.shut()
        if isinstance(self._core.clock, ManualClock):
            self._core.clock._leave(self)
            self._handling.give_back_all([])
        if self._threads is not None:
            ended = self._threads.stop(timeout_s)
        for subscription in self._subscriptions:
            for task in subscription.waiting():
                subscription.give_back(task)
            subscription.close()
        _broadcasting.get(self.store, set()).discard(self._reads_as)
        return ended

    @property
    def error(self) -> BaseException | None:
        """What has stopped it, for `close` to raise; None while it works."""
        return None if self._threads is None else self._threads.failure.error

    def __enter__(self) -> Consumer:
        """Start; leaving the block closes it and waits for handlers."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Show the group and its topics."""
        topics = ", ".join(each.topic for each in self._subscriptions)
        return f"<Consumer {self.group!r} of {topics or 'nothing'}, {self._state}>"

    # --- looking

    def stats(self) -> tuple[ConsumerStats, ...]:
        """Return what it does with each of its topics. O(queues of these topics)."""
        self._core.check_process()
        return read_consumer_stats(
            *(self._core, self._consuming, self._handling, self._subscriptions, self._reads_as)
        )

    # --- dead letters

    def dead_letters(self, limit: int | None = LISTED_MAX) -> list[DeadLetter]:
        """Return what the group gave up; see `TimerStore.dead_letters`."""
        return list_dead_letters(self._consuming, self.group, limit)

    def redrive(self, limit: int | None = None, *, ids: Collection[str] | None = None) -> int:
        """Put the group's dead letters back; see `TimerStore.redrive`.

        May be called before `start` too.
        """
        return redrive(self._consuming, self.group, limit, ids)

    def drop_dead_letters(
        self, limit: int | None = None, *, ids: Collection[str] | None = None
    ) -> int:
        """Give the group's dead letters up for good; see `TimerStore.drop_dead_letters`."""
        return drop(self._consuming, self.group, limit, ids)


def _seconds(timeout: timedelta | None) -> float | None:
    """Return how long to wait for handlers, None for ever, or refuse it."""
    if timeout is None:
        return None
    return check_duration(timeout, "timeout").total_seconds()


_broadcasting: weakref.WeakKeyDictionary[AnyStore, set[str]] = weakref.WeakKeyDictionary()
