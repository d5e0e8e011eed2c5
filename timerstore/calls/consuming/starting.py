"""Where a new group begins, and a group that will not read again."""

from __future__ import annotations

from typing import Literal

from timerstore.calls.consuming.constants import dead_topic
from timerstore.calls.consuming.consuming import Consuming
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.core.offsets import gaps
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import decode_message
from timerstore.values.check_arguments import check_due_ms, check_group, check_topic_to_consume

Start = Literal["earliest", "latest"] | int


def check_start(start: Start) -> Start:
    """Return a place to start, or refuse it."""
    if not isinstance(start, str):
        return check_due_ms(start, "start")
    if start not in ("earliest", "latest"):
        raise InvalidArgumentError(
            f'start is {start!r}. Use "earliest", "latest", or epoch milliseconds.'
        )
    return start


@inside
def begin_groups(consuming: Consuming, pairs: list[tuple[str, str]], start: Start) -> None:
    """Give each (topic, group) that never read its topic a first offset; durable on return.

    A queue that comes into being later is read from its beginning: all in it came after this.
    """
    core = consuming.core
    core.check_open()
    consuming.write_offsets()  # those that read just now are not new
    for topic, group in pairs:
        if core.offsets.is_new(topic, group):
            core.offsets.set(topic, group, 0, 0)
            for row in core.engine.queues.rows(topic.encode()):
                queue_id = int(core.engine.queues.table.queue_id[row])
                core.offsets.set(topic, group, queue_id, first_index(core, row, start))
    core.offsets.write()


def first_index(core: Core, row: int, start: Start) -> int:
    """Return the index in a queue that a new group reads first. O(log entries) for a time."""
    queues = core.engine.queues
    low, high = queues.first_kept(row, core.engine.commitlog.start), queues.next_index(row)
    if start == "earliest":
        return low
    if start == "latest":
        return high
    while low < high:
        middle = (low + high) // 2
        if _stored_ms(core, int(queues.read(row, middle, 1)[0]["offset"])) < start:
            low = middle + 1
        else:
            high = middle
    return low


def _stored_ms(core: Core, offset: int) -> int:
    """Return when a message was stored; one that cannot be read is taken for a late one."""
    try:
        view = core.engine.commitlog.view(offset)
        return decode_message(view, offset).stored_ms
    except CorruptStoreError:
        return 1 << 62


# --- a group that will not read again
#
# What it committed goes out of `config/consumerOffset.json`, which a broker then reads as if the
# group had never read. Its retry queue and that of its dead letters may have messages that only it
# would ever read: of those the offsets go to the end instead, so that nothing keeps them.


@inside
def forget_group(consuming: Consuming, group: str, topic: str | None = None) -> int:
    """Forget what a group read, of one topic or of all; see `TimerStore.forget_group`."""
    core = consuming.core
    core.check_writable()
    check_group(group)
    if topic is not None:
        check_topic_to_consume(topic)
    consuming.write_offsets()  # what a put has acknowledged is known to the file from now on
    own = fmt.RETRY_PREFIX.decode() + group, dead_topic(group)
    with consuming.changing_offsets():
        known = {pair for pair in consuming.known_pairs() if pair[1] == group}
        wanted = {pair for pair in known if topic in (None, pair[0])}
        for pair in sorted(wanted):
            _check_idle(consuming, *pair)
        if topic is None and (count := _letter_count(consuming, group)):
            raise InvalidArgumentError(
                f"The group {group!r} has {count:,} dead letters. Put them back "
                "(retry_dead_letters) or drop them (drop_dead_letters) first."
            )
        if wanted and topic is None:
            wanted |= {(each, group) for each in own}
        for pair in wanted:
            consuming.forget(*pair)
            if pair[0] in own:
                _pass_all(consuming, *pair)
        if topic is None and group in core.switches.groups():
            core.switches.clear("consuming", group)
        core.offsets.write()
    consuming.write_tallies(at_once=True)
    return sum(each not in own for each, _ in wanted)


def _check_idle(consuming: Consuming, topic: str, group: str) -> None:
    """Refuse to forget a group that reads a topic at the moment."""
    if not consuming.is_read(topic, group):
        return
    raise InvalidArgumentError(
        f"The group {group!r} reads the topic {topic!r} at the moment. Close its consumers, and "
        "acknowledge or give back what was pulled; then forget it."
    )


def _letter_count(consuming: Consuming, group: str) -> int:
    """Return how many dead letters wait."""
    topic, queues, count = dead_topic(group), consuming.core.engine.queues, 0
    for row in queues.rows(topic.encode()):
        first, done = consuming.not_done(topic, group, row)
        first = max(first, queues.first_kept(row, consuming.core.engine.commitlog.start))
        count += sum(stop - start for start, stop in gaps(first, queues.next_index(row), done))
    return count


def _pass_all(consuming: Consuming, topic: str, group: str) -> None:
    """Have nothing of a queue needed that nobody else reads."""
    offsets, queues = consuming.core.offsets, consuming.core.engine.queues
    for row in queues.rows(topic.encode()):
        if queues.next_index(row) > queues.first_kept(row, consuming.core.engine.commitlog.start):
            queue_id = int(queues.table.queue_id[row])
            offsets.set(topic, group, queue_id, queues.next_index(row))
