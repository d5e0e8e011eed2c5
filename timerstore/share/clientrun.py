"""A run that a client pulled; its columns have come, all else is asked of the owner."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from operator import is_not
from typing import Any, Final

import numpy as np
import pyarrow as pa

from timerstore.calls.consuming.delivery import Failure, HandedOut, NextPut, Wait, checked
from timerstore.errors import StoreClosedError
from timerstore.share.link import Link
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import NEVER, Message
from timerstore.values.check_arguments import (
    check_alone,
    check_body,
    check_topic,
    resolve_due_ms,
)
from timerstore.values.ids import Int64s
from timerstore.values.kinds import check_int, whole_ms
from timerstore.values.puts import Debounce, Put, resolve_expires_ms
from timerstore.values.times import now_ms

_DESCRIBED_AT_ONCE: Final = 512
"""Messages with properties of 32 KiB each, at most."""


class ClientRun(HandedOut):
    """Messages that a client was handed together.

    After its owner has ended, the next one is told by ids and offsets which ones are meant.
    """

    __slots__ = (
        *("_link", "_messages", "_name", "_offsets", "_sent", "_session", "expires_ms"),
        *("bodies", "due_ms", "fired_ms", "ids", "is_retry", "reads_as", "tags_codes", "topic"),
    )

    bodies: Any
    ids: Any
    topic: str
    is_retry: bool
    reads_as: str

    def __init__(self, link: Link, group: str, table: pa.Table, told: dict[str, Any]) -> None:
        """Made by a client; `told`: what the owner says of it, which holds it as `batch`."""
        self._link, self._session, self._name = link, link.session, told["batch"]
        self.expires_ms = told.get("expires_ms", NEVER)
        self.topic, self.reads_as, self.is_retry = told["topic"], group, told["retry"]
        table, names = table.combine_chunks(), table.column_names
        self.bodies, self.ids = _one(table, "body"), _one(table, "id")
        self.due_ms: Int64s = _numbers(table, "due_ms")
        self.fired_ms: Int64s = _numbers(table, "fired_ms")
        self._offsets: Int64s = _numbers(table, "offset")
        if "tags_code" in names:  # if they were asked for
            self.tags_codes: Int64s = _numbers(table, "tags_code")
        self._messages: list[Message] | None = None
        self._sent: set[int] = set()

    def __len__(self) -> int:
        return len(self.due_ms)

    def ack(self) -> None:
        """Acknowledge all; durable with the owner's next flush."""
        self._settle(None)

    def settle_some(self, places: list[int], *, handled: bool = True) -> None:
        """Acknowledge some, except what was sent again, which the owner has handled."""
        left = [i for i in places if i not in self._sent]
        if left:
            self._settle(left, handled=handled)

    def _settle(self, places: list[int] | None, *, handled: bool = True) -> None:
        count = len(self)
        if count and not self._ask("ack", places=places, handled=handled):
            chosen = list(range(count)) if places is None else places
            self._ask_known("ack_known", chosen, handled=handled)

    def give_back(self, places: Sequence[int]) -> None:
        """Let some be handed out again, to any consumer of the group.

        An owner that is lost has taken everything back: nobody is waited for.
        """
        self._link.check_session(self._session)
        given = {"batch": self._name, "places": list(places)}
        with suppress(StoreClosedError):
            self._link.ask("give_back", given, waits=False)

    def nack(self, i: int, delay: timedelta | None) -> None:
        """Send one back, durably, which acknowledges it."""
        self._ask("nack", place=i, delay_s=None if delay is None else delay.total_seconds())

    def send_again(self, i: int, wait: Wait, failure: Failure) -> bool:
        """Send one back, or to the dead letters; False if the next owner hands it out again.

        If it is not held any more, it comes again anyway.
        """
        delay_ms = whole_ms(wait) if isinstance(wait, timedelta) else None
        level = None if isinstance(wait, timedelta) else wait
        told, is_sent = (failure.kind, failure.text, failure.was_handled), True
        try:
            self._ask("retry", place=i, level=level, delay_ms=delay_ms, failure=told)
        except StoreClosedError:
            is_sent = False
        self._sent.add(i)
        return is_sent

    def ack_and_put(self, i: int, puts: Sequence[NextPut]) -> list[str]:
        """Acknowledge one, and put; return the ids. See `Delivery.ack_and_put_many`."""
        given = checked(puts, self.topic)
        bodies = [check_body(each.body, 0, fmt.MESSAGE_BYTES_MAX) for each in given]
        said = [said_of(each) | {"body": body} for each, body in zip(given, bodies, strict=True)]
        ids: list[str] = self._ask("ack_and_put", place=i, puts=said)
        return ids

    def message(self, i: int) -> Message:
        """Return message `i` with all its properties; they are asked for once for all of them."""
        check_int(i, "i", 0, len(self) - 1)
        if self._messages is None:
            told = self._described()
            bodies = self.bodies.to_pylist()
            self._messages = [
                Message(**each | {"body": body}) for each, body in zip(told, bodies, strict=True)
            ]
        return self._messages[i]

    def _described(self) -> list[dict[str, Any]]:
        """Return the messages without their bodies; StoreClosedError if nobody knows them."""
        told: list[dict[str, Any]] = []
        for start in range(0, len(self), _DESCRIBED_AT_ONCE):
            stop = min(start + _DESCRIBED_AT_ONCE, len(self))
            part = self._ask("describe", start=start, stop=stop)
            if part is None:
                part = self._ask_known("describe_known", list(range(start, stop)))
            if part is None:
                raise StoreClosedError(
                    f"The process that handed out these messages of {self.topic!r} has ended, and "
                    "one of them is not in the log any more. All that are come again."
                )
            told += part
        return told

    def _ask(self, name: str, **arguments: Any) -> Any:
        self._link.check_session(self._session)
        return self._link.ask(name, {"batch": self._name, **arguments})[0]["result"]

    def _ask_known(self, name: str, places: list[int], **more: Any) -> Any:
        """Ask an owner that did not hand them out, by what it finds in the log."""
        given = {
            "topic": self.topic,
            "group": self.reads_as,
            "ids": self.ids.take(places).to_pylist(),
            "offsets": self._offsets[places].tolist(),
        }
        return self._link.ask(name, given | more)[0]["result"]


_REST_AT: Final = Put._fields.index("at_ms") + 1
"""The places in a put of its arguments besides body, topic and time."""
_LEFT_OUT: Final = tuple(Put._field_defaults.values())[_REST_AT - 1 :]
"""What that is if left out."""


def said_of(put: Put) -> dict[str, Any]:
    """Return a put as it is sent, without its body: due when the client's clock says."""
    check_topic(put.topic)
    said: dict[str, Any] = {"topic": put.topic}
    if isinstance(put.replace, Debounce):  # the owner counts from when it puts
        said["debounce"] = put.replace.wait.total_seconds()
        if put.replace.at_most is not None:
            said["at_most"] = put.replace.at_most.total_seconds()
        put = put._replace(replace=False)
    elif put.delay_level is None:
        said["at_ms"] = resolve_due_ms(now_ms(), *put.times, None)
    else:
        check_alone(*put.times)
    if put.expires is not None:
        said["expires_ms"] = resolve_expires_ms(put.expires, now_ms(), None)
        put = put._replace(expires=None)
    if any(map(is_not, put[_REST_AT:], _LEFT_OUT)):
        put.described()  # it checks them
        if put.properties is not None:  # any mapping, which JSON cannot say
            put = put._replace(properties=dict(put.properties))
        named = zip(Put._fields[_REST_AT:], put[_REST_AT:], _LEFT_OUT, strict=True)
        said |= {name: value for name, value, left_out in named if value is not left_out}
    return said


def _one(table: pa.Table, name: str) -> Any:
    """Return a column in one piece; `combine_chunks` and `to_numpy` of some would import pandas."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)


def _numbers(table: pa.Table, name: str) -> Any:
    return np.from_dlpack(_one(table, name))
