"""The short way of a call on one timer by its id, `get`, `cancel` or `reschedule`.

What is out of the ordinary (a delay level's message, a broker's key, a timer that may have been
taken, or may have rolled, a segment that is not mapped) goes the long way, `get.py`, `cancel.py`,
`reschedule.py`.
"""

from __future__ import annotations

from typing import Final

from timerstore.errors import CorruptStoreError
from timerstore.ground.ids import ID_DIGITS, format_id
from timerstore.pending.moved import Payload, encode_described
from timerstore.pending.timers import Timer, from_parts
from timerstore.services.calls import by_id
from timerstore.services.calls.by_id import (
    Kernels,
    Place,
    new_place,
)
from timerstore.services.calls.cancel_ahead import CANCELLED_BEFORE, CANCELLED_NOW, NOT_JUDGED
from timerstore.services.calls.deletes import delete_template
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.timer_parts import (
    SPAN_PROPERTIES,
    SPAN_PROPERTIES_END,
    SPAN_ROW,
    SPAN_TAG,
    SPAN_TAG_END,
)
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import decode_properties, text
from timerstore.timelog.bytes.limits import DESCRIPTION_BYTES_MAX
from timerstore.timelog.bytes.message import MessageParts
from timerstore.timelog.bytes.text import java_hash_of
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.writing.frame import Template, encode_property, new_template

TOPICS_MAX: Final = 1_024
"""Topics whose template of a delete is kept: 1 KB each."""


def _described(
    log: SegmentedFile, found: MessageParts, part: list[int], payload: Payload, offset: int
) -> tuple[int, bytes]:
    """Return the tag as a number, and what describes it, of what comes in a message's place."""
    own = payload.properties
    properties_at, stop = part[SPAN_PROPERTIES], part[SPAN_PROPERTIES_END]
    is_plain = own is None and part[SPAN_ROW] >= 0 and found.whole_crc == 1
    start, end = found.usual_end, stop - fmt.CRC_PROPERTY_BYTES
    if is_plain and start == end:
        return 0, b""
    view = log.existing(offset // log.segment_bytes).view
    if is_plain:  # nothing else stands there
        described = view[start:end].tobytes()
        tag = view[part[SPAN_TAG] : part[SPAN_TAG_END]].tobytes() if part[SPAN_TAG] >= 0 else b""
        return java_hash_of(text(tag)), described
    properties = decode_properties(view[properties_at:stop].tobytes())
    if own is not None:
        properties = {k: v for k, v in properties.items() if k in ("TAGS", "KEYS")} | dict(own)
    if not payload.keeps_tag:
        properties.pop("TAGS", None)
        properties |= {} if payload.tag is None else {"TAGS": payload.tag}
    return java_hash_of(properties.get("TAGS", "")), encode_described(properties)


class ById:
    """The short way into one engine; any number of threads may use it."""

    def __init__(self, engine: Engine) -> None:
        """Begin with no topic known."""
        self._engine, self._tag, self._kernels = engine, engine.store_tag, Kernels()
        self._uncounted = engine.uncounted
        self._places: list[Place] = []
        self._topics: dict[int, str] = {}
        self._templates: dict[int, tuple[Template, Template]] = {}
        self._delete = delete_template(b"t", -1, self._tag)  # for the topic that came last

    def cancel(self, id: object, now_ms: int) -> bool | None:
        """Cancel a timer that lies ahead: True, or False if it is too late; None: the long way.

        Its delete is not durable yet.
        """
        verdict, due_ms = self._cancel(id, now_ms)
        if verdict == CANCELLED_BEFORE:
            return due_ms > now_ms
        return True if verdict == CANCELLED_NOW else None

    def cancel_once(self, id: object, now_ms: int) -> bool | None:
        """Do the same; False if it had been cancelled before."""
        verdict, _ = self._cancel(id, now_ms)
        return None if verdict == NOT_JUDGED else verdict == CANCELLED_NOW

    def _cancel(self, id: object, now_ms: int) -> tuple[int, int]:
        """Return the kernel's verdict, and when the timer is due."""
        digits = self._digits_of(id)
        if digits is None:
            return NOT_JUDGED, 0
        place = self._take()
        try:
            with self._engine.commitlog.reading():
                verdict = self._kernels.cancel(place, self._delete, digits, now_ms)
                if verdict <= by_id.OTHER_TOPIC:
                    _, delete = self._templates_of(by_id.OTHER_TOPIC - verdict)
                    verdict = self._kernels.cancel(place, delete, digits, now_ms)
            return verdict, int(place.told[by_id.TOLD_DUE_MS]) if verdict == CANCELLED_BEFORE else 0
        finally:
            self._places.append(place)

    def get(self, id: object) -> Timer | None:
        """Return a pending timer; None: go the long way."""
        digits = self._digits_of(id)
        if digits is None:
            return None
        log = self._engine.commitlog
        place = self._take()
        try:
            with self._engine.commitlog.reading():
                if self._kernels.get(place, digits) != by_id.PENDING:
                    return None
                *part, due_ms, offset, row, _ = place.told.tolist()
                topic = self._topics.get(row)
                if topic is None:
                    topic = self._topics[row] = text(self._engine.queues.topics[row])
                view = log.existing(offset // log.segment_bytes).view
                return from_parts(view, part, id, topic, due_ms)  # type: ignore[arg-type]
        except CorruptStoreError:
            return None  # its segment was removed just now
        finally:
            self._places.append(place)

    def is_pending(self, id: object) -> bool | None:
        """Tell whether a timer is pending; None: go the long way."""
        digits = self._digits_of(id)
        if digits is None:
            return None
        place = self._take()
        try:
            with self._engine.commitlog.reading():
                verdict = self._kernels.get(place, digits)
                return None if verdict == NOT_JUDGED else verdict >= by_id.PENDING
        finally:
            self._places.append(place)

    def reschedule(self, id: object, due_ms: int, now_ms: int, payload: Payload) -> str | None:
        """Move a timer that lies ahead; return its new id, or None: go the long way.

        Neither message is durable yet.
        """
        digits = self._digits_of(id)
        if digits is None:
            return None
        engine, log = self._engine, self._engine.commitlog
        place = self._take()
        found = place.found
        try:
            with self._engine.commitlog.reading():
                if self._kernels.get(place, digits) < by_id.PENDING:
                    return None
                told = place.told.tolist()
                body, old = payload.body, told[by_id.TOLD_OFFSET]
                tags_code, described = _described(log, found, told, payload, old)
                if payload.properties is not None and len(described) > DESCRIPTION_BYTES_MAX:
                    return None
                body_bytes = found.body_bytes if body is None else len(body)
                if body_bytes + len(described) > engine.content_bytes_max:
                    return None
                extra = encode_property(fmt.PROPERTY_REPLACES, digits) + described
                templates = self._templates_of(told[by_id.TOLD_ROW])
                offset = self._kernels.reschedule(
                    place, templates, due_ms, body, extra, tags_code, now_ms
                )
            return format_id(due_ms, int(offset), self._tag) if offset != NOT_JUDGED else None
        except CorruptStoreError:
            return None  # its segment was removed just now
        finally:
            self._places.append(place)

    def _digits_of(self, id: object) -> bytes | None:
        """Return what may be the digits of an id; None if it cannot be one of ours.

        None as well while it is known that messages are damaged: a later copy may be one of them,
        which the long way looks for.
        """
        if type(id) is not str or len(id) != ID_DIGITS or not id.isascii() or self._uncounted:
            return None
        return id.encode()

    def _take(self) -> Place:
        """Return what one call at a time works with."""
        try:
            return self._places.pop()
        except IndexError:
            return new_place(self._engine.world)

    def _templates_of(self, row: int) -> tuple[Template, Template]:
        """Return those of a timer and of a delete for a topic, by its queue's row."""
        found = self._templates.get(row)
        if found is None:
            if len(self._templates) >= TOPICS_MAX:
                self._templates.clear()
            topic = self._engine.queues.topics[row]
            timer = new_template(
                topic, tag=self._tag, pending_row=row, change=1, tags_code=0, extra=b""
            )
            found = self._templates[row] = timer, delete_template(topic, row, self._tag)
        self._delete = found[1]
        return found
