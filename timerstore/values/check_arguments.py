"""Checking what a caller may pass, down to the rows of a put."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from timerstore.errors import InvalidArgumentError
from timerstore.jit.objects import arrow_read, read_objects, rows_read
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.limits import (
    CONTENT_SPARE_BYTES,
    DESCRIPTION_BYTES_MAX,
    GROUP_BYTES_MAX,
)
from timerstore.timelog.files.names import is_topic
from timerstore.timelog.writing.frame import encode_property
from timerstore.values.ids import Int64s
from timerstore.values.kinds import (
    Duration,
    as_array,
    as_int,
    check_duration,
    check_int,
    check_name,
    delays_ms,
    instant_ms,
    instants_ms,
    shown_int,
    units_ms,
    whole_ms,
)

DUE_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999
DUE_MS_MIN: Final = 10**11
"""Smaller numbers are taken for seconds by mistake; as ms they lie before March 1973."""
JITTER_MAX: Final = timedelta(days=36_500)
"""A longer one is a mistake."""
_TOPIC = re.compile(r"[%|A-Za-z0-9_-]+\Z")
_TOPIC_WRONG = re.compile(r"[^%|A-Za-z0-9_-]")
_SYSTEM_TOPICS: Final = frozenset(
    name
    for name in (
        *(fmt.TIMER_TOPIC.decode(), fmt.LEVEL_TOPIC.decode(), "TBW102", "BenchmarkTest"),
        *("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        *("RMQ_SYS_SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "TRANS_CHECK_MAX_TIME_TOPIC"),
    )
)


class Range(NamedTuple):
    """Which pending timers are listed; what is None bounds nothing."""

    topic: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    limit: int | None = None
    key: str | None = None

    def checked(self) -> Range:
        """Return it with Python's own numbers, or refuse it."""
        topic, start_ms, end_ms, limit, _ = self
        if start_ms is not None:
            start_ms = check_due_ms(start_ms, "start_ms")
        if end_ms is not None:  # the latest: what datetime.max is, rounded up
            end_ms = check_due_ms(end_ms, "end_ms", DUE_MS_MAX + 1)
        if limit is not None:
            limit = check_int(limit, "limit", 0, sys.maxsize)
        if topic is not None:
            check_name(topic)
        return self._replace(start_ms=start_ms, end_ms=end_ms, limit=limit)


class ArrowArray(Protocol):
    """An Arrow array, as Arrow itself says what one is; pyarrow brings no types."""

    def __arrow_c_array__(self, requested_schema: Any = None, /) -> Any:
        """Export it."""


class ArrowChunks(Protocol):
    """An Arrow array in several pieces."""

    def __arrow_c_stream__(self, requested_schema: Any = None, /) -> Any:
        """Export them."""


Bodies = Sequence[bytes] | np.ndarray[Any, np.dtype[np.uint8]] | ArrowArray | ArrowChunks
"""What `put_many` takes: a sequence of bytes, an Arrow binary array, or a 2-D array of uint8."""
Keys = Sequence[str] | Bodies
Times = int | Sequence[int] | np.integer[Any] | np.ndarray[Any, np.dtype[np.integer[Any]]]
"""Milliseconds for all of `put_many`, or for each."""
Durations = Duration | Sequence[Duration] | np.ndarray[Any, np.dtype[Any]] | ArrowArray | Any
"""A length of time for all of `put_many`, or one for each."""
Instants = datetime | np.datetime64 | Sequence[datetime] | np.ndarray[Any, np.dtype[Any]] | Any
"""An instant for all of `put_many`, or one for each."""


def check_topic(topic: str, what: str = "topic") -> bytes:
    """Return a topic's bytes, or refuse it."""
    if not isinstance(topic, str) or not _TOPIC.match(topic) or len(topic) > fmt.TOPIC_BYTES_MAX:
        wrong = _TOPIC_WRONG.search(topic) if isinstance(topic, str) else None
        which = "" if wrong is None else f", in which {wrong[0]!r} is not allowed"
        raise InvalidArgumentError(
            f"{what} is {topic!r}{which}. Use 1 to {fmt.TOPIC_BYTES_MAX} of the characters "
            "A-Z a-z 0-9 _ - % |."
        )
    if topic in _SYSTEM_TOPICS or topic.startswith("rmq_sys_"):
        raise InvalidArgumentError(
            f"{what} is {topic!r}, a name that belongs to the system. Use another name."
        )
    return topic.encode()


def check_topic_to_consume(topic: str) -> bytes:
    """Return the bytes of a topic that is consumed, or refuse it: any that a store can hold.

    A broker's topics may have names that cannot be put to. Not those that hold what waits.
    """
    name = check_name(topic)
    if not is_topic(name):
        raise InvalidArgumentError(
            f"topic is {topic!r}. Pass the name of a topic: 1 to {fmt.TOPIC_BYTES_READ_MAX} bytes, "
            "without / and U+0000, not . or .. alone."
        )
    if name in (fmt.TIMER_TOPIC, fmt.LEVEL_TOPIC):
        raise InvalidArgumentError(
            f"topic is {topic!r}, which holds the timers that are not due yet. Read the topics "
            "that they were put to."
        )
    return name


def check_group(group: str, what: str = "group") -> str:
    """Return a group's name, or refuse it."""
    check_topic(group, what)
    if len(group) > GROUP_BYTES_MAX:
        raise InvalidArgumentError(
            f"{what} is {len(group)} characters long. Use {GROUP_BYTES_MAX} at most."
        )
    return group


def check_due_ms(value: object, name: str = "at_ms", most_ms: int = DUE_MS_MAX) -> int:
    """Return a due time, or refuse it."""
    number = as_int(value)
    if number is None:
        raise InvalidArgumentError(f"{name} is {value!r}. Pass whole epoch milliseconds, an int.")
    if number < DUE_MS_MIN:
        raise InvalidArgumentError(
            f"{name} is {shown_int(number)}, which looks like seconds. Pass epoch milliseconds."
        )
    if number > most_ms:
        raise InvalidArgumentError(
            f"{name} is {shown_int(number)}, which is after the year 9999. Pass an earlier time."
        )
    return number


def resolve_due_ms(
    now_ms: int,
    delay: timedelta | None,
    at: datetime | None,
    at_ms: int | None,
    max_delay_ms: int | None,
) -> int:
    """Return the due time that the arguments of a put ask for; fractions of a ms round up."""
    if (delay is not None) + (at is not None) + (at_ms is not None) > 1:
        raise InvalidArgumentError("delay, at and at_ms exclude each other. Pass one of them.")
    due_ms = now_ms
    if delay is not None:
        due_ms = now_ms + whole_ms(check_duration(delay, "delay"))
    elif at is not None:
        due_ms = instant_ms(at, "at")
    elif at_ms is not None:
        due_ms = check_due_ms(at_ms)
    if at_ms is None:
        due_ms = check_due_ms(max(due_ms, DUE_MS_MIN), "the due time")
    if max_delay_ms is not None and due_ms - now_ms > max_delay_ms:
        raise InvalidArgumentError(
            f"The timer is due in {due_ms - now_ms} ms, and max_delay_ms is {max_delay_ms}. Pass "
            "an earlier time, or raise max_delay_ms."
        )
    return due_ms


def given_instant(at: object, at_ms: int | None, name: str) -> int | None:
    """Return a time in epoch ms that was given as a datetime, as `{name}_ms`, or not at all."""
    if at is None:
        return at_ms
    if at_ms is not None:
        raise InvalidArgumentError(f"{name} and {name}_ms exclude each other. Pass one of them.")
    return max(instant_ms(at, name), DUE_MS_MIN)  # nobody takes a datetime for seconds


def given_delay(delay: object, delay_ms: object) -> timedelta | None:
    """Return a delay that was given as a timedelta, in seconds, in ms, or not at all."""
    if delay_ms is None:
        return None if delay is None else check_duration(delay, "delay")
    if delay is not None:
        raise InvalidArgumentError("delay and delay_ms exclude each other. Pass one of them.")
    return timedelta(milliseconds=check_int(delay_ms, "delay_ms", -DUE_MS_MAX, DUE_MS_MAX))


def check_jitter_ms(jitter: object) -> int:
    """Return how much later a timer may be, in whole milliseconds, or refuse it."""
    length = check_duration(jitter, "jitter")
    if not timedelta(0) <= length <= JITTER_MAX:
        raise InvalidArgumentError(
            f"jitter is {jitter!r}. Pass a length of time from 0 to {JITTER_MAX.days:,} days."
        )
    return length // timedelta(milliseconds=1)


def jittered(
    jitter: Duration,
    delay: timedelta | None,
    at: datetime | None,
    at_ms: int | None,
    delay_level: int | None,
) -> tuple[timedelta | None, int | None]:
    """Return the delay, or the time in epoch ms, of a put that is later by what is drawn."""
    refuse_jitter_of_level(delay_level)
    more_ms = random.randint(0, check_jitter_ms(jitter))
    at_ms = given_instant(at, at_ms, "at")
    if at_ms is not None:
        return delay, check_due_ms(at_ms) + more_ms
    before_ms = 0 if delay is None else whole_ms(check_duration(delay, "delay"))
    return given_delay(None, before_ms + more_ms), None


def refuse_jitter_of_level(delay_level: object) -> None:
    """Refuse a jitter beside a delay level."""
    if delay_level is not None:
        raise InvalidArgumentError(
            "jitter and delay_level exclude each other, because messages of a delay level keep "
            "their order. Pass delay, at or at_ms."
        )


def given_times(
    delay: Durations | None, delay_ms: object, at: Instants | None, at_ms: object
) -> tuple[object, object]:
    """Return `delay_ms` and `at_ms` of a `put_many`, whose times may be given in other ways."""
    if sum(each is not None for each in (delay, delay_ms, at, at_ms)) > 1:
        raise InvalidArgumentError(
            "delay, delay_ms, at and at_ms exclude each other. Pass one of them."
        )
    if delay is not None:
        delay_ms = delays_ms(delay, "delay")
    return delay_ms, at_ms if at is None else np.maximum(instants_ms(at, "at"), DUE_MS_MIN)


def check_alone(*times: object) -> None:
    """Refuse a time beside a delay level."""
    if any(each is not None for each in times):
        raise InvalidArgumentError("delay_level excludes delay, at and at_ms. Pass one of them.")


def check_due_array(
    count: int,
    now_ms: int,
    at_ms: object,
    delay_ms: object,
    max_delay_ms: int | None,
    jitter: Duration | None = None,
) -> Int64s:
    """Return an int64 array of due times for `put_many`, each later by its own jitter."""
    if jitter is None:
        return _due_array(count, now_ms, at_ms, delay_ms, max_delay_ms)
    drawn = np.random.default_rng(random.getrandbits(64))
    most_ms = check_jitter_ms(jitter)
    due_ms = _due_array(count, now_ms, at_ms, delay_ms, None)
    due_ms += drawn.integers(0, most_ms, count, endpoint=True)
    return _due_array(count, now_ms, due_ms, None, max_delay_ms)


def _due_array(
    count: int, now_ms: int, at_ms: object, delay_ms: object, max_delay_ms: int | None
) -> Int64s:
    if at_ms is not None and delay_ms is not None:
        raise InvalidArgumentError("at_ms and delay_ms exclude each other. Pass one of them.")
    name, values = ("at_ms", at_ms) if at_ms is not None else ("delay_ms", delay_ms)
    if values is None:
        return np.full(count, now_ms, np.int64)
    array = as_array(values, name)
    if array.dtype.kind == ("M" if name == "at_ms" else "m"):
        array = units_ms(array, name)
    if not array.size:
        array = array.astype(np.int64)  # NumPy takes an empty list for floats
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:
        raise InvalidArgumentError(
            f"{name} has the type {array.dtype}. Pass an int, or an array of int64 milliseconds."
        )
    if array.ndim == 0:
        due_ms = np.full(count, int(array), np.int64)
    elif array.shape == (count,):
        due_ms = array.astype(np.int64)  # a copy: the caller may change theirs
    else:
        raise InvalidArgumentError(
            f"{name} has the shape {array.shape}. Pass one time for all bodies, or an array of "
            f"{count}, one for each body."
        )
    if name == "delay_ms" and count:
        longest_ms = int(due_ms.max())
        if now_ms + longest_ms > DUE_MS_MAX:
            raise InvalidArgumentError(
                f"{name} has {longest_ms}, which leads past the year 9999. Pass shorter delays."
            )
        np.maximum(due_ms, DUE_MS_MIN - now_ms, out=due_ms)  # it was due long ago
        due_ms += now_ms
    if count:
        least_ms, most_ms = int(due_ms.min()), int(due_ms.max())
        if name == "at_ms":
            check_due_ms(least_ms, name)
        check_due_ms(most_ms, name)
        if max_delay_ms is not None and most_ms - now_ms > max_delay_ms:
            raise InvalidArgumentError(
                f"A timer is due in {most_ms - now_ms} ms, and max_delay_ms is {max_delay_ms}. "
                "Pass earlier times, or raise max_delay_ms."
            )
    return due_ms


def check_text(value: str, what: str) -> bytes:
    """Return a property's value as bytes, or refuse it."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} is {value!r}. Pass a str.")
    if not value or "\x01" in value or "\x02" in value:
        raise InvalidArgumentError(
            f"{what} is {value!r}. Pass text that is not empty and holds no U+0001 or U+0002."
        )
    try:
        return value.encode()
    except UnicodeEncodeError as e:
        raise InvalidArgumentError(f"{what} is no valid Unicode: {e}. Correct it.") from e


def encode_properties(
    key: str | None, tag: str | None, properties: Mapping[str, str] | None
) -> bytes:
    """Return key, tag and user properties as they stand in a message."""
    encoded = b""
    if properties is not None and not isinstance(properties, Mapping):
        raise InvalidArgumentError(f"properties is {properties!r}. Pass a dict of str to str.")
    if tag is not None:
        encoded += encode_property(b"TAGS", check_text(tag, "tag"))
    if key is not None:
        encoded += encode_property(b"KEYS", check_text(key, "key"))
    for name, value in (properties or {}).items():
        name_bytes = check_text(name, "a property's name")
        if name in fmt.RESERVED_PROPERTIES and name_bytes != fmt.PROPERTY_PUT_BY:
            raise InvalidArgumentError(
                f"properties has the name {name!r}, which belongs to the system. Use another name."
            )
        encoded += encode_property(name_bytes, check_text(value, f"property {name!r}"))
    check_description(len(encoded))
    return encoded


def check_description(length: int) -> None:
    """Refuse more of key, tag and properties than a message has room for."""
    if length > DESCRIPTION_BYTES_MAX:
        raise InvalidArgumentError(
            f"key, tag and properties together take {length} bytes. Use {DESCRIPTION_BYTES_MAX} "
            "at most."
        )


def check_body(body: object, described_bytes: int, bytes_max: int) -> bytes:
    """Return a body as bytes, or refuse it.

    `described_bytes`: what key, tag and properties take; `bytes_max`: what all may take together.
    """
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidArgumentError(
            f"body has the type {type(body).__name__}. Pass bytes, such as text.encode() or "
            "json.dumps(value).encode()."
        )
    try:
        body = bytes(body)
    except ValueError as e:  # a memoryview that was released
        raise InvalidArgumentError(f"body cannot be read as bytes: {e}. Pass bytes.") from e
    if not body:
        raise InvalidArgumentError(
            "body is empty, and RocketMQ brokers drop empty messages. Pass at least one byte."
        )
    if len(body) + described_bytes > bytes_max:
        raise too_long("body", len(body), described_bytes, bytes_max)
    return body


def too_long(what: str, length: int, described_bytes: int, bytes_max: int) -> InvalidArgumentError:
    """Return the error for a body that is too long, beside what describes it."""
    beside = f", and key, tag and properties have {described_bytes}" if described_bytes else ""
    is_of_segments = bytes_max < fmt.MESSAGE_BYTES_MAX - CONTENT_SPARE_BYTES
    more = ", or make a store with larger segments" if is_of_segments else ""
    return InvalidArgumentError(
        f"{what} has {length} bytes{beside}. Pass {bytes_max - described_bytes} at most{more}."
    )


class Binaries:
    """Byte strings, as kernels take them; holds on to what owns the memory."""

    def __init__(self, values: Any, what: str, *, takes_text: bool = True) -> None:
        """Take a sequence of bytes, or of str, an Arrow binary array or a 2-D uint8 array."""
        self.owner: Any = values
        self._takes_text = takes_text
        if isinstance(values, np.ndarray):
            if values.ndim != 2 or values.dtype != np.uint8:
                raise InvalidArgumentError(
                    f"{what} is an array of {values.dtype} with {values.ndim} dimensions. "
                    "Pass a 2-D array of uint8, one row each."
                )
            rows = self.owner = np.ascontiguousarray(values)
            self.pieces = rows_read(rows)
            return
        if isinstance(values, (bytes, bytearray, memoryview, str)) or not isinstance(
            values, (Sequence, pa.Array, pa.ChunkedArray)
        ):
            raise InvalidArgumentError(
                f"{what} has the type {type(values).__name__}. Pass a sequence of bytes, an Arrow "
                "binary array, or a 2-D uint8 array."
            )
        if type(values) in (list, tuple):
            self.owner = tuple(values)  # keeps each object, even if the caller changes the list
            read = read_objects(self.owner)
            if read is not None:
                self.pieces = read
                return
        self._from_arrow(values, what)

    def _from_arrow(self, values: Any, what: str) -> None:
        wanted = "texts" if self._takes_text else "bytes"
        if isinstance(values, pa.ChunkedArray):
            values = (
                pa.concat_arrays(values.chunks) if values.num_chunks else values.combine_chunks()
            )
        if not isinstance(values, pa.Array):
            if not self._takes_text and any(isinstance(each, str) for each in values):
                raise InvalidArgumentError(
                    f"{what} contains str. Pass bytes: text.encode() for each."
                )
            values = _packed(values, what, wanted)
        if values.null_count:
            raise InvalidArgumentError(f"{what} contains nulls. Pass only {wanted}.")
        large = values.type in (pa.large_binary(), pa.large_string())
        if not large and values.type not in (pa.binary(), pa.string()):
            raise InvalidArgumentError(
                f"{what} is an Arrow array of {values.type}. Pass one of binary."
            )
        self.owner = values
        self.pieces = arrow_read(values, large=large)

    @property
    def length(self) -> Int64s:
        """The bytes of each."""
        return self.pieces.length

    def __len__(self) -> int:
        return len(self.length)


def binary_array(values: Any, what: str, *, takes_text: bool) -> pa.Array:
    """Return byte strings as an Arrow array; errors as `put_many` raises them."""
    data = Binaries(values, what, takes_text=takes_text)
    if isinstance(data.owner, pa.Array):
        return data.owner
    rows = data.owner if isinstance(data.owner, np.ndarray) else b"".join(data.owner)
    return _laid(data.length, rows)


def _packed(values: Sequence[Any], what: str, wanted: str) -> pa.Array:
    try:
        pieces = [
            each.encode() if isinstance(each, str) else bytes(memoryview(each)) for each in values
        ]
    except (TypeError, ValueError) as e:
        raise InvalidArgumentError(
            f"{what} contains what is not {wanted}: {e}. Pass only {wanted}."
        ) from e
    return _laid(np.fromiter(map(len, pieces), np.int64, len(pieces)), b"".join(pieces))


def _laid(lengths: Int64s, data: Any) -> pa.Array:
    """Return what lies one behind the other as an Arrow array; `pa.array` would import pandas."""
    ends = np.concatenate(([0], np.cumsum(lengths)))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)
