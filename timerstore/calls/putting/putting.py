"""The calls that put: from checked arguments to messages in the log."""

from __future__ import annotations

from copy import copy
from datetime import timedelta
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.calls.putting.admission import Admission, Congestion, Space
from timerstore.calls.putting.short_way import ShortWay, template_of
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.jit.objects import NO_PIECES
from timerstore.services.calls.appending import append_all, put_batch
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.text import first_bad_key, java_hash_of
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX
from timerstore.timelog.writing.compose import Staged, compose, stage_messages
from timerstore.timelog.writing.frame import (
    Puts,
    Template,
    encode_expires,
    encode_property,
    encode_tag,
    encode_waiting,
)
from timerstore.values.check_arguments import (
    DUE_MS_MAX,
    Binaries,
    check_alone,
    check_body,
    check_description,
    check_due_array,
    check_text,
    check_topic,
    encode_properties,
    resolve_due_ms,
    too_long,
)
from timerstore.values.ids import Int64s, TimerIds, format_id
from timerstore.values.kinds import as_int, shown_int
from timerstore.values.puts import Debounce, Many, Put, resolve_expires_ms

TEMPLATES_MAX: Final = 1_024
"""Templates that are kept: one for each topic with each tag that is used."""


def _with_ids(error: TimerStoreError, ids: TimerIds) -> TimerStoreError:
    """Return a copy of an error, which other threads may be raising too, that carries ids."""
    error = copy(error)
    error.ids = ids
    return error


def compose_timer(
    engine: Engine,
    topic: bytes,
    body: bytes,
    due_ms: int,
    properties: bytes,
    tag: str | None,
    *,
    replaces: str | None = None,
    expires_ms: int | None = None,
) -> Staged:
    """Compose one timer message, and say where it is staged.

    `properties`: as they stand in a message. `replaces`: the id in whose place it comes.
    """
    key = format_id(due_ms, 0, engine.store_tag).encode()
    text = encode_waiting(fmt.PROPERTY_DUE, b"%d" % due_ms, key, topic)
    if replaces is not None:
        text += encode_property(fmt.PROPERTY_REPLACES, replaces.encode("utf-8", "surrogateescape"))
    text += encode_expires(expires_ms) + properties
    flag = 0 if expires_ms is None else fmt.FLAG_EXPIRES
    message = compose(fmt.TIMER_TOPIC, body, text, born_ms=engine.clock.now_ms, flag=flag)
    tags_code = 0 if tag is None else java_hash_of(tag)
    return Staged(message, 0, tags_code, engine.queues.row(topic), 1, due_ms)


# --- messages of RocketMQ's delay levels


def check_level(engine: Engine, level: object, *others: object) -> int:
    """Return a delay level, counted from 1 and clamped to the highest, or refuse it.

    `others`: what else says when a message is due; all must be None.
    """
    check_alone(*others)
    number = as_int(level)
    if number is None or number < 1:
        raise InvalidArgumentError(
            f"delay_level is {shown_int(level)}. Pass an int, 1 to {len(engine.level_ms)}."
        )
    level = min(number, len(engine.level_ms))
    level_ms, limit_ms = int(engine.level_ms[level - 1]), engine.config.max_delay_ms
    if limit_ms is not None and level_ms > limit_ms:
        raise InvalidArgumentError(
            f"delay_level {level} is a delay of {level_ms} ms, and max_delay_ms is {limit_ms}. "
            "Pass a lower level, or raise max_delay_ms."
        )
    return level


def stage_at_level(
    engine: Engine,
    level: int,
    topic: bytes,
    body: bytes,
    properties: bytes,
    now_ms: int,
    expires_ms: int | None = None,
    *,
    key: bytes | None = None,
    born_ms: int | None = None,
    flag: int = 0,
    reconsume_times: int = 0,
) -> Staged:
    """Compose a message that goes through a delay level to `topic`, and say where it is staged.

    `properties`: as they stand in a message. Without `key` it gets one of its own, whose offset the
    appender stamps. It is due that level after `now_ms`: append it with the same.
    """
    due_ms = now_ms + int(engine.level_ms[level - 1])
    own = format_id(due_ms, fmt.LEVEL_MARK, engine.store_tag).encode()
    text = encode_waiting(fmt.PROPERTY_LEVEL, b"%d" % level, own if key is None else key, topic)
    message = compose(
        fmt.LEVEL_TOPIC,
        body,
        text + encode_expires(expires_ms) + properties,
        born_ms=now_ms if born_ms is None else born_ms,
        queue_id=level - 1,
        flag=flag if expires_ms is None else fmt.FLAG_EXPIRES,
        reconsume_times=reconsume_times,
    )
    row = engine.queues.row(topic) + QUEUE_COUNT_MAX
    return Staged(message, engine.level_row(level), due_ms, row, 1, due_ms)


# --- the calls


class Prepared(NamedTuple):
    """One timer that is about to be put."""

    topic: str
    body: bytes
    described: bytes  # key, tag and properties as they stand in a message
    tag: str | None
    level: int  # from 1; 0: none
    now_ms: int  # what its due time was reckoned from
    due_ms: int
    expires_ms: int | None
    is_delayed: bool  # its due time is a delay behind `now_ms`
    until: timedelta | int | None  # how long behind `now_ms` it expires, or when

    def due_from(self, now_ms: int, most_ms: int = DUE_MS_MAX) -> Prepared:
        """Return the same with its delay, and its time to live, behind another time.

        `most_ms`: due then at the latest. It is refused if it would expire before it is due.
        """
        due_ms = self.due_ms + now_ms - self.now_ms if self.is_delayed else self.due_ms
        due_ms = min(due_ms, most_ms)
        expires_ms = resolve_expires_ms(self.until, now_ms, due_ms)
        return self._replace(now_ms=now_ms, due_ms=due_ms, expires_ms=expires_ms)


class Putting:
    """Puts into an open store; any number of threads may use it."""

    def __init__(self, core: Core) -> None:
        self.core, self.gate = core, core.gate
        self.admission, self.congestion = Admission(core), Congestion(core.engine)
        self.space = Space(core)
        self._templates: dict[tuple[bytes, str | None, int, bytes, int], Template] = {}
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
        self.core.check_putting()
        prepared = self.check(put, self.core.clock.now_ms)
        if not prepared.level:
            self.admission.enter()
        self.space.check()
        return prepared

    def check(self, put: Put, now_ms: int) -> Prepared:
        """Return a timer that is put then, or refuse it; its slot has room."""
        engine, level, due_ms = self.core.engine, 0, 0
        if put.delay_level is not None:
            level = check_level(engine, put.delay_level, *put.times)
        check_topic(put.topic)
        if not level:
            due_ms = resolve_due_ms(now_ms, *put.times, engine.config.max_delay_ms)
        described = put.described()
        if level:
            due_ms = now_ms + int(engine.level_ms[level - 1])
        is_settled = not isinstance(put.replace, Debounce)  # else it may be due before that
        expires_ms = resolve_expires_ms(put.expires, now_ms, due_ms if is_settled else None)
        described_bytes = len(described) + len(encode_expires(expires_ms))
        body = check_body(put.body, described_bytes, engine.content_bytes_max)
        if not level:
            self.congestion.check(due_ms, now_ms)
        is_delayed = put.at is None and put.at_ms is None
        told = level, now_ms, due_ms, expires_ms, is_delayed, put.expires
        return Prepared(put.topic, body, described, put.tag, *told)

    def append(self, prepared: Prepared) -> str:
        """Append what is prepared, and return its id; it is not durable yet, nor noticed."""
        self.short_way.add(prepared.topic, prepared.level)
        now_ms = prepared.now_ms if prepared.level else self.core.clock.now_ms
        offset = self.append_staged(self.staged(prepared), now_ms)
        mark = fmt.LEVEL_MARK if prepared.level else 0
        return format_id(prepared.due_ms, offset | mark, self.core.engine.store_tag)

    def staged(self, prepared: Prepared) -> Staged:
        """Compose what is prepared, and say where it is staged."""
        topic, body, described, tag, level, now_ms, due_ms, expires_ms, *_ = prepared
        where = self.core.engine, topic.encode(), body
        if level:
            return stage_at_level(where[0], level, *where[1:], described, now_ms, expires_ms)
        return compose_timer(*where, due_ms, described, tag, expires_ms=expires_ms)

    def append_short(self, prepared: Prepared) -> str | None:
        """Do the same by the short way, if that can be; None: it cannot."""
        if prepared.level or prepared.expires_ms is not None:
            return None
        timer = Put(prepared.body, prepared.topic, at_ms=prepared.due_ms)
        code = 0 if prepared.tag is None else java_hash_of(prepared.tag)
        return self.short_way.put(timer, prepared.described, code)

    @inside
    def put_many(self, bodies: Any, many: Many, *, carried: bytes = b"") -> TimerIds:
        """Put many timers; see `TimerStore.put_many`. `carried`: properties that all have."""
        topic, at_ms, delay_ms, keys, tag, delay_level, jitter, expires = many
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
            limit_ms = engine.config.max_delay_ms
            due_ms = check_due_array(len(data), now_ms, at_ms, delay_ms, limit_ms, jitter)
        else:
            level = check_level(engine, delay_level, delay_ms, at_ms)
            due_ms = np.full(len(data), level, np.int64)
        if len(data) == 0:
            return TimerIds(due_ms, due_ms.copy(), engine.store_tag)
        last_ms = now_ms + int(engine.level_ms[level - 1]) if level else int(due_ms.max())
        expires_ms, flag = resolve_expires_ms(expires, now_ms, last_ms), 0
        if expires_ms is not None:
            carried, flag = encode_expires(expires_ms) + carried, fmt.FLAG_EXPIRES
        check_lengths(data, texts, tag, engine.content_bytes_max, len(carried))
        if not level:
            self.congestion.check(due_ms, now_ms)
        return self.append_many(topic_bytes, tag, data, texts, due_ms, now_ms, level, carried, flag)

    def template(
        self,
        topic: bytes,
        tag: str | None,
        level: int = 0,
        carried: bytes = b"",
        flag: int = 0,
    ) -> Template:
        """Return the template for a topic with a tag, of timers or of a delay level.

        `carried`: more properties, as they stand in a message.
        """
        named, engine = (topic, tag, level, carried, flag), self.core.engine
        found = self._templates.get(named)
        if found is None:
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            found = self._templates[named] = template_of(
                engine,
                topic,
                level,
                tags_code=0 if tag is None else java_hash_of(tag),
                flag=flag,
                properties=carried if tag is None else encode_tag(tag) + carried,
            )
        return found

    def append_many(
        self,
        topic: bytes,
        tag: str | None,
        bodies: Binaries,
        keys: Binaries | None,
        due_ms: Int64s,
        now_ms: int,
        level: int,
        carried: bytes = b"",
        flag: int = 0,
    ) -> TimerIds:
        """Append one message for each body; see `TimerStore.put_many`.

        `due_ms`: with a `level` that level, for all. `carried`: properties that all have.
        """
        engine, offsets = self.core.engine, np.empty(len(due_ms), np.int64)
        template, stage = self.template(topic, tag, level, carried, flag), self.core.take_stage()
        extras, done = NO_PIECES if keys is None else keys.pieces, 0
        around_bytes = fmt.MESSAGE_HEADER_BYTES + len(template.tail) + len(template.extra) + 64
        sizes = bodies.pieces.length + (0 if keys is None else extras.length) + around_bytes

        def put_so_far() -> TimerIds:
            due, places = due_ms[:done], offsets[:done]
            if level:
                due, places = now_ms + engine.level_ms[due - 1], places | fmt.LEVEL_MARK
            return TimerIds(due, places, engine.store_tag)

        try:
            while done < len(due_ms):
                # What goes through a delay level takes no room in the timer topic's queue.
                stop = len(due_ms) if level else done + self.admission.enter()
                with self.space.putting():
                    piece = due_ms[: done + self.space.count_that_fit(sizes[done:stop])]
                    puts = Puts(bodies.pieces, extras, piece)
                    with engine.commitlog.reading():
                        done = put_batch(engine.world, stage, template, puts, done, now_ms, offsets)
                    if done < len(piece):
                        engine.provide_append(stage)
        except TimerStoreError as e:
            if done:
                self._announce(put_so_far(), now_ms)
                raise _with_ids(e, put_so_far()) from e
            raise
        finally:
            self.core.free_stage(stage)
        self._announce(put_so_far(), now_ms)
        return put_so_far()

    def _announce(self, ids: TimerIds, now_ms: int) -> None:
        """Make what was put durable, and seen by the services; an error carries the ids."""
        try:
            self.core.after_append(now_ms, int(ids.due_ms.min()))
        except TimerStoreError as e:
            raise _with_ids(e, ids) from e

    def append_staged(self, entry: Staged, now_ms: int) -> int:
        """Append one composed message; return its offset."""
        engine, stage = self.core.engine, self.core.take_stage()
        try:
            count = stage_messages(stage, [entry])
            append_all(engine, stage, count, now_ms)
            return int(stage.offset[0])
        finally:
            self.core.free_stage(stage)


def check_keys(keys: Binaries, count: int) -> None:
    """Refuse keys that cannot stand in a property."""
    if len(keys) != count:
        raise InvalidArgumentError(
            f"keys has {len(keys)} texts and bodies has {count}. Pass a key for each body."
        )
    bad = first_bad_key(keys.pieces)
    if bad >= 0:
        raise InvalidArgumentError(
            f"keys[{bad}] is empty, is no UTF-8, or holds U+0001 or U+0002. Pass another text."
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
