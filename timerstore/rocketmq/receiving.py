"""Receiving: the messages of one topic for one group.

A broker hides what it hands out from the others of a group, for 10 s at least; then it hands it out
again. It waits for messages for 5 s at least, and a call cannot be broken off: so a call is begun
in the background, and whoever asks next gets what came meanwhile. A topic may have queues at
several brokers; a call asks one of them, so there is a call for each.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from datetime import timedelta
from typing import Any, Final, NamedTuple

from timerstore.errors import ClusterError, StoreClosedError, TimerStoreError
from timerstore.jit.guards import Lock
from timerstore.rocketmq.library import (
    acknowledge,
    asked,
    begin_receiving,
    bury,
    check_route,
    readable_queues,
    refused,
    tell_again,
    translated,
)
from timerstore.values.instants import whole_ms

log = logging.getLogger("timerstore")

POLL_S: Final = 5
"""A proxy waits for messages so long, at least."""
HIDDEN_S_MIN: Final = 10
HIDDEN_S_MAX: Final = 12 * 3_600
"""A proxy hides messages for so long, at least and at most."""
RECEIVED_MAX: Final = 1_024
_NOT_KNOWN_YET: Final = "settings"
_KNOWN_WITHIN_S: Final = 10.0
_AGAIN_S: Final = 0.1


def hidden_s(length: timedelta) -> int:
    """Return for how many whole seconds a message is hidden."""
    return math.ceil(whole_ms(length) / 1_000)


class Came(NamedTuple):
    """What came. `answered`, `errors`: the brokers whose calls ended well, or not."""

    messages: list[Any]
    answered: set[str]
    errors: dict[str, TimerStoreError]


class Reader:
    """Receives; any thread may use it."""

    def __init__(
        self,
        config: Any,
        group: str,
        topic: str,
        tags: str,
        timeout_s: float,
        poll_s: int,
        *,
        tls: bool,
    ) -> None:
        """Make a consumer of the client known to the proxy.

        `timeout_s`: of an answer; `poll_s`: how long the proxy waits for messages first.
        """
        import rocketmq as library  # a cluster has checked it

        self.group, self.topic = group, topic
        self._timeout_s, self._poll_s = timeout_s, poll_s
        self._expression = library.FilterExpression(tags)
        self._consumer = asked(
            f"reading {topic}",
            lambda: library.SimpleConsumer(
                config, group, {topic: self._expression}, poll_s, tls_enable=tls
            ),
        )
        asked(f"reading {topic}", self._consumer.startup)
        self._lock = Lock()
        self._begun: dict[str, Future[Any]] = {}
        self._came: list[Any] = []
        self._answers: Counter[str] = Counter()
        self._brokers: dict[str, Any] = {}  # a queue of each
        self._closing = self._closed = False
        self._known_by_s = time.monotonic() + _KNOWN_WITHIN_S

    # --- receiving

    def begin(
        self, count_max: int, hide_s: int, is_asked: Callable[[str], bool] = lambda broker: True
    ) -> list[Future[Any]]:
        """Return the calls that are under way; begin one of each broker that has none.

        `is_asked`: whether to begin one of a broker. Begins none if messages are left.
        """
        what = f"reading {self.topic}"
        with self._lock.guard():
            if self._closing:
                raise StoreClosedError("This client was closed. Connect again.")
            if self._came:
                return []
            self._brokers = readable_queues(check_route(what, self._consumer, self.topic))
            for broker, queue in self._brokers.items():
                if broker not in self._begun and is_asked(broker):
                    self._begun[broker] = begin_receiving(
                        self._consumer,
                        self.group,
                        self._expression,
                        queue,
                        count_max=min(count_max, RECEIVED_MAX),
                        hide_s=hide_s,
                        poll_s=self._poll_s,
                        timeout_s=self._timeout_s + self._poll_s,
                    )
            return list(self._begun.values())

    def take(self, count_max: int) -> Came:
        """Return what has come, unless another thread took it."""
        answered: set[str] = set()
        errors: dict[str, TimerStoreError] = {}
        is_early = False
        with self._lock.guard():
            for broker, call in list(self._begun.items()):
                if not call.done():
                    continue
                del self._begun[broker]
                error = call.exception()
                if error is None:
                    self._known_by_s = 0.0
                    answered.add(broker)
                    self._came += call.result() or []
                elif _NOT_KNOWN_YET in str(error) and time.monotonic() < self._known_by_s:
                    is_early = True  # its first calls, until the proxy has heard of it
                else:
                    if _NOT_KNOWN_YET in str(error):
                        self._tell(broker)
                    errors[broker] = translated(f"reading {self.topic} from {broker}", error)
            self._answers.update(answered)
            messages, self._came = self._came[:count_max], self._came[count_max:]
        if is_early and not messages:
            time.sleep(_AGAIN_S)
        return Came(messages, answered, errors)

    def _tell(self, broker: str) -> None:
        """Make the client known again to a proxy that has started anew.

        The client itself looks each five minutes whether it has to, and then does so five later.
        """
        self._known_by_s = time.monotonic() + _KNOWN_WITHIN_S
        if broker in self._brokers:
            tell_again(self._consumer, self._brokers[broker].endpoints)

    def receive(self, count_max: int, hide_s: int, timeout_s: float | None) -> list[Any]:
        """Return messages, or an empty list once each broker has answered after `timeout_s`."""
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        before = self._answers.copy()
        while True:
            calls = self.begin(count_max, hide_s)
            if calls and not wait(calls, self._answer_s, FIRST_COMPLETED).done:
                raise ClusterError(
                    f"reading {self.topic}: no answer within {self._answer_s:.0f} s. Look at the "
                    "proxy and its broker, then try again."
                )
            came = self.take(count_max)
            if came.messages:
                return came.messages
            for error in came.errors.values():
                raise error
            with self._lock.guard():
                has_asked_all = all(self._answers[each] > before[each] for each in self._brokers)
            if has_asked_all and time.monotonic() >= until_s:
                return []

    @property
    def _answer_s(self) -> float:
        """The time after which an answer does not come any more."""
        return self._poll_s + self._timeout_s + 1.0

    # --- what becomes of a message

    def ack(self, messages: Sequence[Any]) -> list[TimerStoreError]:
        """Acknowledge messages in one call each broker; return the errors of those it refused."""
        from rocketmq.grpc_protocol import Code

        errors: list[TimerStoreError] = []
        left = list(messages)
        while left:
            endpoints = left[0].endpoints
            some = [each for each in left if each.endpoints == endpoints]
            left = [each for each in left if each.endpoints != endpoints]
            answer = self._asked("acknowledging", acknowledge, some)
            for entry in answer.entries:
                if entry.status.code != Code.OK:
                    errors.append(refused(f"acknowledging {entry.message_id}", entry.status))
            if not answer.entries and answer.status.code != Code.OK:
                errors.append(refused("acknowledging", answer.status))
        return errors

    def hide(self, message: Any, length_s: int) -> None:
        """Have a message come again after so many seconds."""
        self._check_open()
        handle = message.receipt_handle
        try:
            asked(
                f"sending {message.message_id} back",
                lambda: self._consumer.change_invisible_duration(message, length_s),
            )
        except TimerStoreError:
            message.receipt_handle = handle  # the client has set that of an answer without one
            raise

    def bury(self, message: Any) -> None:
        """Move a message to the dead letters of its group."""
        from rocketmq.grpc_protocol import Code

        answer = self._asked("giving up", bury, message)
        if answer.status.code != Code.OK:
            raise refused(f"giving up {message.message_id}", answer.status)

    def _asked(self, what: str, call: Callable[[Any, str, str, Any], Any], of_what: Any) -> Any:
        """Return the answer of a call that the client's consumer does not offer."""
        self._check_open()
        return asked(
            f"{what} messages of {self.topic}",
            lambda: call(self._consumer, self.group, self.topic, of_what),
        )

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("This client was closed. Connect again.")

    # --- the end

    def stop(self) -> None:
        """Begin no more calls; who waits for messages is told so once those under way end."""
        with self._lock.guard():
            self._closing = True

    def close(self) -> None:
        """Let others have what comes to calls that are under way, then end."""
        with self._lock.guard():
            if self._closed:
                return
            self._closing = True
            begun, self._begun = list(self._begun.values()), {}
            came, self._came = self._came, []
        wait(begun, self._answer_s)
        try:
            for call in begun:
                if call.done() and call.exception() is None:
                    came += call.result() or []
            for each in came:
                self.hide(each, 0)
        except TimerStoreError as e:
            log.debug("%s: what came at the end comes again later: %s", self.topic, e)
        self._closed = True
        try:
            self._consumer.shutdown()
        except Exception as e:
            log.debug("%s: the client's shutdown failed: %s", self.topic, e)
