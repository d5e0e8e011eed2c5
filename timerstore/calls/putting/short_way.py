"""The short way of a single put: one compiled call.

`put` is called in loops, so Python's own cost shows: composing a message takes 15 µs in Python,
below 2 here. The kernel takes only integers, most of them the addresses of objects that it reads or
writes where they are, and keeps the GIL, which is a better lock among threads that put than any
other. So what it waits for is only ever held by kernels (see timerstore/jit/locks.py), and a thread
that sets `short_way_ended`, with the GIL, knows that no short put is under way, nor will be. All
that is out of the ordinary goes the long way: wrong arguments, which it names, and a message that
is larger than a batch, because with the GIL no more than that is copied, to pages that may be new.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np

from timerstore.errors import InvalidArgumentError
from timerstore.jit.intrinsics import view_bytes
from timerstore.jit.kernel import INTERPRETED, caller_of, kernel_ahead_with_gil
from timerstore.jit.numpylayout import TEXT_DATA_AT
from timerstore.jit.objects import bytes_at, new_ascii_at, object_at
from timerstore.jit.record import Words, observe, record, record_at
from timerstore.jit.system import clock_ms
from timerstore.services.engine.engine import Engine
from timerstore.services.world.state import ENQUEUE_GET, Callers, EnqueueGet
from timerstore.services.world.world import wake_for
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import put_id
from timerstore.timelog.bytes.text import java_hash_of
from timerstore.timelog.files.segmenttable import SegmentTable
from timerstore.timelog.writing.append import (
    BATCH_BYTES,
    QUEUE_COUNT_MAX,
    QueueTable,
    Stage,
    append,
    new_stage,
)
from timerstore.timelog.writing.frame import NewSays, Template, frame_new, new_template
from timerstore.values.check_arguments import DUE_MS_MAX, DUE_MS_MIN, encode_properties
from timerstore.values.kinds import EPOCH, whole_ms
from timerstore.values.puts import Given

NEEDS_LONG_WAY: Final = 0
IS_PUT: Final = 1
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
    content_bytes_max: int = 0  # of body and what else describes it; more goes the long way
    bytes_kind: int = 0  # the address of `bytes`
    text_data_at: int = 0  # TEXT_DATA_AT


@record
class Way:
    """All that a put to one topic, or to one level of it, works on."""

    place: PutPlace
    template: Template


_way_at = record_at(Way)


@kernel_ahead_with_gil
def _put_one(
    way_address: int,
    body_object: int,
    extra_object: int,
    due_ms: int,
    tags_code: int,
    now_ms: int,
    id: int,
) -> int:
    """Append one message, and write its id: IS_PUT, or NEEDS_LONG_WAY and nothing done.

    `body_object`: the address of any object. `extra_object`: of bytes, properties as they stand in
    a message. `due_ms`: of a delay level's template the level. `now_ms`: 0 if the kernel is to ask
    the clock. `id`: the address of a new text, see `new_ascii_at`.
    """
    way = _way_at(way_address)
    place, template, callers = way.place, way.template, way.place.callers
    if callers.short_way_ended != 0 or callers.puts_paused != 0:  # closed: nothing here is mapped
        return NEEDS_LONG_WAY
    body, extra = bytes_at(body_object, place.bytes_kind), bytes_at(extra_object, place.bytes_kind)
    if len(body) == 0 or len(body) + len(extra) > place.content_bytes_max:
        return NEEDS_LONG_WAY
    level_ms = template.level_ms
    unread = place.queues.next_index[0] - observe(place.enqueue_get, "fetched_index")
    if level_ms == 0 and unread >= place.unread_max:
        return NEEDS_LONG_WAY  # it has to wait for room, which must not be with the GIL
    if now_ms == 0:
        now_ms = clock_ms(place.clock)
    stage = place.stage
    properties = view_bytes(extra.ctypes.data, max(0, len(extra) - 1))  # frame_new ends the last
    frame_new(stage, 0, 0, template, NewSays(body, properties, due_ms), now_ms)
    mark = 0
    if level_ms == 0:
        stage.tags_code[0] = tags_code
    else:  # its tags code says when it is due
        due_ms, mark = now_ms + level_ms, fmt.LEVEL_MARK
    done = append(place.commitlog, place.queues, place.append_lock, stage, 1, now_ms, True)
    if done == 0:
        return NEEDS_LONG_WAY
    wake_for(place.queues, place.enqueue_get, due_ms, place.eventfd, place.clock)
    put_id(
        new_ascii_at(id, place.text_data_at, fmt.KEY_DIGITS),
        0,
        due_ms,
        stage.offset[0] | mark,
        template.tag,
    )
    return IS_PUT


def template_of(engine: Engine, topic: bytes, level: int, **said: Any) -> Template:
    """Return a new template for a topic, of timers or of a delay level."""
    return new_template(
        topic,
        level=level,
        level_ms=int(engine.level_ms[level - 1]) if level else 0,
        tag=engine.store_tag,
        level_row=engine.level_row(level) if level else 0,
        pending_row=engine.queues.row(topic) + (QUEUE_COUNT_MAX if level else 0),
        change=1,
        **said,
    )


class ShortWay:
    """Puts to topics that were put to before."""

    def __init__(self, engine: Engine, unread_max: int, *, is_open: bool) -> None:
        """Prepare the stage that all threads share under the GIL.

        `unread_max`: if enqueue-get has not read so many entries, a put goes the long way.
        `is_open`: else every put does.
        """
        self._engine = engine
        self._place = PutPlace(
            engine.world.commitlog,
            engine.queues.table,
            new_stage(4),
            engine.world.append_lock,
            engine.world.callers,
            engine.world.enqueue_get,
            np.zeros(8, np.int64),
            eventfd=engine.eventfds[ENQUEUE_GET],
            unread_max=unread_max,
            content_bytes_max=min(engine.content_bytes_max, BATCH_BYTES),
            bytes_kind=object_at(bytes),
            text_data_at=TEXT_DATA_AT,
        )
        self._ways: dict[object, Way] = {}
        """By topic, or by topic and level."""
        self._addresses: dict[object, int] = {}
        self.call = None if INTERPRETED else caller_of(_put_one)
        self._is_open = is_open and self.call is not None
        half = "0" * (fmt.KEY_DIGITS // 2)
        self._id_halves = half, half
        """Joined, they are a new text."""

    def add(self, topic: str, level: int = 0) -> None:
        """Let a topic that was put to take the short way from now on."""
        where: object = (topic, level) if level else topic
        known = where in self._ways
        if known or not self._is_open or len(self._ways) >= TOPICS_MAX:
            return
        template = template_of(self._engine, topic.encode(), level, tags_code=0, extra=b"")
        self._ways[where] = way = Way(self._place, template)
        self._addresses[where] = int(way.block_address)  # type: ignore[attr-defined]

    def put(self, given: Given, extra: bytes = b"", tags_code: int = 0) -> str | None:
        """Put one timer, wake the services if they must see it; None: go the long way.

        `given`: the fields of a `Put`. `extra`: what else describes it, as it stands in a message;
        `tags_code`: its tag.
        """
        if not self._addresses:
            return None
        body, topic, delay, at, due_ms, key, tag, properties, level, if_absent, how, until = given
        if if_absent is not False or how is not False or until is not None:
            return None
        if type(topic) is not str:
            return None
        where: object = topic
        now_ms = 0  # the kernel asks the clock
        if due_ms is None or not (delay is None and at is None and level is None):
            now_ms = time.time_ns() // 1_000_000
            due_ms = self._due_ms(now_ms, delay, at, due_ms, level)
            where = topic if level is None else (topic, due_ms)
        address = self._addresses.get(where)
        if address is None or type(due_ms) is not int:
            return None
        if level is None and not DUE_MS_MIN <= due_ms <= DUE_MS_MAX:
            return None
        if not (key is None and tag is None and properties is None):
            try:
                extra = encode_properties(key, tag, properties)
            except InvalidArgumentError:  # the long way says so
                return None
            tags_code = 0 if tag is None else java_hash_of(tag)
        first, second = self._id_halves
        timer_id = first + second
        done = self.call(  # type: ignore[misc]
            address, id(body), id(extra), due_ms, tags_code, now_ms, id(timer_id)
        )
        return timer_id if done else None

    def _due_ms(self, now_ms: int, delay: object, at: object, at_ms: object, level: object) -> Any:
        """Return when a timer is due, or at which level it is put; None: the long way says."""
        if (delay is not None) + (at is not None) + (at_ms is not None) + (level is not None) > 1:
            return None
        if level is not None:
            if type(level) is not int or level < 1:
                return None
            return min(level, len(self._engine.level_ms))
        if type(delay) is timedelta:
            return now_ms + whole_ms(delay)
        if type(at) is datetime:
            return whole_ms(at - EPOCH) if at.utcoffset() is not None else None
        return now_ms if delay is None and at is None else None
