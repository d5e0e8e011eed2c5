"""Receiving: the messages of one topic for one group, as a program sees them.

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
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from timerstore.calls.consuming.delivery import (
    DEAD,
    DROPPED,
    Delivery,
    Failure,
    HandedOut,
    NextPut,
    Wait,
)
from timerstore.errors import (
    ClusterError,
    InvalidArgumentError,
    StoreClosedError,
    TimerStoreError,
    TooLateError,
)
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
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import NEVER, Message, expires_ms, told_expires_ms
from timerstore.values.config import Config
from timerstore.values.ids import Int64s, parse_id
from timerstore.values.kinds import whole_ms

log = logging.getLogger("timerstore")

POLL_S: Final = 5
"""A proxy waits for messages so long, at least."""
HIDDEN_S_MIN: Final = 10
HIDDEN_S_MAX: Final = 12 * 3_600
"""A proxy hides messages for so long, at least and at most."""
RECEIVED_MAX: Final = 1_024
_NOT_KNOWN_YET: Final = "settings"
_KNOWN_WITHIN_S: Final = 10.0
_EARLY_S: Final = 0.1


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
        answered, errors, is_early = set[str](), dict[str, TimerStoreError](), False
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
            time.sleep(_EARLY_S)
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


# --- what a cluster handed out, as a program sees it


_PAGE: Final = "docs/howto/rocketmq.md says what to do instead."


class NotThere:
    """A name that a delivery of a store has, and one of a cluster does not."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        """Raise AttributeError, so that `hasattr` says no."""
        raise AttributeError(f"A cluster's delivery has no {self._name}: {_PAGE}")


class ClusterDelivery(Delivery):
    """One message that a cluster handed out. If you do not acknowledge it in time, it comes again.

    `id`, `topic`, `body`, `key`, `tag`, `properties`, `due`, `due_ms`, `attempt`, `group`, `ack`
    and `nack` are those of a store. `fired_ms` is when the proxy handed it out, because the client
    does not tell when the broker fired it; so `lateness_ms` has the wait for a consumer in it.
    There is no `ack_and_put`, `queue_id`, `queue_index`, `offset`.

    `ack` returns once the broker knows. It raises TooLateError if the message was hidden for too
    short a time, so that it comes again. `nack(delay)` takes whole seconds, rounded up, up to 12 h;
    the message comes back with the broker's next answer after that, about 5 s later at most.
    """

    __slots__ = ()
    ack_and_put = NotThere()
    ack_and_put_many = NotThere()
    queue_id = NotThere()
    queue_index = NotThere()
    offset = NotThere()


class ClusterRun(HandedOut):
    """Messages that a cluster handed out together.

    What was sent back has a new handle, by which an acknowledgement would end it for good. So it is
    noted, and not acknowledged any more.
    """

    __slots__ = (
        *("_gone", "_reader", "_received"),
        *("bodies", "due_ms", "expires_ms", "fired_ms", "ids", "topic"),
    )
    kind = ClusterDelivery
    bodies: Any
    ids: Any
    topic: str

    def __init__(self, reader: Reader, received: list[Any]) -> None:
        """`received`: messages of the client."""
        self._reader, self._received, self.topic = reader, received, reader.topic
        self._gone: set[int] = set()
        self.bodies = pa.array([each.body for each in received], pa.binary())
        self.ids = pa.array([each.message_id for each in received], pa.string())
        self.due_ms: Int64s = np.array([_due_ms(each) for each in received], np.int64)
        handed_ms = [each.transport_delivery_timestamp or 0 for each in received]
        self.fired_ms: Int64s = np.array(handed_ms, np.int64)
        messages = map(self.message, range(len(received)))
        self.expires_ms = min(map(expires_ms, messages), default=NEVER)

    def unexpired(self, now_ms: int) -> ClusterRun:
        """Return what may be handed out; what has expired is dropped."""
        if self.expires_ms >= now_ms:
            return self
        pairs = enumerate(self._received)
        kept = [each for i, each in pairs if not self.gave_back_expired(i, now_ms)]
        return ClusterRun(self._reader, kept)

    @property
    def reads_as(self) -> str:
        """The group that they were handed out to."""
        return self._reader.group

    @property
    def tags_codes(self) -> Int64s:
        """Not known: the broker has chosen by tags already."""
        return np.zeros(len(self), np.int64)

    @property
    def is_retry(self) -> bool:
        """Whether nobody is to choose by tags any more: the broker has."""
        return True

    def __len__(self) -> int:
        return len(self._received)

    def message(self, i: int) -> Message:
        """Return message `i`, as far as the client tells of it."""
        each = self._received[i]
        properties = {str(name): str(value) for name, value in each.properties.items()}
        properties["UNIQ_KEY"] = each.message_id
        if each.keys:
            properties["KEYS"] = " ".join(sorted(each.keys))
        if each.tag:
            properties["TAGS"] = each.tag
        born_ms, attempt = int(each.born_timestamp or 0), max(0, (each.delivery_attempt or 1) - 1)
        flag = 0 if told_expires_ms(properties) is None else fmt.FLAG_EXPIRES  # clients send none
        return Message(0, 0, self.topic, each.body, properties, 0, born_ms, 0, 0, attempt, flag)

    def ack(self) -> None:
        """Acknowledge all; the broker knows on return."""
        for error in self._ack(list(range(len(self)))):
            raise error

    def settle(self, i: int) -> None:
        """Acknowledge one; the broker knows on return."""
        for error in self._ack([i]):
            raise error

    def _ack(self, places: list[int]) -> list[TimerStoreError]:
        left = [self._received[i] for i in places if i not in self._gone]
        return self._reader.ack(left) if left else []

    def _hide(self, i: int, length_s: int) -> None:
        self._reader.hide(self._received[i], length_s)
        self._gone.add(i)

    def settle_some(self, places: list[int], *, handled: bool = True) -> None:
        """Acknowledge some; what the broker does not take comes again, and the log says so."""
        try:
            errors = self._ack(places)
        except TimerStoreError as e:
            errors = [e]
        for error in errors:
            log.warning("%s: what was handled comes again: %s", self.topic, error)

    def give_back(self, places: Sequence[int]) -> None:
        """Let some be handed out again at once; or later, if the broker does not answer."""
        for i in places:
            try:
                self._hide(i, 0)
            except TimerStoreError as e:
                log.debug("%s: what was not begun comes again later: %s", self.topic, e)
                if isinstance(e, ClusterError):
                    return  # else each of them would wait for an answer

    def give_back_expired(self, i: int) -> None:
        """Acknowledge it: a broker would hand it out again."""
        self.settle_some([i], handled=False)

    def nack(self, i: int, delay: timedelta | None) -> None:
        """Have one come again; the broker knows on return."""
        length_s = 0 if delay is None else max(0, hidden_s(delay))
        if length_s > HIDDEN_S_MAX:
            raise InvalidArgumentError(
                f"delay is {delay}. A cluster hides a message for 12 hours at most: put a new "
                "timer, and acknowledge this message."
            )
        self._hide(i, length_s)

    def send_again(self, i: int, wait: Wait, failure: Failure) -> bool:
        """Have one come again, or be a dead letter; what comes too late for that comes again."""
        try:
            if wait == DEAD:
                self._reader.bury(self._received[i])
                self._gone.add(i)
            elif wait != DROPPED:
                self._hide(i, min(_wait_s(wait), HIDDEN_S_MAX))
        except TooLateError:
            self._gone.add(i)
            return False
        return True

    def ack_and_put(self, i: int, puts: Sequence[NextPut]) -> list[str]:
        """Refuse it: a cluster does not do both or neither."""
        raise InvalidArgumentError(f"A cluster cannot acknowledge and put in one step: {_PAGE}")


def _wait_s(wait: Wait) -> int:
    """Return the seconds of a wait; levels are RocketMQ's own."""
    if isinstance(wait, timedelta):
        return hidden_s(wait)
    levels_ms: list[int] = Config().delay_levels_ms()
    return levels_ms[min(wait, len(levels_ms)) - 1] // 1_000


def _due_ms(message: Any) -> int:
    """Return when a message was due: what the broker says, or its id, or when it was born."""
    if message.delivery_timestamp:
        return int(message.delivery_timestamp)
    parts = parse_id(message.message_id)
    return int(message.born_timestamp or 0) if parts is None else parts.due_ms
