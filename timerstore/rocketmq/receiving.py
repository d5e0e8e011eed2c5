"""Receiving: the messages of one topic for one group.

A broker hides what it hands out from the others of a group, for 10 s at least; then it hands it out
again. It waits for messages for 5 s at least, and a call cannot be broken off: so a call is begun
in the background, and whoever asks next gets what came meanwhile.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, Final

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
        self._begun: Future[Any] | None = None
        self._closed = False
        self._known_by_s = time.monotonic() + _KNOWN_WITHIN_S

    # --- receiving

    def begin(self, count_max: int, hide_s: int) -> Future[Any]:
        """Return the call that is under way; begin one if there is none."""
        with self._lock:
            if self._closed:
                raise StoreClosedError("This client was closed. Connect again.")
            if self._begun is None:
                what = f"reading {self.topic}"
                check_route(what, self._consumer, self.topic)
                self._begun = asked(
                    what,
                    lambda: self._consumer.receive_async(min(count_max, RECEIVED_MAX), hide_s),
                )
            return self._begun

    def take(self, call: Future[Any]) -> list[Any]:
        """Return the messages of a call that has ended, unless another thread took them."""
        with self._lock:
            if self._begun is not call:
                return []
            self._begun = None
        error = call.exception(0)
        if error is None:
            self._known_by_s = 0.0
            return list(call.result() or [])
        if _NOT_KNOWN_YET in str(error) and time.monotonic() < self._known_by_s:
            time.sleep(_AGAIN_S)  # its first calls, until the proxy has heard of it
            return []
        raise translated(f"reading {self.topic}", error)

    def receive(self, count_max: int, hide_s: int, timeout_s: float | None) -> list[Any]:
        """Return messages, or an empty list once a call has ended after `timeout_s`."""
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            call = self.begin(count_max, hide_s)
            if not wait([call], self._answer_s).done:
                raise ClusterError(
                    f"reading {self.topic}: no answer within {self._answer_s:.0f} s. Look at the "
                    "proxy and its broker, then try again."
                )
            messages = self.take(call)
            if messages or (time.monotonic() >= until_s and self._known_by_s == 0.0):
                return messages

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
        """Let others have what comes to a call that is under way, then end."""
        with self._lock:
            if self._closed:
                return
            begun, self._begun = self._begun, None
        if begun is not None:
            wait([begun], self._answer_s)
            try:
                for each in begun.result(0) or []:
                    self.hide(each, 0)
            except Exception as e:
                log.debug("%s: what came at the end comes again later: %s", self.topic, e)
        self._closed = True
        try:
            self._consumer.shutdown()
        except Exception as e:
            log.debug("%s: the client's shutdown failed: %s", self.topic, e)
