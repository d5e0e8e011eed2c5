"""The calls that put: from checked arguments to messages in the log."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from timerstore.calls.putting.admission import Admission, Congestion, Space
from timerstore.calls.putting.putter import Putter, check_level, compose_timer, stage_at_level
from timerstore.calls.putting.short_way import ShortWay
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.errors import InvalidArgumentError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.text import first_bad_key, java_hash_of
from timerstore.timelog.writing.frame import encode_property
from timerstore.values.check_arguments import (
    Binaries,
    check_body,
    check_description,
    check_due_array,
    check_text,
    check_topic,
    encode_properties,
    resolve_due_ms,
    too_long,
)
from timerstore.values.ids import TimerIds, format_id
from timerstore.values.put_rows import Put


class Prepared(NamedTuple):
    """One timer that is about to be put."""

    topic: str
    body: bytes
    described: bytes  # key, tag and properties as they stand in a message
    tag: str | None
    level: int  # from 1; 0: none
    now_ms: int  # what its due time was reckoned from
    due_ms: int
    is_delayed: bool  # its due time is a delay behind `now_ms`

    def due_from(self, now_ms: int) -> Prepared:
        """Return the same with its delay, if it has one, behind another time."""
        if not self.is_delayed:
            return self
        return self._replace(now_ms=now_ms, due_ms=self.due_ms + now_ms - self.now_ms)


class Putting:
    """Puts into an open store; any number of threads may use it."""

    def __init__(self, core: Core) -> None:
        self.core, self.gate = core, core.gate
        self.admission, self.congestion = Admission(core), Congestion(core.engine)
        self.space = Space(core)
        self.putter = Putter(core, self.admission, self.space)
        config = core.engine.config
        limits = config.max_bytes, config.max_delay_ms, config.congestion_slot_count
        is_open = not core.clock.manual and not any(limits)
        self.has_no_limits = is_open and not self.admission.is_limited
        """Nothing but its arguments decides whether a timer may be put, or when."""
        self.short_way = ShortWay(core.engine, self.admission.count_max, is_open=is_open)

    @inside
    def put(self, put: Put) -> str:
        """Put one timer the long way; see `TimerStore.put`."""
        prepared = self.prepare(put)
        id = self.append(prepared)
        self.core.after_append(prepared.now_ms, prepared.due_ms)
        return id

    def prepare(self, put: Put) -> Prepared:
        """Check what is put, and wait until it may be; without any lock."""
        core, engine = self.core, self.core.engine
        core.check_putting()
        level, due_ms = 0, 0
        if put.delay_level is not None:
            level = check_level(engine, put.delay_level, *put.times)
        now_ms = core.clock.now_ms
        check_topic(put.topic)
        if not level:
            due_ms = resolve_due_ms(now_ms, *put.times, engine.config.max_delay_ms)
        described = put.described()
        body = check_body(put.body, len(described), engine.content_bytes_max)
        if level:
            due_ms = now_ms + int(engine.level_ms[level - 1])
        else:
            self.congestion.check(due_ms, now_ms)
            self.admission.enter()
        self.space.check()
        is_delayed = put.at is None and put.at_ms is None
        return Prepared(put.topic, body, described, put.tag, level, now_ms, due_ms, is_delayed)

    def append(self, prepared: Prepared) -> str:
        """Append what is prepared, and return its id; it is not durable yet, nor noticed."""
        engine, topic, level = self.core.engine, prepared.topic.encode(), prepared.level
        body, described, tag, due_ms = (
            prepared.body,
            prepared.described,
            prepared.tag,
            prepared.due_ms,
        )
        self.short_way.add(prepared.topic, level)
        if level:
            entry = stage_at_level(engine, level, topic, body, described, prepared.now_ms)
            offset = self.putter.append(entry, prepared.now_ms) | fmt.LEVEL_MARK
        else:
            entry = compose_timer(engine, topic, body, due_ms, described, tag)
            offset = self.putter.append(entry, self.core.clock.now_ms)
        return format_id(due_ms, offset, engine.store_tag)

    def append_short(self, prepared: Prepared) -> str | None:
        """Do the same by the short way, if that can be; None: it cannot."""
        if prepared.level:
            return None
        timer = Put(prepared.body, prepared.topic, at_ms=prepared.due_ms)
        code = 0 if prepared.tag is None else java_hash_of(prepared.tag)
        return self.short_way.put(timer, prepared.described, code)

    @inside
    def put_many(
        self,
        bodies: Any,
        topic: str,
        at_ms: Any,
        delay_ms: Any,
        keys: Any,
        tag: str | None,
        delay_level: int | None,
        carried: bytes = b"",
    ) -> TimerIds:
        """Put many timers; see `TimerStore.put_many`. `carried`: properties that all have."""
        core, engine = self.core, self.core.engine
        core.check_putting()
        now_ms, topic_bytes = core.clock.now_ms, check_topic(topic)
        if tag is not None:
            check_text(tag, "tag")
        data = Binaries(bodies, "bodies", takes_text=False)
        texts = None if keys is None else Binaries(keys, "keys")
        if texts is not None:
            check_keys(texts, len(data))
        level = 0
        if delay_level is None:
            due_ms = check_due_array(len(data), now_ms, at_ms, delay_ms, engine.config.max_delay_ms)
        else:
            level = check_level(engine, delay_level, delay_ms, at_ms)
            due_ms = np.full(len(data), level, np.int64)
        if len(data) == 0:
            return TimerIds(due_ms, due_ms.copy(), engine.store_tag)
        check_lengths(data, texts, tag, engine.content_bytes_max, len(carried))
        if not level:
            self.congestion.check(due_ms, now_ms)
        return self.putter.append_many(
            topic_bytes, tag, data, texts, due_ms, now_ms, level, carried
        )


def check_keys(keys: Binaries, count: int) -> None:
    """Refuse keys that cannot stand in a property."""
    if len(keys) != count:
        raise InvalidArgumentError(
            f"keys has {len(keys)} texts and bodies has {count}. Pass a key for each body."
        )
    bad = first_bad_key(keys.pieces)
    if bad >= 0:
        raise InvalidArgumentError(
            f"keys[{bad}] is empty, or holds U+0001 or U+0002. Pass another text."
        )


def check_lengths(
    bodies: Binaries,
    keys: Binaries | None,
    tag: str | None,
    bytes_max: int,
    carried_bytes: int = 0,
) -> None:
    """Refuse bodies or keys that are empty or too long.

    `bytes_max`: what a body, its key, the tag, and the `carried_bytes` of what all have, may take
    together.
    """
    if int(bodies.length.min()) == 0:
        i = int(np.argmin(bodies.length))
        raise InvalidArgumentError(
            f"bodies[{i}] is empty, and RocketMQ brokers drop empty messages. Pass at least one "
            "byte."
        )
    tag_bytes = len(encode_properties(None, tag, None)) + carried_bytes
    if keys is None and int(bodies.length.max()) + tag_bytes <= bytes_max:
        check_description(tag_bytes)
        return
    described = np.full(len(bodies), tag_bytes, np.int64)
    if keys is not None:
        described += len(encode_property(fmt.PROPERTY_KEYS, b"")) + keys.length
    check_description(int(described.max()))
    i = int(np.argmax(bodies.length + described))
    if bodies.length[i] + described[i] > bytes_max:
        raise too_long(f"bodies[{i}]", int(bodies.length[i]), int(described[i]), bytes_max)
