"""Forgetting a group: it needs nothing any more, so its topics' messages may go.

What it committed goes out of `config/consumerOffset.json`, which a broker then reads as if the
group had never read. Its retry queue and that of its dead letters may have messages that only it
would ever read: of those the offsets go to the end instead, so that nothing keeps them.
"""

from __future__ import annotations

from timerstore.calls.consuming.constants import dead_topic
from timerstore.calls.consuming.consuming import Consuming
from timerstore.core.gate import inside
from timerstore.errors import InvalidArgumentError
from timerstore.timelog.bytes import format as fmt
from timerstore.values.arguments import check_group, check_topic_to_consume


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
        count += queues.next_index(row) - first - sum(index >= first for index in done)
    return max(0, count)


def _pass_all(consuming: Consuming, topic: str, group: str) -> None:
    """Have nothing of a queue needed that nobody else reads."""
    offsets, queues = consuming.core.offsets, consuming.core.engine.queues
    for row in queues.rows(topic.encode()):
        if queues.next_index(row) > queues.first_kept(row, consuming.core.engine.commitlog.start):
            queue_id = int(queues.table.queue_id[row])
            offsets.set(topic, group, queue_id, queues.next_index(row))
