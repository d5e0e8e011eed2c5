"""What fires, as it fires: read from the queues without consuming it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from timerstore.calls.consuming.read_queue import read_queued
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.errors import InvalidArgumentError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message, user_properties
from timerstore.timelog.writing.compose import ACKS_TOPIC
from timerstore.values.kinds import check_int, check_name
from timerstore.values.moments import moment

FIRED_MAX: Final = 10_000
"""Messages of one call at most."""
_OWN: Final = (fmt.TIMER_TOPIC, fmt.LEVEL_TOPIC, ACKS_TOPIC)
_PREFIXES: Final = (fmt.RETRY_PREFIX, fmt.DEAD_PREFIX)

Places = dict[str, int]
"""Of each queue, by its folder's name, the index of the next message."""


@dataclass(frozen=True, slots=True)
class Fired:
    """A message that a timer became; `attempt` counts from 0."""

    id: str
    topic: str
    due_ms: int
    fired_ms: int
    key: str | None
    tag: str | None
    properties: dict[str, str]
    attempt: int
    body: bytes

    @property
    def due(self) -> datetime:
        """When it was due, in UTC."""
        return moment(self.due_ms)

    @property
    def fired(self) -> datetime:
        """When it fired, in UTC."""
        return moment(self.fired_ms)


@dataclass(frozen=True, slots=True)
class FiredNow:
    """What fired since the last look: `messages` in the order in which they fired.

    `next`: from where the next look goes on. `skipped_count`: messages that came too fast, or were
    removed, to be shown.
    """

    messages: tuple[Fired, ...]
    next: Places
    skipped_count: int


@inside
def read_fired(
    core: Core, after: Places | None = None, topic: str | None = None, limit: int = 1_000
) -> FiredNow:
    """Return what fired behind `after`, the newest `limit`; without it, the last `limit`.

    Of one topic, or of all but retries and dead letters. O(queues + limit for each queue with
    something new). What cannot be read is left out, and named in the log.
    """
    core.check_open()
    check_int(limit, "limit", 0, FIRED_MAX)
    if after is not None and not isinstance(after, dict):
        raise InvalidArgumentError(
            f"after is {after!r}. Pass the `next` that the previous call returned."
        )
    wanted = None if topic is None else check_name(topic)
    queues, places, found, count = core.engine.queues, Places(), list[Message](), 0
    for row, name in enumerate(queues.topics):
        if wanted is None and (name in _OWN or name.startswith(_PREFIXES)):
            continue
        if wanted is not None and name != wanted:
            continue
        folder, end = queues.name(row), queues.next_index(row)
        places[folder] = end
        start = 0 if after is None else min(end, int(after.get(folder, 0)))
        count += 0 if after is None else end - start
        newest = read_queued(core, row, max(start, end - limit), end)
        found += [message for _, message in newest]
    found.sort(key=lambda each: each.stored_ms)
    shown = found[-limit:] if limit else []
    return FiredNow(tuple(map(_shown, shown)), places, max(0, count - len(shown)))


def _shown(message: Message) -> Fired:
    properties: dict[str, Any] = message.properties
    due = properties.get("TIMER_OUT_MS", "")
    return Fired(
        id=properties.get("UNIQ_KEY", ""),
        topic=message.topic,
        due_ms=int(due) if due.isascii() and due.isdigit() else message.stored_ms,
        fired_ms=message.stored_ms,
        key=properties.get("KEYS"),
        tag=properties.get("TAGS"),
        properties=user_properties(properties),
        attempt=message.reconsume_times,
        body=message.body,
    )
