"""The short way of a single put: one compiled call.

`put` is called in loops, so Python's own cost shows: composing a message takes 15 µs in Python,
below 2 here. The kernel takes only integers, addresses among them, and keeps the GIL, which is
a better lock among threads that put than any other. So what it waits for is only ever held by
kernels (see timelog/jit/locks.py), and a thread that sets `short_way_ended`, with the GIL, knows
that no short put is under way, nor will be. All that is out of the ordinary, wrong arguments above
all, goes the long way, which says what is wrong.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np

from timerstore.errors import InvalidArgumentError
from timerstore.ground.arguments import DUE_MS_MAX, DUE_MS_MIN, EPOCH, encode_properties, whole_ms
from timerstore.ground.put import Given
from timerstore.services.engine.engine import Engine
from timerstore.services.world.state import ENQUEUE_GET, Callers, EnqueueGet
from timerstore.services.world.waking import wake_for
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.text import java_hash_of
from timerstore.timelog.files.segmenttable import SegmentTable
from timerstore.timelog.jit.entrypoint import entry_ahead, entry_point
from timerstore.timelog.jit.intrinsics import view_bytes
from timerstore.timelog.jit.kernel import INTERPRETED
from timerstore.timelog.jit.objects import BYTES_DATA_AT, OBJECTS_ARE_READABLE
from timerstore.timelog.jit.record import Words, observe, record, record_at
from timerstore.timelog.jit.system import clock_ms
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX, QueueTable, Stage, append, new_stage
from timerstore.timelog.writing.frame import Template, frame_new, new_template

NEEDS_LONG_WAY: Final = -1
TOPICS_MAX: Final = 4_096
"""Topics, each level of one for itself, that take the short way: 1.5 KB each."""


@record
class PutPlace:
    """What a single put works on."""

    commitlog: SegmentTable
    queues: QueueTable
    stage: Stage
    append_lock: Words
    callers: Callers
    enqueue_get: EnqueueGet
    clock: Words  # int64[8]: scratch of clock_ms and wake
    eventfd: int = 0  # enqueue-get's
    unread_max: int = 0  # if enqueue-get has not read so many entries, a put goes the long way


_place_at, _template_at = record_at(PutPlace), record_at(Template)


def _put_one(
    place_address: int,
    template_address: int,
    body: int,
    body_bytes: int,
    extra: int,
    extra_bytes: int,
    due_ms: int,
    tags_code: int,
    now_ms: int,
) -> int:
    """Append one message; return its offset, or NEEDS_LONG_WAY and nothing done.

    `extra`: properties as they stand in a message. `due_ms`: of a delay level's template the
    level. `now_ms`: 0 if the kernel is to ask the clock.
    """
    place, template = _place_at(place_address), _template_at(template_address)
    callers = place.callers
    if callers.short_way_ended != 0 or callers.puts_paused != 0:  # closed: nothing here is mapped
        return NEEDS_LONG_WAY
    level_ms = template.level_ms
    unread = place.queues.next_index[0] - observe(place.enqueue_get, "fetched_index")
    if level_ms == 0 and unread >= place.unread_max:
        return NEEDS_LONG_WAY  # it has to wait for room, which must not be with the GIL
    if now_ms == 0:
        now_ms = clock_ms(place.clock)
    data, properties = view_bytes(body, body_bytes), view_bytes(extra, max(0, extra_bytes - 1))
    stage = place.stage  # the last property's end is framed
    frame_new(stage, 0, 0, template, data, properties, due_ms, now_ms)
    if level_ms == 0:
        stage.tags_code[0] = tags_code
    else:  # its tags code says when it is due
        due_ms = now_ms + level_ms
    done = append(place.commitlog, place.queues, place.append_lock, stage, 1, now_ms, True)
    if done == 0:
        return NEEDS_LONG_WAY
    wake_for(place.queues, place.enqueue_get, due_ms, place.eventfd, place.clock)
    return stage.offset[0]


entry_ahead(_put_one, keeps_gil=True)


class ShortWay:
    """Puts to topics that were put to before."""

    def __init__(self, engine: Engine, unread_max: int, *, is_open: bool) -> None:
        """Prepare the stage that all threads share under the GIL.

        `unread_max`: if enqueue-get has not read so many entries, a put goes the long way.
        `is_open`: else every put does.
        """
        self._engine, self.body_bytes_max = engine, engine.content_bytes_max
        self._tag = engine.store_tag
        self._stage = new_stage(4)
        self._place = PutPlace(
            engine.world.commitlog,
            engine.queues.table,
            self._stage,
            engine.append_lock.words,
            engine.world.callers,
            engine.world.enqueue_get,
            np.zeros(8, np.int64),
            eventfd=engine.eventfds[ENQUEUE_GET],
            unread_max=unread_max,
        )
        self._place_address = int(self._place.block_address)  # type: ignore[attr-defined]
        self._templates: dict[object, Template] = {}
        """By topic, or by topic and level."""
        self._addresses: dict[object, int] = {}
        self._nothing = b""
        self._nothing_at = id(self._nothing) + BYTES_DATA_AT
        self._level_ms = [0, *engine.level_ms.tolist()]
        short = OBJECTS_ARE_READABLE and not INTERPRETED
        self.call = entry_point(_put_one, keeps_gil=True) if short else None
        self._is_open = is_open and self.call is not None

    def add(self, topic: str, level: int = 0) -> None:
        """Let a topic that was put to take the short way from now on."""
        where: object = (topic, level) if level else topic
        known = where in self._templates
        if known or not self._is_open or len(self._templates) >= TOPICS_MAX:
            return
        engine = self._engine
        self._templates[where] = template = new_template(
            topic.encode(),
            level=level,
            level_ms=self._level_ms[level],
            tag=self._tag,
            level_row=engine.level_row(level) if level else 0,
            pending_row=engine.queues.row(topic.encode()) + (QUEUE_COUNT_MAX if level else 0),
            change=1,
            tags_code=0,
            extra=b"",
        )
        self._addresses[where] = int(template.block_address)  # type: ignore[attr-defined]

    def put(self, given: Given, extra: bytes = b"", tags_code: int = 0) -> str | None:
        """Put one timer, wake the services if they must see it; None: go the long way.

        `given`: the fields of a `Put`. `extra`: what else describes it, as it stands in a message;
        `tags_code`: its tag.
        """
        if not self._addresses:
            return None
        body, topic, delay, at, due_ms, key, tag, properties, level, if_absent, replace = given
        if if_absent is not False or replace is not False or type(topic) is not str:
            return None
        where: object = topic
        now_ms = 0  # the kernel asks the clock
        if due_ms is None or not (delay is None and at is None and level is None):
            now_ms = time.time_ns() // 1_000_000
            due_ms = self._due_ms(now_ms, delay, at, due_ms, level)
            where = topic if level is None else (topic, due_ms)
        address = self._addresses.get(where)
        if address is None or type(body) is not bytes or type(due_ms) is not int:
            return None
        if not (key is None and tag is None and properties is None):
            try:
                extra = encode_properties(key, tag, properties)
            except InvalidArgumentError:  # the long way says so
                return None
            tags_code = 0 if tag is None else java_hash_of(tag)
        length, more, extra_at = len(body), 0, self._nothing_at
        if extra:
            more, extra_at = len(extra), id(extra) + BYTES_DATA_AT
        if not 0 < length <= self.body_bytes_max - more:
            return None
        if level is None and not DUE_MS_MIN <= due_ms <= DUE_MS_MAX:
            return None
        offset = self.call(  # type: ignore[misc]
            self._place_address,
            address,
            id(body) + BYTES_DATA_AT,
            length,
            extra_at,
            more,
            due_ms,
            tags_code,
            now_ms,
        )
        if offset < 0:
            return None
        if level is not None:
            due_ms, offset = now_ms + self._level_ms[due_ms], offset | fmt.LEVEL_MARK
        parts = due_ms << 80 | offset << 32 | self._tag
        return parts.to_bytes(16, "big").hex().upper()  # `format_id`, without a call

    def _due_ms(self, now_ms: int, delay: object, at: object, at_ms: object, level: object) -> Any:
        """Return when a timer is due, or at which level it is put; None: the long way says."""
        if (delay is not None) + (at is not None) + (at_ms is not None) + (level is not None) > 1:
            return None
        if level is not None:
            if type(level) is not int or level < 1:
                return None
            return min(level, len(self._level_ms) - 1)
        if type(delay) is timedelta:
            return now_ms + whole_ms(delay)
        if isinstance(at, datetime):
            return whole_ms(at - EPOCH) if at.utcoffset() is not None else None
        return now_ms if delay is None and at is None else None
