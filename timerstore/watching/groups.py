"""Groups: how far each is behind with a topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from timerstore.calls.consuming.consuming import Consuming
from timerstore.calls.consuming.cursors import QueueCursor, RetryCursor
from timerstore.calls.consuming.delivery import dead_topic
from timerstore.calls.consuming.grouptally import GroupTally, ResponseStats
from timerstore.core.core import Core
from timerstore.errors import CorruptStoreError
from timerstore.jit.guards import RLock
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import decode_message, text
from timerstore.timelog.writing.compose import ACKS_TOPIC
from timerstore.values.amounts import Moment

NOBODY: Final = ""
"""The group of a topic that no group has ever read."""
NO_OFFSET: Final = 1 << 62
_NOTHING: Final = GroupTally()


@dataclass(slots=True)
class Backlog:
    """What a group has not done of a topic; `oldest`: the offset of its first message."""

    lag_count: int = 0
    in_flight_count: int = 0
    oldest: int = NO_OFFSET


@dataclass(frozen=True, slots=True)
class GroupStats:
    """A look at one group's reading of one topic.

    `group` is "" for a topic that has messages and that no group ever read: they keep the log.
    What a group sent back and what is due again is a row of its own, of its topic `%RETRY%group`.

    `lag_count`: messages that were fired and are not acknowledged, over all queues;
    `in_flight_count` of them are handed out. `oldest_fired_ms`: when the oldest of them was fired,
    `oldest_age_ms`: how long ago; None and 0 if there is none. `dead_letter_count`: those of the
    group that wait in `%DLQ%group`, the same number in each row of the group.

    Counters are kept over a restart: `handled_count` messages were acknowledged, `failed_count`
    calls for a message failed, or were a `nack`; `retried_count` of them were sent back,
    `dead_count` given up; `expired_count` messages expired before they were handed out or came
    again. After a crash they may lack the last seconds. `response`: how long
    handlers took, since the store was opened. `read_ms`: when the group last asked for messages of
    the topic, to the hour after a restart; None if that is not known.

    `rate`: at which a consumer reads the topic in this process or through it, such as "100/s by
    'tenant'"; None if it has none. `turn_wait_count`: messages that are not handed out because of
    it, of those with `rate_by` that were looked at: the first that wait.
    """

    topic: str
    group: str
    lag_count: int
    in_flight_count: int
    oldest_fired_ms: int | None
    oldest_age_ms: int
    dead_letter_count: int
    handled_count: int
    failed_count: int
    retried_count: int
    dead_count: int
    expired_count: int
    response: ResponseStats
    read_ms: int | None = None
    rate: str | None = None
    turn_wait_count: int = 0

    read = Moment[datetime | None]("When the group last asked for messages, in UTC.")
    oldest_fired = Moment[datetime | None]("When the oldest message was fired that waits, in UTC.")


def read_groups(
    core: Core, consuming: Consuming, only: Iterable[tuple[str, str]] | None = None
) -> tuple[GroupStats, ...]:
    """Return a row for each group and topic that it reads, and for each topic that nobody does.

    In the order of their names. O(groups × queues of their topics); one message of each row that is
    behind is decoded. `only`: only these (topic, group).
    """
    return _Groups(core, consuming).read(only)


def read_neglected(core: Core, consuming: Consuming) -> tuple[GroupStats, ...]:
    """Return a row for each topic that nobody reads, and for the dead letters of each group.

    A row's `lag_count` says how many wait there; none has none. O(topics); one message of each row
    is decoded.
    """
    groups = _Groups(core, consuming)
    return groups.read(groups.neglected())


def read_silent(core: Core, consuming: Consuming, silence_ms: int) -> tuple[GroupStats, ...]:
    """Return a row for each group and topic that was not read for so long, though messages wait.

    Of one that never said when it read, that counts from the store's opening. O(groups), and one
    message of each such row is decoded.
    """
    groups, until_ms = _Groups(core, consuming), core.clock.now_ms - silence_ms
    rows = groups.read(
        (topic, group)
        for topic, group in groups.pairs
        if topic not in (fmt.RETRY_PREFIX.decode() + group, dead_topic(group), text(ACKS_TOPIC))
        and (groups.tallies.get((topic, group), _NOTHING).counts.read_ms or core.opened_ms)
        <= until_ms
    )
    return tuple(row for row in rows if row.lag_count)


class _Groups:
    """Reads the rows of one moment."""

    def __init__(self, core: Core, consuming: Consuming) -> None:
        """Take a copy of what is committed; of groups that read now, their cursors count."""
        self.core, self.queues, self._consuming = core, core.engine.queues, consuming
        self.tallies = dict(consuming.tallies)
        self.now_ms = core.clock.now_ms
        self._committed = core.offsets.snapshot()
        self._cursors: dict[tuple[str, int], tuple[QueueCursor, RLock]] = {}  # by group, row
        self.pairs = set(self._committed)
        self._turns = {(each.topic, each.name): each.turns for each in consuming.known_groups()}
        for group in consuming.known_groups():
            self.pairs.add((group.topic, group.name))
            for row, cursor in list(group.cursors.items()):
                self._cursors[group.name, row] = cursor, group.lock
                if isinstance(cursor, RetryCursor):
                    self.pairs.add((group.retries.topic, group.name))
        self._backlogs: dict[tuple[str, str], Backlog] = {}
        self._known_ms: dict[int, int | None] = {NO_OFFSET: None}

    def read(self, only: Iterable[tuple[str, str]] | None) -> tuple[GroupStats, ...]:
        """Return the rows."""
        wanted = sorted(self._shown() if only is None else set(only))
        return tuple(self._row(topic, group) for topic, group in wanted)

    def _shown(self) -> set[tuple[str, str]]:
        """Return the (topic, group) that have a row."""
        pairs = self.pairs | set(self._unread())
        for topic, group in list(pairs):
            if topic == fmt.RETRY_PREFIX.decode() + group:
                backlog = self._backlog(topic, group)
                if backlog.lag_count == backlog.in_flight_count == 0:
                    pairs.discard((topic, group))
        letters = {(topic, group) for topic, group in pairs if topic == dead_topic(group)}
        known = {group for _, group in pairs - letters}
        return pairs - {(topic, group) for topic, group in letters if group in known}

    def neglected(self) -> list[tuple[str, str]]:
        """Return the topics that nobody reads, and those of dead letters, in which any wait."""
        unread = [pair for pair in self._unread() if pair[1] == NOBODY]
        topics = [text(topic) for topic in list(self.queues.topics)]
        prefix = fmt.DEAD_PREFIX.decode()
        letters = [(each, each.removeprefix(prefix)) for each in topics if each.startswith(prefix)]
        return unread + [pair for pair in letters if self._backlog(*pair).lag_count]

    def _unread(self) -> Iterator[tuple[str, str]]:
        """Yield the topics that have messages and no group; some are a group's by their name."""
        topics = {text(topic) for topic in list(self.queues.topics)}
        topics -= {text(each) for each in (fmt.TIMER_TOPIC, fmt.LEVEL_TOPIC, ACKS_TOPIC)}
        topics -= {topic for topic, _ in self.pairs}
        for topic in topics:
            owner = topic.removeprefix(fmt.RETRY_PREFIX.decode()).removeprefix(
                fmt.DEAD_PREFIX.decode()
            )
            group = NOBODY if owner == topic else owner
            if self._backlog(topic, group).lag_count:
                yield topic, group

    def _row(self, topic: str, group: str) -> GroupStats:
        backlog = self._backlog(topic, group)
        fired_ms = self._fired_ms(backlog.oldest)
        tally = self.tallies.get((topic, group), _NOTHING)
        counts = tally.counts
        letters = self._backlog(dead_topic(group), group).lag_count if group != NOBODY else 0
        turns, left = self._turns.get((topic, group)), backlog.lag_count - backlog.in_flight_count
        return GroupStats(
            topic=topic,
            group=group,
            lag_count=backlog.lag_count,
            in_flight_count=backlog.in_flight_count,
            oldest_fired_ms=fired_ms,
            oldest_age_ms=0 if fired_ms is None else max(0, self.now_ms - fired_ms),
            dead_letter_count=letters,
            handled_count=counts.handled,
            failed_count=counts.failed,
            retried_count=counts.retried,
            dead_count=counts.dead,
            expired_count=counts.expired,
            response=tally.response(),
            read_ms=counts.read_ms or None,
            rate=None if turns is None else str(turns.rate),
            turn_wait_count=0 if turns is None else turns.waits_of(left),
        )

    def _backlog(self, topic: str, group: str) -> Backlog:
        found = self._backlogs.get((topic, group))
        if found is None:
            found = self._backlogs[topic, group] = Backlog()
            committed = self._committed.get((topic, group), {})
            for row in self.queues.rows(topic.encode("utf-8", "surrogateescape")):
                queue_id = int(self.queues.table.queue_id[row])
                first = committed.get(queue_id, 0)
                done = self.core.offsets.get_ahead(topic, group, queue_id)
                settled = sum(stop - max(start, first) for start, stop in done if stop > first)
                self._add_queue(found, group, row, first, settled)
        return found

    def _add_queue(self, backlog: Backlog, group: str, row: int, first: int, settled: int) -> None:
        """Add one queue, of which `first` is committed, `settled` behind that are done."""
        known = self._cursors.get((group, row))
        if known is not None:
            cursor, lock = known
            with lock.guard():
                first = cursor.committed
                settled = cursor.next - first - cursor.open_count
                backlog.in_flight_count += cursor.in_flight_count
        end = self.queues.next_index(row)
        if first >= end:
            return
        try:
            first, offset = self._first_kept(row, first, end)
        except CorruptStoreError:
            offset = NO_OFFSET
        backlog.lag_count += max(0, end - first - settled)
        backlog.oldest = min(backlog.oldest, offset)

    def _first_kept(self, row: int, first: int, end: int) -> tuple[int, int]:
        """Return the first index from `first` on whose message is kept, with its offset."""
        start = self.core.engine.commitlog.start
        for _ in range(2):
            if first >= self.queues.first_index(row):
                entry = self.queues.read(row, first, 1)[0]
                blank = entry["offset"] == 0 and entry["size"] == fmt.QUEUE_BLANK_SIZE
                if not blank and entry["offset"] >= start:
                    return first, int(entry["offset"])
            first = max(first, self.queues.first_kept(row, start))
            if first >= end:
                break
        return first, NO_OFFSET

    def _fired_ms(self, offset: int) -> int | None:
        """Return when the message at an offset was fired; None if it cannot be read."""
        if offset not in self._known_ms:
            try:
                view = self.core.engine.commitlog.view(offset)
                self._known_ms[offset] = decode_message(view, offset).stored_ms
            except CorruptStoreError:
                self._known_ms[offset] = None
        return self._known_ms[offset]
