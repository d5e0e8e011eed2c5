"""Sending back: a message that was consumed is appended again, with its id.

It goes to its group's `%RETRY%` topic through a delay level, or after a delay as a timer; or to the
group's dead letters, or to any other topic, at once. It keeps body, flag, born time, tags, keys,
the user's properties and `UNIQ_KEY`, which is its id. `RETRY_TOPIC` is the first topic that it was
consumed from, `ORIGIN_MESSAGE_ID` its first id. What failed carries since when, and in the end why
(`delivery.py`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from timerstore.calls.consuming.delivery import FAILED, Failure, Wait, failed_properties
from timerstore.calls.putting.putting import Putting, check_level, stage_at_level
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.errors import InvalidArgumentError
from timerstore.services.calls.appending import append_all
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message
from timerstore.timelog.bytes.limits import (
    CARRIED_BYTES_MAX,
    CONTENT_SPARE_BYTES,
    SENT_BACK_GROWTH_BYTES,
)
from timerstore.timelog.bytes.text import java_hash_of
from timerstore.timelog.writing.compose import Staged, compose, stage_messages
from timerstore.timelog.writing.frame import encode_property, encode_waiting
from timerstore.values.check_arguments import check_due_ms
from timerstore.values.ids import parse_id
from timerstore.values.kinds import check_duration, whole_ms

_DROPPED: Final = frozenset(
    (
        *("TIMER_OUT_MS", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "DELAY"),
        *("TIMER_ROLL_TIMES", "TIMER_ORIGIN", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"),
        *("REAL_TOPIC", "REAL_QID", "TIMER_REPLACES", "UNIQ_KEY", "__CRC32#", "PUT_BY"),
        "TIMER_FIRST_PUT_MS",
        *FAILED,
    )
)
"""Properties that say how a message came here; a message that is sent back comes another way."""


@inside
def send_back(
    putting: Putting,
    group: str,
    message: Message,
    *,
    delay_level: int | None = None,
    delay: timedelta | None = None,
    wait: bool = True,
) -> None:
    """Append a consumed message again for `%RETRY%group`, with `reconsume_times` + 1.

    Through a delay level, or after `delay`, or at once. Durable like a put; without `wait` only
    after `wait_durable`, which can so serve many. Errors as for `put`; then nothing was appended.
    """
    core, topic = putting.core, fmt.RETRY_PREFIX + group.encode()
    core.check_writable()
    engine, now_ms = core.engine, core.clock.now_ms
    if delay_level is not None and delay is not None:
        raise InvalidArgumentError("delay and delay_level exclude each other. Pass one of them.")
    if delay_level is not None:
        level = check_level(engine, delay_level)
        entry = stage_at_level(
            engine,
            level,
            topic,
            message.body,
            _carried(message) + _failed(engine, message, now_ms),
            now_ms,
            key=message.properties.get("UNIQ_KEY", "").encode(),
            born_ms=message.born_ms,
            flag=message.flag,
            reconsume_times=message.reconsume_times + 1,
        )
        due_ms = entry.tags_code
    else:
        due_ms = check_due_ms(now_ms + _delay_ms(delay), "the due time")
        putting.congestion.count(due_ms, now_ms)
        putting.admission.enter()
        entry = _as_timer(engine, topic, message, due_ms, now_ms)
    _append(putting, entry, now_ms, due_ms, wait)


def send_to_dead(
    putting: Putting,
    group: str,
    message: Message,
    failure: Failure | None = None,
    *,
    wait: bool = True,
) -> None:
    """Append a consumed message to `%DLQ%group`, at once; durable as by `send_back`.

    It carries what it died of.
    """
    topic, failure = fmt.DEAD_PREFIX + group.encode(), failure or Failure()
    attempts = message.reconsume_times + failure.was_handled
    send_to(putting, topic, message, attempts, failure, wait=wait)


@inside
def send_to(
    putting: Putting,
    topic: bytes,
    message: Message,
    reconsume_times: int,
    failure: Failure | None = None,
    *,
    wait: bool = True,
) -> None:
    """Append a consumed message to any topic, at once; durable as by `send_back`.

    The next who consumes it sees `reconsume_times` as its attempt, and what it failed with.
    """
    core = putting.core
    core.check_writable()
    engine, now_ms = core.engine, core.clock.now_ms
    properties = dict(message.properties)
    properties.pop(fmt.PROPERTY_EXPIRES.decode(), None)  # somebody wants to see it
    message = message._replace(properties=properties)
    failed = b"" if failure is None else _failed(engine, message, now_ms, failure)
    composed = compose(
        topic,
        message.body,
        _key(message) + _carried(message) + failed,
        born_ms=message.born_ms,
        flag=message.flag & ~fmt.FLAG_EXPIRES,
        reconsume_times=reconsume_times,
    )
    entry = Staged(composed, engine.queues.row(topic), _tags_code(message), -1, 0)
    _append(putting, entry, now_ms, now_ms, wait)


@inside
def wait_durable(putting: Putting) -> None:
    """Return once all that was appended is as durable as a put."""
    core = putting.core
    core.check_open()
    now_ms = core.clock.now_ms
    core.after_append(now_ms, now_ms)


def wait_ms(core: Core, wait: Wait) -> int:
    """Return how long a message waits after a delay level, or so long."""
    if isinstance(wait, timedelta):
        return whole_ms(wait)
    levels_ms = core.engine.level_ms
    return int(levels_ms[min(wait, len(levels_ms)) - 1])


def _delay_ms(delay: timedelta | None) -> int:
    if delay is None:
        return 0
    length = check_duration(delay, "delay")
    if length < timedelta(0):
        raise InvalidArgumentError(f"delay is {delay!r}. Pass a length of time, 0 or more.")
    return whole_ms(length)


def _as_timer(engine: Engine, topic: bytes, message: Message, due_ms: int, now_ms: int) -> Staged:
    key = message.properties.get("UNIQ_KEY", "").encode()
    properties = encode_waiting(fmt.PROPERTY_DUE, b"%d" % due_ms, key, topic)
    id = parse_id(message.properties.get("UNIQ_KEY", ""))
    if id is None or id.tag != engine.store_tag:
        # What has a broker's key is read in a broker's way, see `exact_due_ms`.
        properties += encode_property(fmt.PROPERTY_DELIVER, b"%d" % due_ms)
    composed = compose(
        fmt.TIMER_TOPIC,
        message.body,
        properties + _carried(message) + _failed(engine, message, now_ms),
        born_ms=message.born_ms,
        flag=message.flag,
        reconsume_times=message.reconsume_times + 1,
    )
    return Staged(composed, 0, _tags_code(message), engine.queues.row(topic), 1, due_ms)


def _append(putting: Putting, entry: Staged, now_ms: int, due_ms: int, wait: bool) -> None:
    core, engine = putting.core, putting.core.engine
    if len(entry[0]) + SENT_BACK_GROWTH_BYTES > engine.message_bytes_max:
        raise InvalidArgumentError(
            f"The message would take {len(entry[0])} bytes with what sending back adds to it, "
            "which is too many. Acknowledge it, and put a shorter one."
        )
    stage = core.take_stage()
    try:
        count = stage_messages(stage, [entry], own_key=False)
        append_all(engine, stage, count, now_ms)
    finally:
        core.free_stage(stage)
    if wait:
        core.after_append(now_ms, due_ms)


# --- properties


def _key(message: Message) -> bytes:
    key = message.properties.get("UNIQ_KEY")
    return b"" if not key else encode_property(fmt.PROPERTY_UNIQUE_KEY, key.encode())


def _carried(message: Message) -> bytes:
    """Return the properties that go with a message wherever it is sent."""
    carried = _first_origin(message) + _kept(message)
    if len(carried) > CARRIED_BYTES_MAX:
        raise InvalidArgumentError(
            f"The properties of the message take {len(carried)} bytes, and a message can be sent "
            f"back only if they take at most {CARRIED_BYTES_MAX}. Acknowledge it, and put "
            "another."
        )
    return carried


def _failed(engine: Engine, message: Message, now_ms: int, failure: Failure | None = None) -> bytes:
    """Return since when it fails, and what with, in the room that its other content leaves."""
    carried_bytes = len(_carried(message))
    around_bytes = CONTENT_SPARE_BYTES + SENT_BACK_GROWTH_BYTES
    left = engine.message_bytes_max - len(message.body) - carried_bytes - around_bytes
    room_bytes = min(CARRIED_BYTES_MAX - carried_bytes, left)
    return failed_properties(message.properties, now_ms, failure, room_bytes)


def _first_origin(message: Message) -> bytes:
    """Return RETRY_TOPIC and ORIGIN_MESSAGE_ID if it has none yet."""
    first = {
        fmt.PROPERTY_RETRY_TOPIC: message.topic,
        fmt.PROPERTY_ORIGIN_ID: message.properties.get("UNIQ_KEY", ""),
    }
    missing = {
        name: value for name, value in first.items() if name.decode() not in message.properties
    }
    return b"".join(_encode(name.decode(), value) for name, value in missing.items() if value)


def _kept(message: Message) -> bytes:
    kept = (pair for pair in message.properties.items() if pair[0] not in _DROPPED)
    return b"".join(_encode(name, value) for name, value in kept)


def _encode(name: str, value: str) -> bytes:
    return encode_property(
        name.encode("utf-8", "surrogateescape"), value.encode("utf-8", "surrogateescape")
    )


def _tags_code(message: Message) -> int:
    return java_hash_of(message.properties["TAGS"]) if "TAGS" in message.properties else 0
