"""What was handed out, as a program sees it: a batch by columns, a delivery for each message."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, repeat
from operator import attrgetter
from typing import Any, ClassVar, Final, TypeVar, Unpack

import numpy as np
import pyarrow as pa

from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import NEVER, Message, expires_ms, told_ms, user_properties
from timerstore.timelog.writing.compose import PUTS_MAX
from timerstore.timelog.writing.frame import encode_property
from timerstore.values.amounts import Moment, shown_time
from timerstore.values.check_arguments import given_delay
from timerstore.values.ids import Int64s, Moments
from timerstore.values.kinds import Duration
from timerstore.values.no_pickle import Stays
from timerstore.values.puts import Put, Timing, given_expires

# --- what both ends of a served store go by when messages are consumed
#
# A client imports this file and none of the engine.


CONSUME_COUNT: Final = 512
CONSUME_BYTES: Final = 8 << 20
"""Messages, and bytes of them, that an iterator takes from its group at once, at least one; it
gives back what it did not yield."""
LISTED_MAX: Final = 1_000
"""Dead letters that are listed if no limit is given."""
WAIT_S: Final = 0.5
"""A client's pull waits so long at the owner; a client that wants to wait longer asks again."""
AGAIN_MS: Final = 5_000
"""A message that could not be sent back, or buried, is looked at again after this."""
DEAD: Final = -1
DROPPED: Final = -2
Wait = int | timedelta
"""What a message that failed waits for: a delay level from 1, or so long; or DEAD, DROPPED."""
EXPIRED: Final = "expired"
"""The type of the error that a dead letter names which nobody failed to handle."""


def dead_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return fmt.DEAD_PREFIX.decode() + group


Item = TypeVar("Item")


def part_of(
    items: Iterator[Item], count_max: int, body_of: Callable[[Any], bytes] = attrgetter("body")
) -> list[Item]:
    """Return the next `count_max` of some items, or fewer: so many bytes of bodies, and one more.

    >>> len(part_of(iter([b"x" * CONSUME_BYTES] * 3), 2, bytes))
    1
    """
    part, bytes_left = list[Item](), CONSUME_BYTES
    for item in islice(items, count_max):
        part.append(item)
        bytes_left -= len(body_of(item))
        if bytes_left <= 0:
            break
    return part


# --- why a message failed: properties that it carries from its first failure to its death
#
# They tell people, nothing is decided by them. If a message has no room left for them, they are
# shortened, or left out: it can be sent back, and die, all the same.


KIND_BYTES_MAX: Final = 128
TEXT_BYTES_MAX: Final = 512
_SHORTENED: Final = "…"
_FIRST_FAILED: Final = fmt.PROPERTY_FIRST_FAILED.decode()
_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}\b")
FAILED: Final = frozenset(
    name.decode()
    for name in (fmt.PROPERTY_FIRST_FAILED, fmt.PROPERTY_ERROR_TYPE, fmt.PROPERTY_ERROR_TEXT)
)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a handler failed with: the exception's class, or `timeout`, `retry`; its text."""

    kind: str = ""
    text: str = ""
    was_handled: bool = True

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return what an exception says, which it may fail to say."""
        kind = type(error)
        name = kind.__qualname__
        if kind.__module__ not in ("builtins", "__main__"):
            name = f"{kind.__module__}.{name}"
        return cls(name, said_by(error, str))


def expired(expires_ms: int, before: Failure | None = None) -> Failure:
    """Return why what expired is a dead letter; `before`: what it failed with."""
    text = f"it was not to be handed out after {shown_time(expires_ms)}"
    if before is None:
        return Failure(EXPIRED, text, was_handled=False)
    return Failure(EXPIRED, f"{text}; {before.kind}: {before.text}")


def said_by(value: object, say: Callable[[Any], str]) -> str:
    """Return what a program's object says of itself; nothing if it fails to say it."""
    try:
        return say(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return ""


def shown_error(error: BaseException | None) -> BaseException | None:
    """Return what a log is to show: a program's formatter fails with what fails to say itself."""
    if error is None or said_by(error, lambda e: f"said: {e}"):
        return error
    stands_for = RuntimeError(f"{type(error).__qualname__}, which fails to say what it is")
    return stands_for.with_traceback(error.__traceback__)


def failed_properties(
    known: Mapping[str, str], now_ms: int, failure: Failure | None, room_bytes: int
) -> bytes:
    """Return what a message that fails now is to carry, in `room_bytes` at most.

    `known`: the properties that it has; `failure`: the reason, if it is given up.
    """
    first_ms = known.get(_FIRST_FAILED) or str(now_ms)
    encoded = encode_property(fmt.PROPERTY_FIRST_FAILED, first_ms.encode())
    if len(encoded) > room_bytes:
        return b""
    for name, value, most in (
        (fmt.PROPERTY_ERROR_TYPE, failure.kind if failure else "", KIND_BYTES_MAX),
        (fmt.PROPERTY_ERROR_TEXT, failure.text if failure else "", TEXT_BYTES_MAX),
    ):
        left = room_bytes - len(encoded) - len(encode_property(name, b""))
        short = shortened(value, min(most, left))
        if short:
            encoded += encode_property(name, short.encode())
    return encoded


def shortened(text: str, bytes_max: int) -> str:
    """Return as much of a text as takes `bytes_max`, without what no property can hold.

    >>> shortened("no such host", 8)
    'no su…'
    """
    data = text.replace("\x01", " ").replace("\x02", " ").strip().encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return data.decode()
    kept = bytes_max - len(_SHORTENED.encode())
    return "" if kept <= 0 else data[:kept].decode("utf-8", "ignore") + _SHORTENED


def first_failed_ms(properties: Mapping[str, str]) -> int | None:
    """Return when a message failed first, if it says so."""
    return told_ms(properties, fmt.PROPERTY_FIRST_FAILED)


def error_of(properties: Mapping[str, str]) -> tuple[str, str]:
    """Return the type and the text of the error that a message died of."""
    names = fmt.PROPERTY_ERROR_TYPE.decode(), fmt.PROPERTY_ERROR_TEXT.decode()
    return properties.get(names[0], ""), properties.get(names[1], "")


def trace_id(properties: Mapping[str, str]) -> str | None:
    """Return the trace that a message was put in, by its `traceparent` (`timerstore.otel`)."""
    found = _TRACE_PARENT.match(properties.get("traceparent", ""))
    return None if found is None else found[1]


# --- a run's columns


ID_BYTES_USUAL: Final = 64
"""Room for an id; ours have 32 digits, a producer's 32 or 56."""
BATCH_BYTES_MAX: Final = 1 << 30
"""Of messages in one batch: Arrow counts a column's bytes in 31 bits."""
_INT64: Final = pa.int64()


def arrow_int64(values: Any) -> Any:
    """Return numbers; `pa.array` would import pandas. No byte is copied of int64[n]."""
    return pa.Array.from_buffers(
        _INT64, len(values), [None, pa.py_buffer(np.ascontiguousarray(values, np.int64))]
    )


# --- what a handler wants put in a message's place


class Following(Timing, total=False):
    """What `put` takes besides the body, by name; without a topic, that of the message."""

    topic: str | None


class NextPut(Following, total=False):
    """The same with the body."""

    body: bytes


NAMES: Final = frozenset(NextPut.__annotations__)
"""What a put may say."""


def checked(puts: Any, own_topic: str) -> list[Put]:
    """Return what is put, without a topic to that of the message; or refuse it."""
    if isinstance(puts, str | bytes | Mapping) or not isinstance(puts, Sequence):
        raise InvalidArgumentError(f"puts is {puts!r}. Pass a list of dicts, each as for put.")
    if not 1 <= len(puts) <= PUTS_MAX:
        raise InvalidArgumentError(f"puts has {len(puts)} timers. Pass 1 to {PUTS_MAX}.")
    for each in puts:
        if not isinstance(each, Mapping) or not set(each) <= NAMES or "body" not in each:
            raise InvalidArgumentError(
                f"puts contains {each!r}. Pass a dict with body, and any of "
                f"{', '.join(sorted(NAMES - {'body'}))}."
            )
    return [_put_of(dict(each), own_topic) for each in puts]


def _put_of(given: dict[str, Any], own_topic: str) -> Put:
    body = given.pop("body")
    delay = given_delay(given.pop("delay", None), given.pop("delay_ms", None))
    until = given_expires(given.pop("expires", None), given.pop("expires_ms", None))
    named = {name: value for name, value in given.items() if value is not None}
    return Put(body, **{"topic": own_topic, **named}, delay=delay, expires=until)


# --- a run as a program sees it: a batch, its messages


class Delivery(Stays):
    """One message that was handed out. If you do not acknowledge it, it comes again.

    A handler of a `Consumer` gets it and returns. If you call `consume`, or go through a `Batch`,
    end it with one of `ack`, `nack`, `ack_and_put`, `ack_and_put_many`.

    >>> id = store.put(b"hello", topic="doc", key="ann")
    >>> for d in store.consume("doc", timeout=0):
    ...     print(d.key, d.body, d.lateness_ms)
    ...     d.ack()
    ann b'hello' 0
    """

    __slots__ = {
        "_handed": None,
        "_i": None,
        "body": "What was put.",
        "due_ms": "When it was due, epoch milliseconds.",
        "fired_ms": "When it was fired into the log, epoch milliseconds.",
    }

    def __init__(self, handed: HandedOut, i: int, body: bytes, due_ms: int, fired_ms: int) -> None:
        """Take what a batch knows of it; made by the store."""
        self._handed, self._i = handed, i
        self.body = body
        """What was put."""
        self.due_ms = due_ms
        """When it was due, epoch milliseconds."""
        self.fired_ms = fired_ms
        """When it was fired into the log, epoch milliseconds."""

    @property
    def id(self) -> str:
        """The id that `put` returned. It is the same each time the message comes."""
        return str(self._handed.ids[self._i].as_py())

    @property
    def topic(self) -> str:
        """The topic it was put to."""
        return self._handed.topic

    due = Moment[datetime]("When it was due, in UTC.")
    fired = Moment[datetime]("When it was fired into the log, in UTC.")

    @property
    def group(self) -> str:
        """The group that it was handed out to."""
        return self._handed.reads_as

    @property
    def queue_id(self) -> int:
        """The queue of its topic that it is in, from 0; of a retry, the queue of `%RETRY%group`."""
        return self._handed.message(self._i).queue_id

    @property
    def queue_index(self) -> int:
        """Its place in that queue, from 0."""
        return self._handed.message(self._i).queue_index

    @property
    def offset(self) -> int:
        """Where its message begins in the commit log."""
        return self._handed.message(self._i).offset

    @property
    def lateness_ms(self) -> int:
        """How long after its due time it was fired into the log."""
        return self.fired_ms - self.due_ms

    @property
    def key(self) -> str | None:
        """The key given at put."""
        return self._handed.message(self._i).properties.get("KEYS")

    @property
    def tag(self) -> str | None:
        """The tag given at put."""
        return self._handed.message(self._i).properties.get("TAGS")

    @property
    def properties(self) -> dict[str, str]:
        """The user's properties."""
        return user_properties(self._handed.message(self._i).properties)

    @property
    def expires_ms(self) -> int | None:
        """After when it is not handed out, epoch milliseconds; None: `put` did not say."""
        ms = expires_ms(self._handed.message(self._i))
        return None if ms == NEVER else ms

    expires = Moment[datetime | None]("After when it is not handed out, in UTC.")

    @property
    def attempt(self) -> int:
        """How often it was sent back before: 0 at the first time."""
        return self._handed.message(self._i).reconsume_times

    def json(self) -> Any:
        """Return what the body says as JSON, such as `put_json` put.

        Raises ValueError if the body is no JSON.
        """
        return json.loads(self.body)

    def ack(self) -> None:
        """Acknowledge the message: it will not come again. Durable with the next flush. O(1).

        If this raises StoreClosedError, the message may come again.
        """
        self._handed.settle(self._i)

    def nack(self, delay: Duration | None = None, *, delay_ms: int | None = None) -> None:
        """Send the message back: it comes again after a delay, or at once, with the same id.

        `delay`: a timedelta, or seconds.

        On return the retry is as durable as a put.
        """
        self._handed.nack(self._i, given_delay(delay, delay_ms))

    def ack_and_put(self, body: bytes, **following: Unpack[Following]) -> str:
        """Acknowledge, and put the next timer; return its id. Both happen, or neither.

        This holds over a crash or a power cut, with each durability. The arguments are those of
        `put` except replace, jitter, debounce and at_most; without a topic, the timer goes to the
        message's topic. With `if_absent`, if a timer of that topic and key is pending, nothing is
        put.

        Durable like a put. Raises TooLateError if the message was acknowledged or sent back before,
        perhaps because its handler took too long, and what `put` raises. Then nothing was put, and
        the message is still open.

        >>> d.ack_and_put(b"again tomorrow", delay=timedelta(days=1))  # doctest: +SKIP
        """
        (id,) = self.ack_and_put_many([NextPut(body=body, **following)])
        return id

    def ack_and_put_many(self, puts: Sequence[NextPut]) -> list[str]:
        """Acknowledge, and put several timers; return their ids. All of it happens or nothing.

        `puts`: 1 to 1,023 dicts with what `put` takes, 4 MiB together. See `ack_and_put`.

        >>> d.ack_and_put_many([{"body": b"a"}, {"body": b"b"}])  # doctest: +SKIP
        """
        return self._handed.ack_and_put(self._i, puts)

    def __repr__(self) -> str:
        return f"<Delivery {self.id} of {self.topic!r}, {self.lateness_ms} ms late>"


class Batch(ABC, Stays):
    """Messages handed out together, by columns.

    `bodies`: an Arrow binary array; `due_ms`, `fired_ms`: int64 arrays; `due`, `fired`: datetime64;
    `ids`: an Arrow string array; all of one length; `topic`: that of all. Iterating gives
    `Delivery` objects.
    """

    __slots__ = ()
    _called = "batch"

    @property
    @abstractmethod
    def topic(self) -> str:
        """The topic of all."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many they are."""

    @property
    @abstractmethod
    def bodies(self) -> Any:
        """The bodies, an Arrow binary array."""

    @property
    @abstractmethod
    def ids(self) -> Any:
        """The ids that the puts returned, an Arrow string array."""

    @property
    @abstractmethod
    def due_ms(self) -> Int64s:
        """When each was due."""

    @property
    def due(self) -> Moments:
        """When each was due, in UTC: a datetime64 array. O(1), the same memory."""
        return self.due_ms.view("datetime64[ms]")

    @property
    def fired(self) -> Moments:
        """When each was fired into the log, in UTC: a datetime64 array. O(1), the same memory."""
        return self.fired_ms.view("datetime64[ms]")

    @property
    @abstractmethod
    def fired_ms(self) -> Int64s:
        """When each was fired into the log."""

    @property
    @abstractmethod
    def tags_codes(self) -> Int64s:
        """The hashes of their tags, as their queue says."""

    @abstractmethod
    def __iter__(self) -> Iterator[Delivery]:
        """Yield a `Delivery` for each."""

    @abstractmethod
    def ack(self) -> None:
        """Acknowledge all messages; durable with the next flush. O(1) for a whole run."""

    def to_arrow(self) -> pa.Table:
        """Return the columns as an Arrow table: id, body, due_ms, fired_ms."""
        times = arrow_int64(self.due_ms), arrow_int64(self.fired_ms)
        columns = [self.ids, self.bodies, *times]
        return pa.table(columns, names=["id", "body", "due_ms", "fired_ms"])

    @abstractmethod
    def message(self, i: int) -> Message:
        """Return message `i` decoded, with all its properties."""


class HandedOut(Batch):
    """A batch, and what becomes of its messages; each of these has a place, from 0."""

    __slots__ = ()
    kind: ClassVar[type[Delivery]] = Delivery
    expires_ms: int = NEVER
    """When the first of them expires, epoch ms."""

    @property
    @abstractmethod
    def reads_as(self) -> str:
        """The group that they were handed out to."""

    @property
    @abstractmethod
    def is_retry(self) -> bool:
        """Whether they were sent back before."""

    def __iter__(self) -> Iterator[Delivery]:
        bodies, due, fired = self.bodies.to_pylist(), self.due_ms.tolist(), self.fired_ms.tolist()
        return map(self.kind, repeat(self), range(len(bodies)), bodies, due, fired)

    def gave_back_expired(self, i: int, now_ms: int) -> bool:
        """Give a message back if it has expired since it was pulled, and tell; False: it comes."""
        if self.expires_ms >= now_ms:
            return False
        is_late = False
        with suppress(TimerStoreError, OSError):  # what cannot be read says nothing
            is_late = expires_ms(self.message(i)) < now_ms
            if is_late:
                self.give_back_expired(i)
        return is_late

    def give_back_expired(self, i: int) -> None:
        """Leave it to the next pull of its group, which settles it by the group's rule."""
        self.give_back([i])

    def each(
        self, now_ms: Callable[[], int], is_over: Callable[[], bool]
    ) -> Generator[Delivery, None, None]:
        """Yield those that have not expired; give back what is left, unless all of it is over."""
        done, may_expire = 0, self.expires_ms != NEVER
        try:
            for delivery in self:
                done += 1
                if not (may_expire and self.gave_back_expired(done - 1, now_ms())):
                    yield delivery
        finally:
            if done < len(self) and not is_over():
                self.give_back(range(done, len(self)))

    def body_bytes(self, places: Sequence[int]) -> int:
        """Return how long bodies are, as they came; a handler may have put others in place."""
        return sum(self.bodies[i].as_buffer().size for i in places)

    def settle(self, i: int) -> None:
        """Acknowledge one."""
        self.settle_some([i])

    @abstractmethod
    def settle_some(self, places: list[int], *, handled: bool = True) -> None:
        """Acknowledge some, which were `handled` or not."""

    @abstractmethod
    def give_back(self, places: Sequence[int]) -> None:
        """Let some be handed out again, to any consumer of the group."""

    @abstractmethod
    def nack(self, i: int, delay: timedelta | None) -> None:
        """Send one back, durably, which acknowledges it."""

    @abstractmethod
    def send_again(self, i: int, wait: Wait, failure: Failure) -> bool:
        """Send one back, or to the dead letters; tell whether that was done.

        It is durable a while later; then it is to be settled, as not handled.
        """

    @abstractmethod
    def ack_and_put(self, i: int, puts: Sequence[NextPut]) -> list[str]:
        """Acknowledge one, and put; return the ids. See `Delivery.ack_and_put_many`."""
