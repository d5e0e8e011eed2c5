"""A client as a consumer's source: handlers here, offsets, retries at the owner.

Handlers, threads, rules and time limits are those of any consumer; what pulls, acknowledges, or
sends back asks the owner. Messages whose owner ended come again, from the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from timerstore.calls.consuming.delivery import dead_topic
from timerstore.calls.consuming.grouptally import GroupTally
from timerstore.consumer.consumersettings import ConsumerSettings
from timerstore.consumer.sources import RemoteSource
from timerstore.consumer.subscription import Subscription, Task
from timerstore.errors import InvalidArgumentError, StoreClosedError
from timerstore.share.clientrun import ClientRun
from timerstore.share.framecolumns import read_table
from timerstore.share.link import Link
from timerstore.watching.any_store import AnyStore
from timerstore.watching.groups import GroupStats

log = logging.getLogger("timerstore")

_WAIT_S: Final = 0.2
"""A pull waits so long at the owner; `close` waits for it."""
_AGAIN_S: Final = 1.0
"""If no process has served the store for a while, it is asked again after this."""


class ClientSource(RemoteSource):
    """Reads through a client, or a store that is shared, what another process has open."""

    def __init__(self, client: AnyStore, link: Link, settings: ConsumerSettings) -> None:
        super().__init__(settings, link.check_open, link.closed.is_set)
        self._client, self._link = client, link

    def begin(self, subscriptions: Sequence[Subscription]) -> None:
        """Begin to read. Durable on return: where a new group starts."""
        told = self.settings
        if told.broadcast or told.ordered:
            raise InvalidArgumentError(
                "broadcast and ordered work only in the process that has the store open, and "
                "this is another process. Leave them out, or make the consumer in the process in "
                "which `is_owner` is True."
            )
        self._begin_groups([[each.topic, told.group] for each in subscriptions], told.start)
        # If nobody has read the dead letters, this keeps retention from removing them.
        self._begin_groups([[dead_topic(told.group), told.group]], "earliest")

    def _begin_groups(self, pairs: list[list[str]], start: Any) -> None:
        self._link.ask("begin_groups", {"pairs": pairs, "start": start})

    def pull(self, count_max: int) -> tuple[list[Task], bool]:
        """Pull from the first topic that has something, beginning with another each time."""
        self.store.check_writable()
        asked = [each for each in self.topics_in_turn() if self.fits(each, count_max)]
        self.limited = len(asked) < len(self.topics)
        if not asked:
            return [], True
        given = {
            "topics": asked,
            "group": self.settings.group,
            "max_count": count_max,
            "timeout": 0 if self.limited else _WAIT_S,
            "tags": True,
            "buries_expired": self.settings.buries_expired,
        }
        if self.settings.turns is not None:
            rate = self.settings.turns
            given["rate"] = [rate.text, rate.burst, rate.by or None]
        try:
            header, parts = self._link.ask("pull", given)
            told = header["result"]
            if told is None:
                return [], self.limited
            run = ClientRun(self._link, self.settings.group, read_table(parts), told)
            try:
                return self.tasks_of(told["topic"], run), False
            except BaseException:  # nobody can tell the tags, say: they come again
                run.give_back(range(len(run)))
                raise
        except StoreClosedError as e:
            self.store.check_writable()
            log.warning("%s", e)
            self._link.closed.wait(_AGAIN_S)
            return [], False

    def close(self) -> None:
        """Do nothing: the owner keeps what was not acknowledged."""

    def look(self, topics: Sequence[str]) -> list[tuple[GroupStats, GroupTally]]:
        """Tell how far the owner says the group has come, and what was done here."""
        rows = {(row.topic, row.group): row for row in self._client.stats().groups}
        group = self.settings.group
        return [(rows[each, group], self.topics[each][0].tally) for each in topics]
