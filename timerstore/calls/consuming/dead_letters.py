"""Dead letters: what a group gave up, to be looked at, put back, or dropped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from timerstore.calls.consuming.consuming import Consuming
from timerstore.calls.consuming.cursors import QueueCursor
from timerstore.calls.consuming.delivery import (
    LISTED_MAX,
    dead_topic,
    error_of,
    first_failed_ms,
    part_of,
    trace_id,
)
from timerstore.calls.consuming.groupreader import read_queued
from timerstore.calls.consuming.sendback import send_to, wait_durable
from timerstore.core.gate import inside
from timerstore.core.offsets import gaps
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message, user_properties
from timerstore.values.amounts import Moment
from timerstore.values.check_arguments import check_group
from timerstore.values.kinds import check_int, check_names

_AT_ONCE: Final = 256
"""Dead letters that are appended together, with one fsync, before their offset is committed."""
_RETRY_TOPIC: Final = fmt.PROPERTY_RETRY_TOPIC.decode()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up.

    `id`: the one that its put returned. `topic`: the one that it was put to. `attempts`: how often
    it was handled. `died_ms`: when it was given up, its last failure; `first_failed_ms`: its first,
    None if that is not known. `error_type`, `error_text`: the exception that the last attempt
    raised, shortened; or `timeout`, or `retry` for a `Retry` that it returned; "" if it does not
    say. `trace_id`: of the trace that it was put in, if it carries one.
    """

    id: str
    topic: str
    body: bytes
    key: str | None
    tag: str | None
    properties: dict[str, str]
    attempts: int
    died_ms: int
    first_failed_ms: int | None
    error_type: str
    error_text: str
    trace_id: str | None

    died = Moment[datetime]("When it was given up, in UTC.")
    first_failed = Moment[datetime | None]("When it failed first, in UTC.")


@inside
def list_dead_letters(
    consuming: Consuming, group: str, limit: int | None = LISTED_MAX, skip: int = 0
) -> list[DeadLetter]:
    """Return a group's dead letters, the oldest first; see `TimerStore.dead_letters`."""
    check_group(group)
    left = sys.maxsize if limit is None else check_int(limit, "limit", 0, sys.maxsize)
    skip = check_int(skip, "skip", 0, sys.maxsize)
    consuming.core.check_open()
    return [_shown(message) for _, _, message in islice(_waiting(consuming, group, skip), left)]


def retry_dead_letters(
    consuming: Consuming,
    group: str,
    limit: int | None = None,
    ids: Collection[str] | None = None,
) -> int:
    """Put a group's dead letters back, `limit` at most, or those with these ids; return how many.

    What dies meanwhile is left: a consumer that fails at once would have no end of it.

    Each comes to the group again, to no other one, at once, with its id, as attempt 0. It is
    appended first, durably, then that it is done is kept, durably too. A crash between the two
    doubles what was appended: up to 256 messages, with the same ids. Letters that somebody is
    reading under the group's own name are left as they are. O(dead letters) with `ids`. Raises
    StoreFullError.
    """
    retries = fmt.RETRY_PREFIX + check_group(group).encode()

    def put_back(message: Message) -> None:
        send_to(consuming.putting, retries, message, 0, wait=False)

    return _settle(consuming, group, limit, ids, put_back)


def drop(
    consuming: Consuming,
    group: str,
    limit: int | None = None,
    ids: Collection[str] | None = None,
) -> int:
    """Give a group's dead letters up for good, as many as `retry_dead_letters` would put back.

    Durable on return. Letters that somebody is reading under the group's own name are left as they
    are.
    """
    check_group(group)
    return _settle(consuming, group, limit, ids, lambda _: None)


@inside
def _settle(
    consuming: Consuming,
    group: str,
    limit: int | None,
    ids: Collection[str] | None,
    act: Callable[[Message], None],
) -> int:
    """Act on dead letters, then have them done, durably; return how many."""
    left = sys.maxsize if limit is None else check_int(limit, "limit", 0, sys.maxsize)
    wanted = None if ids is None else set(check_names(ids, "ids"))
    consuming.core.check_writable()
    letters = _waiting(consuming, group)
    if wanted is not None:
        letters = (each for each in letters if _id_of(each[2]) in wanted)
    reader, count = consuming.group(dead_topic(group), group), 0
    reader.has_hidden()  # it knows its queues now
    while part := part_of(letters, min(left - count, _AT_ONCE), lambda each: each[2].body):
        consuming.core.check_open()
        done: list[tuple[QueueCursor, int]] = []
        try:
            for row, index, message in part:
                cursor = reader.cursors.get(row)
                if cursor is None:  # its queue was made just now
                    continue
                with reader.lock.guard():
                    is_taken = cursor.take(index)
                if not is_taken:
                    continue
                try:
                    act(message)
                except BaseException:
                    with reader.lock.guard():
                        cursor.take_back(reader.topic, index, index + 1)
                    raise
                done.append((cursor, index))
        finally:
            _make_durable(consuming)
            with reader.lock.guard():
                for cursor, index in done:
                    cursor.settle(index, index + 1)
            consuming.write_offsets()
        count += len(done)
    return count


def _make_durable(consuming: Consuming) -> None:
    """Make durable what was appended, because the offsets file will be durable."""
    wait_durable(consuming.putting)
    consuming.core.flusher.sync_log()


def _waiting(consuming: Consuming, group: str, skip: int = 0) -> Iterator[tuple[int, int, Message]]:
    """Yield the dead letters that are not done, with row and index; what is damaged is reported.

    The first `skip` are not read, so that a damaged one counts as well. What comes once this has
    begun is left out.
    """
    core, topic = consuming.core, dead_topic(group)
    rows = core.engine.queues.rows(topic.encode())
    for row, end in [(row, core.engine.queues.next_index(row)) for row in rows]:
        index, done = consuming.not_done(topic, group, row)
        if skip:  # else who reads looks where it is
            index = max(index, core.engine.queues.first_kept(row, core.engine.commitlog.start))
        for start, stop in gaps(index, end, done):
            skipped = min(skip, stop - start)
            skip -= skipped
            for at, message in read_queued(core, row, start + skipped, stop):
                yield row, at, message


def _id_of(message: Message) -> str:
    return message.properties.get("UNIQ_KEY", "")


def _shown(message: Message) -> DeadLetter:
    error_type, error_text = error_of(message.properties)
    return DeadLetter(
        id=_id_of(message),
        topic=message.properties.get(_RETRY_TOPIC, ""),
        body=message.body,
        key=message.properties.get("KEYS"),
        tag=message.properties.get("TAGS"),
        properties=user_properties(message.properties),
        attempts=message.reconsume_times,
        died_ms=message.stored_ms,
        first_failed_ms=first_failed_ms(message.properties),
        error_type=error_type,
        error_text=error_text,
        trace_id=trace_id(message.properties),
    )
