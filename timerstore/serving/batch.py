"""A batch that a client pulled; its columns have come, all else is asked of the owner."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from timerstore.arguments import check_body, encode_properties, resolve_due_ms, whole_ms
from timerstore.consuming.ackput import Put, checked
from timerstore.consuming.group import Batch, Delivery, Int64s
from timerstore.control.wire import to_json
from timerstore.errors import InvalidArgumentError
from timerstore.kinds import check_int
from timerstore.serving.link import Link
from timerstore.timelog.decode import Message
from timerstore.timelog.format import MESSAGE_BYTES_MAX

_DESCRIBED_AT_ONCE: Final = 512
"""Messages with properties of 32 KiB each, at most."""


class _Group:
    """What a delivery asks of its group: its name, to be acknowledged."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def settle(self, batch: ClientBatch, place: int) -> None:
        batch.settle([place])


class ClientBatch(Batch):
    """Messages that a client was handed together; see `Batch`.

    What it acknowledges after its owner has ended the next one is told by ids and places.
    """

    __slots__ = (
        *("_due_ms", "_fired_ms", "_link", "_messages", "_name", "_places"),
        *("_session", "_tags"),
    )

    def __init__(
        self, link: Link, topic: str, group: str, name: str | None, table: pa.Table
    ) -> None:
        """Made by a client; `name`: of what it holds at the owner."""
        self._link, self._session, self._name = link, link.session, name
        own_group: Any = _Group(group)
        self.topic, self._count, self._group = topic, table.num_rows, own_group
        table, names = table.combine_chunks(), table.column_names
        self._bodies, self._ids = _one(table, "body"), _one(table, "id")
        self._due_ms: Int64s = table.column("due_ms").to_numpy()
        self._fired_ms: Int64s = table.column("fired_ms").to_numpy()
        self._places: Int64s = table.column("offset").to_numpy()
        self._tags: Int64s | None = None
        if "tags_code" in names:
            self._tags = table.column("tags_code").to_numpy()
        self._messages: list[Message] | None = None
        self._index_of = []

    @property
    def due_ms(self) -> Int64s:
        """When each was due."""
        return self._due_ms

    @property
    def fired_ms(self) -> Int64s:
        """When each was fired into the log."""
        return self._fired_ms

    @property
    def tags_codes(self) -> Int64s:
        """The hashes of their tags, where they were asked for."""
        assert self._tags is not None
        return self._tags

    def __iter__(self) -> Iterator[Delivery]:
        """Yield a `Delivery` for each message."""
        self._index_of = list(range(self._count))
        due, fired = self.due_ms.tolist(), self.fired_ms.tolist()
        bodies = self.bodies.to_pylist()
        return map(Delivery, repeat(self), self._index_of, bodies, due, fired)

    def ack(self) -> None:
        """Acknowledge all messages; durable with the owner's next flush."""
        self.settle(None)

    def settle(self, places: list[int] | None, *, handled: bool = True) -> None:
        """Acknowledge the messages at some places, None for all; they were `handled`, or not."""
        if not self._count or self._ask("ack", places=places, handled=handled):
            return
        chosen = list(range(self._count)) if places is None else places
        given = {
            "topic": self.topic,
            "group": self._group.name,
            "ids": self.ids.take(chosen).to_pylist(),
            "offsets": self._places[chosen].tolist(),
            "handled": handled,
        }
        self._link.ask("ack_known", given)

    def give_back(self, places: list[int]) -> None:
        """Let the messages at some places be pulled again, by whoever asks."""
        self._ask("give_back", places=places)

    def retry(self, i: int, wait: int | timedelta, failure: tuple[str, str]) -> None:
        """Send a message back through a delay level, or after a time; or to the dead letters.

        Where it is not held any more, it comes again anyway.
        """
        delay_ms = whole_ms(wait) if isinstance(wait, timedelta) else None
        level = None if isinstance(wait, timedelta) else wait
        self._ask("retry", place=i, level=level, delay_ms=delay_ms, failure=failure)

    def message(self, i: int) -> Message:
        """Return message `i` with all its properties; they are asked for once for all of them."""
        check_int(i, "i", 0, self._count - 1)
        if self._messages is None:
            told = self._described()
            bodies = self.bodies.to_pylist()
            self._messages = [
                Message(**each | {"body": body}) for each, body in zip(told, bodies, strict=True)
            ]
        return self._messages[i]

    def _described(self) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        for start in range(0, self._count, _DESCRIBED_AT_ONCE):
            stop = min(start + _DESCRIBED_AT_ONCE, self._count)
            part = self._ask("describe", start=start, stop=stop)
            if part is None:  # its owner has ended: they come again, from the next one
                message = dict.fromkeys(Message._fields, 0) | {"topic": self.topic}
                ids = self.ids.to_pylist()
                return [message | {"properties": {"UNIQ_KEY": each}} for each in ids]
            told += part
        return told

    def _nack(self, i: int, delay: timedelta | None) -> None:
        delay_s = None if delay is None else delay.total_seconds()
        self._ask("nack", place=i, delay_s=delay_s)

    def _ack_and_put(self, i: int, puts: Sequence[Put]) -> list[str]:
        said = [_said(each) for each in checked(puts)]
        ids: list[str] = self._ask("ack_and_put", place=i, puts=said)
        return ids

    def _ask(self, name: str, **arguments: Any) -> Any:
        self._link.check_session(self._session)
        try:
            said = to_json({"batch": self._name, **arguments})
            header, _ = self._link.ask(name, said)
        except TypeError as e:
            raise InvalidArgumentError(f"{name}: {e}. See the call of the same name.") from e
        return header["result"]


def _said(put: dict[str, Any]) -> dict[str, Any]:
    """Return a put as it is sent: due when the client's clock says."""
    given = {name: value for name, value in put.items() if value is not None}
    delay, at, at_ms = (given.pop(name, None) for name in ("delay", "at", "at_ms"))
    if "delay_level" not in given:
        given["at_ms"] = resolve_due_ms(time.time_ns() // 1_000_000, delay, at, at_ms, None)
    elif any(each is not None for each in (delay, at, at_ms)):
        raise InvalidArgumentError("delay_level excludes delay, at and at_ms. Pass one of them.")
    given["body"] = check_body(given.get("body"), 0, MESSAGE_BYTES_MAX)
    encode_properties(given.get("key"), given.get("tag"), given.get("properties"))  # it checks them
    return given


def _one(table: pa.Table, name: str) -> Any:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)
