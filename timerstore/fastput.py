"""The short way of a single put: one compiled call.

A plain `put(body, at_ms=…)` is called in loops, where Python's own cost shows: 15 µs for composing
a message in Python, below 2 for this. The kernel takes integers alone, addresses among them, and
keeps the GIL, which is a better lock among threads that put than any other. So what it waits for
is only ever held by kernels (see timelog/locks.py), and whoever sets `short_way_ended`, with the
GIL, knows that no short put is under way, nor will be. Whatever is not plain goes the long way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np
from numba import types
from numba.core.extending import intrinsic

from timerstore.arguments import DUE_MS_MAX, DUE_MS_MIN
from timerstore.objects import BYTES_DATA_AT, OBJECTS_ARE_READABLE
from timerstore.services.state import ENQUEUE_GET, Callers, EnqueueGet
from timerstore.services.steps import WAKE_COUNT
from timerstore.timelog.append import QueueTable, Stage, append, new_stage
from timerstore.timelog.frame import Template, frame_new
from timerstore.timelog.intrinsics import view_bytes
from timerstore.timelog.kernel import INTERPRETED, stamped
from timerstore.timelog.record import Words, add_to_word, exchange_word, observe, record
from timerstore.timelog.segments import SegmentTable
from timerstore.timelog.system import clock_ms, wake

if TYPE_CHECKING:
    from timerstore.services.engine import Engine

NEEDS_LONG_WAY: Final = -1


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


@intrinsic
def _place_at(typingctx: Any, address: Any) -> Any:
    return PutPlace.numba_type(types.int64), lambda context, builder, sig, args: args[0]  # type: ignore[attr-defined]


@intrinsic
def _template_at(typingctx: Any, address: Any) -> Any:
    return Template.numba_type(types.int64), lambda context, builder, sig, args: args[0]  # type: ignore[attr-defined]


def _put_one(
    place_address: int,
    template_address: int,
    body: int,
    body_bytes: int,
    due_ms: int,
    tag: int,
    eventfd: int,
    unread_max: int,
) -> int:
    """Append one timer; return its offset, or NEEDS_LONG_WAY and nothing done."""
    place, template = _place_at(place_address), _template_at(template_address)
    no_extra = view_bytes(0, 0)
    data = view_bytes(body, body_bytes)
    if place.callers.short_way_ended != 0:  # closed, or being closed: nothing here is mapped
        return NEEDS_LONG_WAY
    if place.queues.next_index[0] - observe(place.enqueue_get, "fetched_index") >= unread_max:
        return NEEDS_LONG_WAY  # it has to wait for room, which must not be with the GIL
    now_ms = clock_ms(place.clock)
    frame_new(place.stage, 0, 0, template, data, no_extra, due_ms, now_ms, tag)
    done = append(place.commitlog, place.queues, place.append_lock, place.stage, 1, now_ms, True)
    if done == 0:
        return NEEDS_LONG_WAY
    thread = place.enqueue_get.thread
    # A load behind the append, never before it.
    until_ms = add_to_word(thread, "sleeping_until_ms", 0)
    behind = place.stage.index[0] - place.enqueue_get.fetched_index
    if until_ms != 0 and (due_ms < until_ms or behind >= WAKE_COUNT):
        if exchange_word(thread, "sleeping_until_ms", 0) != 0:  # else somebody else wakes it
            wake(eventfd, place.clock)
    return place.stage.offset[0]


def _compile() -> Callable[..., int] | None:
    """Return the kernel's bare entry point, which saves Numba's dispatcher 400 ns a call."""
    if INTERPRETED or not OBJECTS_ARE_READABLE:
        return None
    dispatcher: Any = numba.njit(cache=True, error_model="numpy", _nrt=False)(_put_one)
    stamped(dispatcher, _put_one)
    dispatcher.compile((types.int64,) * 8)
    entry = getattr(dispatcher.overloads.get((types.int64,) * 8), "entry_point", None)
    return entry if callable(entry) else dispatcher


class FastPutter:
    """Puts plain timers of topics that were put to before."""

    _entry: Callable[..., int] | None = None

    def __init__(self, engine: Engine, unread_max: int) -> None:
        """Prepare the stage that all threads share under the GIL.

        `unread_max`: entries that enqueue-get has not read, where a put goes the long way.
        """
        self._unread_max = unread_max
        self.body_bytes_max = engine.content_bytes_max
        self._eventfd, self._tag = engine.eventfds[ENQUEUE_GET], engine.store_tag
        self._tag_digits = f"{engine.store_tag:08X}"
        self._stage = new_stage(4)
        self._place = PutPlace(
            engine.commitlog.table,
            engine.queues.table,
            self._stage,
            engine.append_lock.words,
            engine.world.callers,
            engine.world.enqueue_get,
            np.zeros(8, np.int64),
        )
        self._place_address = int(self._place.block_address)  # type: ignore[attr-defined]
        self._templates: dict[str, tuple[Template, int]] = {}
        if FastPutter._entry is None:
            FastPutter._entry = _compile()
        self.call = FastPutter._entry

    def add(self, topic: str, template: Template) -> None:
        """Remember the template of a topic without a tag."""
        if self.call is not None and len(self._templates) < 1_024:
            self._templates[topic] = template, int(template.block_address)  # type: ignore[attr-defined]

    def put(self, topic: str, body: object, at_ms: object) -> str | None:
        """Put one timer and wake the services where they must see it; None: go the long way."""
        found = self._templates.get(topic) if type(topic) is str else None
        if found is None or type(body) is not bytes or type(at_ms) is not int:
            return None
        length = len(body)
        if not (0 < length <= self.body_bytes_max and DUE_MS_MIN <= at_ms <= DUE_MS_MAX):
            return None
        offset = self.call(  # type: ignore[misc]
            self._place_address,
            found[1],
            id(body) + BYTES_DATA_AT,
            length,
            at_ms,
            self._tag,
            self._eventfd,
            self._unread_max,
        )
        if offset < 0:
            return None
        return "%012X%012X%s" % (at_ms, offset, self._tag_digits)  # noqa: UP031
