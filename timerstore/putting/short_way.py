"""The short way of a single put: one compiled call.

`put` is called in loops, where Python's own cost shows: 15 µs for composing a message in Python,
below 2 for this. The kernel takes integers alone, addresses among them, and keeps the GIL, which is
a better lock among threads that put than any other. So what it waits for is only ever held by
kernels (see timelog/jit/locks.py), and whoever sets `short_way_ended`, with the GIL, knows that no
short put is under way, nor will be. Whatever is out of the ordinary, wrong arguments above all,
goes the long way, which says what is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from timerstore.arguments import DUE_MS_MAX, DUE_MS_MIN, EPOCH, encode_properties, whole_ms
from timerstore.errors import InvalidArgumentError
from timerstore.services.engine import Engine
from timerstore.services.state import ENQUEUE_GET, Callers, EnqueueGet
from timerstore.services.waking import wake_for
from timerstore.timelog.append import QUEUE_COUNT_MAX, QueueTable, Stage, append, new_stage
from timerstore.timelog.format import LEVEL_MARK
from timerstore.timelog.frame import TEMPLATE_LEVEL_MS, Template, frame_new, new_template
from timerstore.timelog.jit.entrypoint import entry_ahead, entry_point
from timerstore.timelog.jit.intrinsics import view_bytes
from timerstore.timelog.jit.kernel import INTERPRETED
from timerstore.timelog.jit.objects import BYTES_DATA_AT, OBJECTS_ARE_READABLE
from timerstore.timelog.jit.record import Words, observe, record, record_at
from timerstore.timelog.jit.system import clock_ms
from timerstore.timelog.segmenttable import SegmentTable
from timerstore.timelog.text import java_hash_of

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
    store_tag: int = 0
    eventfd: int = 0  # enqueue-get's
    unread_max: int = 0  # entries that enqueue-get has not read, where a put goes the long way


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
    level. `now_ms`: 0 where the kernel is to ask the clock.
    """
    place, template = _place_at(place_address), _template_at(template_address)
    if place.callers.short_way_ended != 0:  # closed, or being closed: nothing here is mapped
        return NEEDS_LONG_WAY
    level_ms = template.words[TEMPLATE_LEVEL_MS]
    unread = place.queues.next_index[0] - observe(place.enqueue_get, "fetched_index")
    if level_ms == 0 and unread >= place.unread_max:
        return NEEDS_LONG_WAY  # it has to wait for room, which must not be with the GIL
    if now_ms == 0:
        now_ms = clock_ms(place.clock)
    data, properties = view_bytes(body, body_bytes), view_bytes(extra, max(0, extra_bytes - 1))
    stage = place.stage  # the last property's end is framed
    frame_new(stage, 0, 0, template, data, properties, due_ms, now_ms, place.store_tag)
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

        `unread_max`: entries that enqueue-get has not read, where a put goes the long way.
        `is_open`: else every put does.
        """
        self._engine, self.body_bytes_max = engine, engine.content_bytes_max
        self._tag_digits = f"{engine.store_tag:08X}"
        self._stage = new_stage(4)
        self._place = PutPlace(
            engine.world.commitlog,
            engine.queues.table,
            self._stage,
            engine.append_lock.words,
            engine.world.callers,
            engine.world.enqueue_get,
            np.zeros(8, np.int64),
            store_tag=engine.store_tag,
            eventfd=engine.eventfds[ENQUEUE_GET],
            unread_max=unread_max,
        )
        self._place_address = int(self._place.block_address)  # type: ignore[attr-defined]
        self._templates: dict[tuple[str, int], Template] = {}
        self._addresses: dict[str, int] = {}  # of the templates without a level
        self._level_ms = [0, *engine.level_ms.tolist()]
        short = OBJECTS_ARE_READABLE and not INTERPRETED
        self.call = entry_point(_put_one, keeps_gil=True) if short else None
        self._is_open = is_open and self.call is not None

    def add(self, topic: str, level: int = 0) -> None:
        """Let a topic that was put to take the short way from now on."""
        known = (topic, level) in self._templates
        if known or not self._is_open or len(self._templates) >= TOPICS_MAX:
            return
        engine = self._engine
        self._templates[topic, level] = template = new_template(
            topic.encode(),
            level=level,
            level_ms=self._level_ms[level],
            level_row=engine.level_row(level) if level else 0,
            pending_row=engine.queues.row(topic.encode()) + (QUEUE_COUNT_MAX if level else 0),
            change=1,
            tags_code=0,
            extra=b"",
        )
        if not level:
            self._addresses[topic] = int(template.block_address)  # type: ignore[attr-defined]

    def put(
        self,
        topic: object,
        body: object,
        due_ms: object,
        now_ms: int = 0,
        extra: bytes = b"",
        tags_code: int = 0,
    ) -> str | None:
        """Put one timer and wake the services where they must see it; None: go the long way.

        `now_ms`: what the due time was reckoned from, else 0. `extra`: properties as they stand in
        a message.
        """
        address = self._addresses.get(topic) if type(topic) is str else None
        if address is None or type(body) is not bytes or type(due_ms) is not int:
            return None
        length, more = len(body), len(extra)
        if not (0 < length <= self.body_bytes_max - more and DUE_MS_MIN <= due_ms <= DUE_MS_MAX):
            return None
        offset = self.call(  # type: ignore[misc]
            self._place_address,
            address,
            id(body) + BYTES_DATA_AT,
            length,
            id(extra) + BYTES_DATA_AT,
            more,
            due_ms,
            tags_code,
            now_ms,
        )
        if offset < 0:
            return None
        return "%012X%012X%s" % (due_ms, offset, self._tag_digits)  # noqa: UP031

    def put_described(
        self,
        topic: object,
        body: object,
        delay: object,
        at: object,
        at_ms: object,
        key: str | None,
        tag: str | None,
        properties: Mapping[str, str] | None,
        level: object,
    ) -> str | None:
        """Put one timer or message of a level, as the arguments of `TimerStore.put` describe it.

        None: go the long way.
        """
        if not self._templates:
            return None
        if (delay is not None) + (at is not None) + (at_ms is not None) + (level is not None) > 1:
            return None
        now_ms = time.time_ns() // 1_000_000
        due_ms: object = now_ms
        try:
            if at_ms is not None:
                due_ms = at_ms
            elif type(delay) is timedelta:
                due_ms = now_ms + whole_ms(delay)
            elif isinstance(at, datetime):
                due_ms = whole_ms(at - EPOCH)
            elif delay is not None or at is not None:
                return None
            extra, tags_code = b"", 0
            if not (key is None and tag is None and properties is None):
                extra = encode_properties(key, tag, properties)
                if tag is not None:
                    tags_code = java_hash_of(tag)
        except (InvalidArgumentError, TypeError):  # the long way says which
            return None
        if level is not None:
            return self._put_at_level(topic, body, level, now_ms, extra)
        return self.put(topic, body, due_ms, now_ms, extra, tags_code)

    def _put_at_level(
        self, topic: object, body: object, level: object, now_ms: int, extra: bytes
    ) -> str | None:
        if type(topic) is not str or type(body) is not bytes or type(level) is not int:
            return None
        level = min(level, len(self._level_ms) - 1)
        template = self._templates.get((topic, level)) if level > 0 else None
        length, more = len(body), len(extra)
        if template is None or not 0 < length <= self.body_bytes_max - more:
            return None
        offset = self.call(  # type: ignore[misc]
            self._place_address,
            int(template.block_address),  # type: ignore[attr-defined]
            id(body) + BYTES_DATA_AT,
            length,
            id(extra) + BYTES_DATA_AT,
            more,
            level,
            0,
            now_ms,
        )
        if offset < 0:
            return None
        due_ms = now_ms + self._level_ms[level]
        return "%012X%012X%s" % (due_ms, offset | LEVEL_MARK, self._tag_digits)  # noqa: UP031
