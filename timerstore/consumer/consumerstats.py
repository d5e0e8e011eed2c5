"""Statistics of a consumer: how much it handles, how far its group is behind."""

from __future__ import annotations

from dataclasses import dataclass

from timerstore.consumer.workings import Workings
from timerstore.watching.groups import GroupStats


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


def read_consumer_stats(workings: Workings) -> tuple[ConsumerStats, ...]:
    """Return a row for each topic. O(queues of these topics)."""
    source, subscriptions = workings.source, workings.subscriptions
    source.store.check_process()
    looked = source.look([each.topic for each in subscriptions])
    running, now_ms, found = workings.handling.running(), source.store.steady_ms(), []
    for each, (row, tally) in zip(subscriptions, looked, strict=True):
        handled, failed = tally.per_s(now_ms)
        count = sum(subscription is each for subscription in running)
        found.append(ConsumerStats(each.topic, handled, failed, count, row))
    return tuple(found)
