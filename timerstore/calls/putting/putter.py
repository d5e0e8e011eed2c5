"""Appending new timers: composed one by one, or many framed by a kernel."""

from __future__ import annotations

from copy import copy
from typing import Final

import numpy as np

from timerstore.calls.putting.admission import Admission, Space
from timerstore.core.core import Core
from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.jit.objects import NO_PIECES
from timerstore.services.calls.appending import append_all, put_batch
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.text import java_hash_of
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX
from timerstore.timelog.writing.compose import Staged, compose, stage_messages
from timerstore.timelog.writing.frame import (
    Puts,
    Template,
    encode_property,
    encode_tag,
    encode_waiting,
    new_template,
)
from timerstore.values.check_arguments import Binaries, check_alone
from timerstore.values.ids import Int64s, TimerIds, format_id
from timerstore.values.kinds import as_int, shown_int

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
) -> Staged:
    """Compose one timer message, and say where it is staged.

    `properties`: as they stand in a message. `replaces`: the id in whose place it comes.
    """
    key = format_id(due_ms, 0, engine.store_tag).encode()
    text = encode_waiting(fmt.PROPERTY_DUE, b"%d" % due_ms, key, topic)
    if replaces is not None:
        text += encode_property(fmt.PROPERTY_REPLACES, replaces.encode("utf-8", "surrogateescape"))
    message = compose(fmt.TIMER_TOPIC, body, text + properties, born_ms=engine.clock.now_ms)
    tags_code = 0 if tag is None else java_hash_of(tag)
    return Staged(message, 0, tags_code, engine.queues.row(topic), 1, due_ms)


class Putter:
    """Appends new timers; any number of threads may use it."""

    def __init__(self, core: Core, admission: Admission, space: Space) -> None:
        self.core, self.engine = core, core.engine
        self._admission, self._space = admission, space
        self._templates: dict[tuple[bytes, str | None, int, bytes], Template] = {}

    def template(
        self, topic: bytes, tag: str | None, level: int = 0, carried: bytes = b""
    ) -> Template:
        """Return the template for a topic with a tag, of timers or of a delay level.

        `carried`: more properties, as they stand in a message.
        """
        found, engine = self._templates.get((topic, tag, level, carried)), self.engine
        if found is None:
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            found = self._templates[topic, tag, level, carried] = new_template(
                topic,
                level=level,
                level_ms=int(engine.level_ms[level - 1]) if level else 0,
                tag=engine.store_tag,
                level_row=engine.level_row(level) if level else 0,
                pending_row=engine.queues.row(topic) + (QUEUE_COUNT_MAX if level else 0),
                change=1,
                tags_code=0 if tag is None else java_hash_of(tag),
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
    ) -> TimerIds:
        """Append one message for each body; see `TimerStore.put_many`.

        `due_ms`: with a `level` that level, for all. `carried`: properties that all have.
        """
        engine, offsets = self.engine, np.empty(len(due_ms), np.int64)
        template, stage = self.template(topic, tag, level, carried), self.core.take_stage()
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
                stop = len(due_ms) if level else done + self._admission.enter()
                with self._space.putting():
                    piece = due_ms[: done + self._space.count_that_fit(sizes[done:stop])]
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

    def append(self, entry: Staged, now_ms: int) -> int:
        """Append one composed message; return its offset."""
        engine, stage = self.engine, self.core.take_stage()
        try:
            count = stage_messages(stage, [entry])
            append_all(engine, stage, count, now_ms)
            return int(stage.offset[0])
        finally:
            self.core.free_stage(stage)


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
        text + properties,
        born_ms=now_ms if born_ms is None else born_ms,
        queue_id=level - 1,
        flag=flag,
        reconsume_times=reconsume_times,
    )
    row = engine.queues.row(topic) + QUEUE_COUNT_MAX
    return Staged(message, engine.level_row(level), due_ms, row, 1, due_ms)
