"""What a cluster handed out, as a program sees it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from timerstore.calls.consuming.constants import DEAD, Wait
from timerstore.calls.consuming.delivery import Delivery, HandedOut
from timerstore.calls.consuming.failures import Failure
from timerstore.calls.consuming.puts import Put
from timerstore.errors import ClusterError, InvalidArgumentError, TimerStoreError, TooLateError
from timerstore.rocketmq.receiving import HIDDEN_S_MAX, Reader, hidden_s
from timerstore.timelog.bytes.decode import Message
from timerstore.values.config import Config
from timerstore.values.ids import Int64s, parse_id

log = logging.getLogger("timerstore")

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

    __slots__ = ("_gone", "_reader", "_received", "bodies", "due_ms", "fired_ms", "ids", "topic")
    kind = ClusterDelivery
    bodies: Any
    ids: Any

    def __init__(self, reader: Reader, received: list[Any]) -> None:
        """`received`: messages of the client."""
        self._reader, self._received, self.topic = reader, received, reader.topic
        self._gone: set[int] = set()
        self.bodies = pa.array([each.body for each in received], pa.binary())
        self.ids = pa.array([each.message_id for each in received], pa.string())
        self.due_ms: Int64s = np.array([_due_ms(each) for each in received], np.int64)
        handed_ms = [each.transport_delivery_timestamp or 0 for each in received]
        self.fired_ms: Int64s = np.array(handed_ms, np.int64)

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
        return Message(0, 0, self.topic, each.body, properties, 0, born_ms, 0, 0, attempt)

    def settle_all(self) -> None:
        """Acknowledge all; the broker knows on return."""
        self._settle(list(range(len(self))))

    def settle(self, i: int) -> None:
        """Acknowledge one; the broker knows on return."""
        self._settle([i])

    def _settle(self, places: list[int]) -> None:
        for error in self._ack(places):
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
            else:
                self._hide(i, min(_wait_s(wait), HIDDEN_S_MAX))
        except TooLateError:
            self._gone.add(i)
            return False
        return True

    def ack_and_put(self, i: int, puts: Sequence[Put]) -> list[str]:
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
