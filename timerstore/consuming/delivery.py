"""A delivery: one message that was handed out, with what can be done about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from timerstore.consuming.ackput import Handed, Put
from timerstore.moments import moment
from timerstore.staying import Stays
from timerstore.timelog.decode import Message, user_properties


class HandedOut(Handed, Protocol):
    """The batch that a delivery is of."""

    _group: Any

    @property
    def ids(self) -> Any:
        """The ids that the puts returned."""

    @property
    def bodies(self) -> Any:
        """The bodies."""

    def message(self, i: int) -> Message:
        """Return message `i` decoded."""

    def _nack(self, i: int, delay: timedelta | None) -> None: ...

    def _ack_and_put(self, i: int, puts: Sequence[Put]) -> list[str]: ...


class Delivery(Stays):
    """One message that was handed out. Acknowledge it, or it comes again after reopening.

    A handler of a `Consumer` gets it and returns; who calls `consume`, or goes through a `Batch`,
    ends it with one of `ack`, `nack`, `ack_and_put`, `ack_and_put_many`.

    >>> id = store.put(b"hello", topic="doc", key="ann")
    >>> for d in store.consume("doc", timeout=0):
    ...     print(d.key, d.body, d.lateness_ms)
    ...     d.ack()
    ann b'hello' 0
    """

    __slots__ = {
        "_batch": None,
        "_i": None,
        "body": "What was put.",
        "due_ms": "When it was due, epoch milliseconds.",
        "fired_ms": "When it was fired into the log, epoch milliseconds.",
    }

    def __init__(self, batch: HandedOut, i: int, body: bytes, due_ms: int, fired_ms: int) -> None:
        """Take what a batch knows of it; made by the store."""
        self._batch, self._i = batch, i
        self.body = body
        """What was put."""
        self.due_ms = due_ms
        """When it was due, epoch milliseconds."""
        self.fired_ms = fired_ms
        """When it was fired into the log, epoch milliseconds."""

    @property
    def id(self) -> str:
        """The id that the put returned; the same over every redelivery."""
        return str(self._batch.ids[self._i].as_py())

    @property
    def topic(self) -> str:
        """The topic it was put to."""
        return self._batch.topic

    @property
    def due(self) -> datetime:
        """When it was due, in UTC."""
        return moment(self.due_ms)

    @property
    def group(self) -> str:
        """The group that it was handed out to."""
        return str(self._batch._group.name)

    @property
    def queue_id(self) -> int:
        """Its topic's queue in which it stands, from 0; once sent back, that of `%RETRY%group`."""
        return self._batch.message(self._i).queue_id

    @property
    def queue_index(self) -> int:
        """Its place in that queue, from 0."""
        return self._batch.message(self._i).queue_index

    @property
    def offset(self) -> int:
        """Where its message begins in the commit log."""
        return self._batch.message(self._i).offset

    @property
    def lateness_ms(self) -> int:
        """How long after its due time it was fired into the log."""
        return self.fired_ms - self.due_ms

    @property
    def key(self) -> str | None:
        """The key given at put."""
        return self._batch.message(self._i).properties.get("KEYS")

    @property
    def tag(self) -> str | None:
        """The tag given at put."""
        return self._batch.message(self._i).properties.get("TAGS")

    @property
    def properties(self) -> dict[str, str]:
        """The user's properties."""
        return user_properties(self._batch.message(self._i).properties)

    @property
    def attempt(self) -> int:
        """How often it was sent back before: 0 at the first time."""
        return self._batch.message(self._i).reconsume_times

    def ack(self) -> None:
        """Acknowledge: it will not come again; durable with the next flush. O(1).

        After StoreClosedError it may come again.
        """
        batch = self._batch
        batch._group.settle(batch, batch._index_of[self._i])

    def nack(self, delay: timedelta | None = None) -> None:
        """Send it back: it comes again after `delay`, at once without one, with the same id.

        On return the retry is as durable as a put.
        """
        self._batch._nack(self._i, delay)

    def ack_and_put(
        self,
        body: bytes,
        *,
        topic: str | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        at_ms: int | None = None,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int | None = None,
        if_absent: bool = False,
    ) -> str:
        """Acknowledge, and put the next timer; return its id. Both happen, or neither.

        Also over a crash or a power cut, whatever the durability: the message does not come again
        if and only if the timer is there. Arguments as for `put`; without a topic: the message's.
        With `if_absent`, where a timer of that topic and key is pending, that one counts.

        Durable like a put. Raises TooLateError where the message was acknowledged or sent back
        before, perhaps because its handler took too long, and what `put` raises. Then nothing was
        put, and it is as open as before.

        >>> d.ack_and_put(b"again tomorrow", delay=timedelta(days=1))  # doctest: +SKIP
        """
        put: Put = {"body": body, "topic": topic, "delay": delay, "at": at, "at_ms": at_ms}
        put |= {"key": key, "tag": tag, "properties": properties, "delay_level": delay_level}
        put |= {"if_absent": if_absent}
        (id,) = self.ack_and_put_many([put])
        return id

    def ack_and_put_many(self, puts: Sequence[Put]) -> list[str]:
        """Acknowledge, and put several timers; return their ids. All of it happens, or nothing.

        `puts`: 1 to 1,023 dicts with what `put` takes, 4 MiB together. See `ack_and_put`.

        >>> d.ack_and_put_many([{"body": b"a"}, {"body": b"b"}])  # doctest: +SKIP
        """
        return self._batch._ack_and_put(self._i, puts)

    def __repr__(self) -> str:
        """Show the id, and how late it is."""
        return f"<Delivery {self.id} of {self.topic!r}, {self.lateness_ms} ms late>"


def body_bytes(deliveries: list[Delivery]) -> int:
    """Return how long their bodies are, as they came; a handler may have put others in place."""
    return sum(each._batch.bodies[each._i].as_buffer().size for each in deliveries)
