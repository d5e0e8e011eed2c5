"""Whether a call that an earlier owner did not answer was made: the log's tail tells.

A put through a client carries the name of the connection that it came by (`PUT_BY`), on which one
call is under way at a time. What that name put behind the place that the log had reached when the
call began is therefore what this very call put, whichever process owned the store then. A moved
timer names the one in whose place it came. Cleaning and rolling copy both names, and the id, which
says where the first put stood; so a copy tells the same.

What has fired, was consumed and removed is not there any more. If the log begins behind that place
and something is missing, nobody knows whether it was put. Then it is not put again.
"""

from __future__ import annotations

from collections.abc import Iterator

from timerstore.calls.consuming.read_queue import read_queued
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.errors import StoreClosedError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message
from timerstore.values.ids import TimerId, parse_id

_PUT_BY, _REPLACES = fmt.PROPERTY_PUT_BY.decode(), fmt.PROPERTY_REPLACES.decode()


@inside
def find_put_by(core: Core, name: str, since: int, count: int) -> list[TimerId]:
    """Return what a name put behind an offset of the log, `count` timers at most, in their order.

    O(messages behind it). Raises StoreClosedError if that is not known.
    """
    core.check_open()
    found = {id for id, message in _puts(core, since) if message.properties.get(_PUT_BY) == name}
    if len(found) < count:
        _check_kept(core, since)
    return sorted(found, key=lambda id: id.offset & ~fmt.LEVEL_MARK)


@inside
def find_moved(core: Core, id: str, due_ms: int | None, since: int) -> str | None:
    """Return the id of the timer that came in another one's place behind an offset.

    `due_ms`: it is due then; None: whenever. Raises StoreClosedError if that is not known.
    """
    core.check_open()
    for moved, message in _puts(core, since):
        if message.properties.get(_REPLACES) == id and due_ms in (None, moved.due_ms):
            return message.properties["UNIQ_KEY"]
    _check_kept(core, since)
    return None


def _check_kept(core: Core, since: int) -> None:
    """Refuse to guess what stood in a part of the log that was removed."""
    if core.engine.commitlog.start > since:
        raise StoreClosedError(
            f"The process that had {core.path} open ended before it answered, and the part of "
            "the log that would show its last calls was removed. It may have made the call: "
            "check that, then try again."
        )


def _puts(core: Core, since: int) -> Iterator[tuple[TimerId, Message]]:
    """Yield what was put behind an offset: the message itself, and its copies that wait."""
    queues, tag = core.engine.queues, core.engine.store_tag
    for topic in (fmt.TIMER_TOPIC, fmt.LEVEL_TOPIC):
        for row in queues.rows(topic):
            stop = queues.next_index(row)
            for _, message in read_queued(core, row, _first_behind(core, row, since), stop):
                id = parse_id(message.properties.get("UNIQ_KEY", ""))
                if id is not None and id.tag == tag and id.offset & ~fmt.LEVEL_MARK >= since:
                    yield id, message


def _first_behind(core: Core, row: int, since: int) -> int:
    """Return the index of a queue's first entry that lies at an offset or behind it. O(log)."""
    queues = core.engine.queues
    low, high = queues.first_kept(row, core.engine.commitlog.start), queues.next_index(row)
    while low < high:
        middle = (low + high) // 2
        if int(queues.read(row, middle, 1)[0]["offset"]) < since:
            low = middle + 1
        else:
            high = middle
    return low
