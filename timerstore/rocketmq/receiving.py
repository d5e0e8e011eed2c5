"""Receiving: the messages of one topic for one group.

A broker hides what it hands out from the others of a group, for 10 s at least; then it hands it out
again. It waits for messages for 5 s at least, and a call cannot be broken off: so a call is begun
in the background, and whoever asks next gets what came meanwhile. A topic may have queues at
several brokers; a call asks one of them, so there is a call for each.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from timerstore.errors import ClusterError, StoreClosedError, TimerStoreError
from timerstore.ground.arguments import whole_ms
from timerstore.rocketmq.library import asked, check_route, load, refused, translated

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
        self, config: Any, group: str, topic: str, tags: str, timeout_s: float, *, tls: bool
    ) -> None:
        """Make a consumer of the client known to the proxy. `timeout_s`: of an answer."""
        library = load()
        self.group, self.topic = group, topic
        self._timeout_s = timeout_s
        self._consumer = asked(
            f"reading {topic}",
            lambda: library.SimpleConsumer(
                config, group, {topic: library.FilterExpression(tags)}, POLL_S, tls_enable=tls
            ),
        )
        asked(f"reading {topic}", self._consumer.startup)
        self._lock = threading.Lock()
        self._begun: dict[str, Future[Any]] = {}
        self._came: list[Any] = []
        self._answers: Counter[str] = Counter()
        self._brokers: dict[str, Any] = {}  # the queue of each
        self._closed = False
        self._known_by_s = time.monotonic() + _KNOWN_WITHIN_S

    # --- receiving

    def begin(
        self, count_max: int, hide_s: int, is_asked: Callable[[str], bool] = lambda broker: True
    ) -> list[Future[Any]]:
        """Return the calls that are under way; begin one of each broker that has none.

        `is_asked`: whether to begin one of a broker. Begins none if messages are left.
        """
        what = f"reading {self.topic}"
        with self._lock:
            if self._closed:
                raise StoreClosedError("This client was closed. Connect again.")
            if self._came:
                return []
            self._brokers = queues = {
                each.message_queue0().broker.name: each
                for each in check_route(what, self._consumer, self.topic).message_queues
                if each.is_readable() and each.is_master_broker()
            }
            for broker, queue in queues.items():
                if broker not in self._begun and is_asked(broker):
                    self._begun[broker] = asked(
                        what, partial(self._call, queue, min(count_max, RECEIVED_MAX), hide_s)
                    )
            return list(self._begun.values())

    def _call(self, queue: Any, count_max: int, hide_s: int) -> Future[Any]:
        """Ask a queue's broker; the client itself would choose one, and ask no other meanwhile."""
        consumer = self._consumer
        request = consumer._receive_req(self.topic, queue, count_max, False, hide_s, POLL_S)
        begun: Future[Any] = consumer._receive_async(
            queue, request, self._timeout_s + POLL_S, Future()
        )
        return begun

    def take(self, count_max: int) -> Came:
        """Return what has come, unless another thread took it."""
        answered: set[str] = set()
        errors: dict[str, TimerStoreError] = {}
        is_early = False
        with self._lock:
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
            loop = self._consumer._rpc_channel_io_loop()  # a stream is made in no other thread
            endpoints = self._brokers[broker].endpoints
            loop.call_soon_threadsafe(self._consumer.on_new_endpoints, endpoints)

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
            with self._lock:
                has_asked_all = all(self._answers[each] > before[each] for each in self._brokers)
            if has_asked_all and time.monotonic() >= until_s:
                return []

    @property
    def _answer_s(self) -> float:
        """The time after which an answer does not come any more."""
        return POLL_S + self._timeout_s + 1.0

    # --- what becomes of a message

    def ack(self, messages: Sequence[Any]) -> list[TimerStoreError]:
        """Acknowledge messages in one call each broker; return the errors of those it refused."""
        from rocketmq.grpc_protocol import AckMessageEntry, AckMessageRequest, Code

        errors: list[TimerStoreError] = []
        left = list(messages)
        while left:
            endpoints = left[0].endpoints
            some = [each for each in left if each.endpoints == endpoints]
            left = [each for each in left if each.endpoints != endpoints]
            request = AckMessageRequest()
            request.group.name, request.topic.name = self.group, self.topic
            for each in some:
                handle, id = each.receipt_handle, each.message_id
                request.entries.append(AckMessageEntry(message_id=id, receipt_handle=handle))
            answer = self._asked("acknowledging", "ack_message_async", endpoints, request)
            for entry in answer.entries:
                if entry.status.code != Code.OK:
                    errors.append(refused(f"acknowledging {entry.message_id}", entry.status))
            if not answer.entries and answer.status.code != Code.OK:
                errors.append(refused("acknowledging", answer.status))
        return errors

    def hide(self, message: Any, length_s: int) -> None:
        """Have a message come again after so many seconds."""
        self._check_open()
        asked(
            f"sending {message.message_id} back",
            lambda: self._consumer.change_invisible_duration(message, length_s),
        )

    def bury(self, message: Any) -> None:
        """Move a message to the dead letters of its group."""
        from rocketmq.grpc_protocol import Code, ForwardMessageToDeadLetterQueueRequest

        request = ForwardMessageToDeadLetterQueueRequest()
        request.group.name, request.topic.name = self.group, self.topic
        request.receipt_handle, request.message_id = message.receipt_handle, message.message_id
        request.delivery_attempt = message.delivery_attempt
        request.max_delivery_attempts = 1
        name = "forward_message_to_dead_letter_queue_async"
        answer = self._asked("giving up", name, message.endpoints, request)
        if answer.status.code != Code.OK:
            raise refused(f"giving up {message.message_id}", answer.status)

    def _asked(self, what: str, name: str, endpoints: Any, request: Any) -> Any:
        """Return the answer of a call that the client's consumer does not offer."""
        self._check_open()
        consumer = self._consumer

        def call() -> Any:
            made = getattr(consumer.rpc_client, name)
            given = {"metadata": consumer.sign(), "timeout": self._timeout_s}
            return made(endpoints, request, **given).result(self._timeout_s + 1.0)

        return asked(f"{what} messages of {self.topic}", call)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("This client was closed. Connect again.")

    # --- the end

    def close(self) -> None:
        """Let others have what comes to calls that are under way, then end."""
        with self._lock:
            if self._closed:
                return
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
