"""Sending: one message, or many that are under way at the same time.

The id of a message is made before it is sent. So if no answer comes, its caller knows which timer
may be there all the same, and can cancel it.
"""

from __future__ import annotations

import base64
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from timerstore.errors import ClusterError, InvalidArgumentError, TimerStoreError, UnknownTimerError
from timerstore.rocketmq.library import (
    asked,
    check_route,
    message_kind,
    route_of,
    takes_type,
    translated,
)
from timerstore.timelog.bytes import format as fmt
from timerstore.values.check_arguments import check_topic
from timerstore.values.ids import TimerId, format_id, parse_id

UNDER_WAY: Final = 64
"""So many of `put_many` wait for their answers at once; more made it no faster."""
_ATTEMPTS: Final = 4
"""The client tries three times; then it should have answered."""


class Sending(NamedTuple):
    """What is sent, as a message without a time if `due_s` is None; then it is due at once."""

    id: str
    topic: str
    body: bytes
    due_s: int | None
    key: str | None = None
    tag: str | None = None
    properties: dict[str, str] = {}  # noqa: RUF012 - nobody changes it


def check_cluster_topic(topic: str, what: str = "topic") -> str:
    """Return the name of a topic or group, or refuse one that gRPC clients may not use."""
    check_topic(topic, what)
    if "|" in topic:
        raise InvalidArgumentError(
            f"{what} is {topic!r}. A cluster's clients take no |: rename it."
        )
    return topic


def check_key_and_tag(key: str | None, tag: str | None) -> None:
    """Refuse what a cluster would hand out changed."""
    if key is not None and key.split() != [key]:
        raise InvalidArgumentError(
            f"key is {key!r}. A cluster takes a key apart at each blank: pass one without."
        )
    if tag is not None and ("|" in tag or not tag.strip()):
        raise InvalidArgumentError(f"tag is {tag!r}. Pass one without | that is not blank.")


def check_properties(properties: dict[str, str]) -> None:
    """Refuse blank names and values, which the client does not send."""
    for name, value in properties.items():
        if not name.strip() or not value.strip():
            raise InvalidArgumentError(
                f"property {name!r} is {value!r}. A cluster takes none that is blank: leave it out."
            )


class Sender:
    """Sends through one producer; any thread may use it."""

    def __init__(self, producer: Any, timeout_s: float) -> None:
        """Send nothing yet. `timeout_s`: how long one attempt of the client may take."""
        self._producer, self._kind = producer, message_kind()
        self._wait_s = _ATTEMPTS * timeout_s

    def why_not(self, topic: str) -> str:
        """Return why a topic takes no timers, or nothing."""
        route = route_of(f"asking for {topic}", self._producer, topic)
        if route is None:
            return "the cluster has no such topic"
        if not takes_type(route, "DELAY"):
            return "its topic is for other messages: set its message.type to DELAY or MIXED"
        return ""

    def send(self, sending: Sending) -> None:
        """Send one message; on return its broker has it."""
        what = f"putting {sending.id}"
        check_route(what, self._producer, sending.topic)
        try:
            asked(what, lambda: self._producer.send(self._message(sending)))
        except ClusterError as e:
            e.unsure = () if e.busy else (sending.id,)
            raise

    def send_many(self, sendings: Iterable[Sending]) -> Iterator[tuple[Sending, Any]]:
        """Yield each message in its order, with None if its broker has it, or the error.

        Up to 64 are under way at once. After an error nothing more is sent: what was under way is
        yielded, then it ends.
        """
        waiting: deque[tuple[Sending, Future[Any]]] = deque()
        failed = False
        left = iter(sendings)
        while True:
            while not failed and len(waiting) < UNDER_WAY:
                sending = next(left, None)
                if sending is None:
                    break
                begun = self._begin(sending)
                failed = begun.done() and begun.exception() is not None
                waiting.append((sending, begun))
            if not waiting:
                return
            sending, future = waiting.popleft()
            error = _error_of(sending, future, self._wait_s)
            failed |= error is not None
            yield sending, error

    def _begin(self, sending: Sending) -> Future[Any]:
        try:
            check_route(f"putting {sending.id}", self._producer, sending.topic)
            begun: Future[Any] = self._producer.send_async(self._message(sending))
        except Exception as e:
            begun = Future()
            begun.set_exception(e)
        return begun

    def _message(self, sending: Sending) -> Any:
        message = self._kind(sending.id)
        message.topic, message.body = sending.topic, sending.body
        if sending.due_s is not None:
            message.delivery_timestamp = sending.due_s
        if sending.key is not None:
            message.keys = sending.key
        if sending.tag is not None:
            message.tag = sending.tag
        for name, value in sending.properties.items():
            message.add_property(name, value)
        return message


def _error_of(sending: Sending, future: Future[Any], wait_s: float) -> TimerStoreError | None:
    error: BaseException | None
    try:
        error = future.exception(wait_s)
    except TimeoutError as e:
        error = e
    if error is None or isinstance(error, TimerStoreError):  # the latter: it was not sent
        return error
    ours = translated(f"putting {sending.id}", error)
    if isinstance(ours, ClusterError) and not ours.busy:
        ours.unsure = (sending.id,)
    return ours


# --- ids of timers, with the handles by which a broker recalls them
#
# An id has the form of a store's ids (`timerstore/values/ids.py`): 32 hex digits, the first twelve
# of which are the due time. It is the message's `UNIQ_KEY`, so it is the same before and after a
# move. A client makes its own ids: it sets a bit of the offset that no log is long enough to reach,
# and the other bits are random.
#
# A broker finds a timer by `UNIQ_KEY` in the slot that the handle's timestamp leads to. It puts a
# timer that is due at the beginning of a slot into the slot before; a store puts it into the slot
# that begins then. So there are two timestamps for an id that a store gave: a store that was handed
# over has the timer where the first leads to, one that was moved where the second does. A recall
# that meets nothing does nothing.


_MADE_HERE: Final = 1 << 46
_SECOND_MS: Final = 1_000


def whole_seconds_ms(due_ms: int) -> int:
    """Return the first whole second at or after a time.

    >>> whole_seconds_ms(1_001), whole_seconds_ms(2_000)
    (2000, 2000)
    """
    return -(-due_ms // _SECOND_MS) * _SECOND_MS


def new_id(due_ms: int) -> str:
    """Return an id that nobody else makes: 78 of its bits are random."""
    offset = _MADE_HERE | int.from_bytes(os.urandom(6), "big") >> 2
    return format_id(due_ms, offset, int.from_bytes(os.urandom(4), "big"))


def known_id(id: str) -> TimerId:
    """Return the parts of an id, or refuse what no broker can recall."""
    parts = parse_id(id)
    if parts is None:
        raise UnknownTimerError(f"{id!r} is no id. Pass one that put returned.")
    if parts.offset & fmt.LEVEL_MARK:
        raise UnknownTimerError(
            f"{id} was put with a delay level, and a broker cannot recall that. Let it come."
        )
    return parts


def handles_of(topic: str, broker: str, id: TimerId) -> list[str]:
    """Return the handles by which a broker may know a timer."""
    due_ms = id.due_ms
    times_ms = [whole_seconds_ms(due_ms) - 1]
    if not id.offset & _MADE_HERE:
        times_ms.append(due_ms + 1)
    key = format_id(*id)
    texts = [f"v1 {topic} {broker} {time_ms} {key}" for time_ms in times_ms]
    return [base64.urlsafe_b64encode(text.encode()).decode() for text in texts]
