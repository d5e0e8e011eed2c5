"""Statistics of a consumer: how much it handles, how far its group is behind."""

from __future__ import annotations

from dataclasses import dataclass

from timerstore.consumer.handling import Handling
from timerstore.consumer.subscription import Subscription
from timerstore.consuming.consuming import Consuming
from timerstore.core import Core
from timerstore.inside import inside
from timerstore.watching.groups import GroupStats, read_groups


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A look at one topic of a consumer.

    `handled_per_s`, `failed_per_s`: messages a second over the last minute, of all who read under
    this group's name in this process. `running_count`: calls of this topic's handler that have
    neither ended nor timed out. `group`: its backlog, its counters, how long handlers take.
    """

    topic: str
    handled_per_s: float
    failed_per_s: float
    running_count: int
    group: GroupStats


@inside
def read_consumer_stats(
    core: Core,
    consuming: Consuming,
    handling: Handling,
    subscriptions: list[Subscription],
    reads_as: str,
) -> tuple[ConsumerStats, ...]:
    """Return a row for each topic. O(queues of these topics)."""
    core.check_open(stopped=True)
    rows = read_groups(core, consuming, [(each.topic, reads_as) for each in subscriptions])
    by_topic = {row.topic: row for row in rows}
    running, found = handling.running(), []
    for each in subscriptions:
        handled, failed = consuming.group(each.topic, reads_as).tally.per_s(core.steady_ms())
        count = sum(subscription is each for subscription in running)
        found.append(ConsumerStats(each.topic, handled, failed, count, by_topic[each.topic]))
    return tuple(found)
