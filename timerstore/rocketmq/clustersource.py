"""A cluster's messages for a consumer.

They are hidden from others for as long as a handler may take and a minute more, so that a message
which fails comes again by the consumer's rules; if the process is killed, they come again after
that time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from datetime import timedelta
from typing import Any, Final

from timerstore.calls.consuming.grouptally import GroupTally
from timerstore.consumer.consumersettings import ConsumerSettings
from timerstore.consumer.sources import RemoteSource
from timerstore.consumer.subscription import ALL_TAGS, Subscription, Task, parse_tags
from timerstore.errors import ClusterError, InvalidArgumentError, TimerStoreError
from timerstore.rocketmq.receiving import HIDDEN_S_MAX, ClusterRun, Reader, hidden_s
from timerstore.watching.groups import GroupStats

log = logging.getLogger("timerstore")

_WAIT_S: Final = 0.2
"""A pull waits so long for any of its topics; `close` waits for it."""
_AGAIN_S: Final = 1.0
_AGAIN_S_MAX: Final = 30.0
"""If the cluster does not answer, it is asked again after the first, then after twice as long each
time, up to the second."""
_MORE: Final = timedelta(minutes=1)
"""Messages are hidden so much longer than a handler may take: they may wait for a thread first."""
NewReader = Callable[[str, str, str], Reader]
"""Returns a reader of a group, a topic, and tags."""


class Away:
    """When something is asked again that does not answer."""

    def __init__(self, now_s: float, why: object) -> None:
        """Say so, once. `why`: an error, which begins with what was asked."""
        self._what = str(why).partition(":")[0]
        self._since_s, self._wait_s = now_s, _AGAIN_S
        self.until_s = now_s + _AGAIN_S
        text = "%s. Nothing comes until then; it is asked again, at least each %.0f s."
        log.warning(text, str(why).rstrip("."), _AGAIN_S_MAX)

    def again(self, now_s: float, why: object) -> None:
        """Wait twice as long."""
        log.debug("%s", why)
        self._wait_s = min(2 * self._wait_s, _AGAIN_S_MAX)
        self.until_s = now_s + self._wait_s

    def back(self, now_s: float) -> None:
        """Say that it answers."""
        log.warning("%s: it answers after %.0f s", self._what, now_s - self._since_s)


class ClusterSource(RemoteSource):
    """Reads topics of a cluster for one group."""

    def __init__(
        self,
        new_reader: NewReader,
        settings: ConsumerSettings,
        check_open: Callable[[], None],
        is_closed: Callable[[], bool],
    ) -> None:
        if settings.broadcast or settings.ordered or settings.turns:
            raise InvalidArgumentError("A cluster's consumer has no broadcast, ordered or rate.")
        if settings.start != "earliest":
            raise InvalidArgumentError(
                f"start is {settings.start!r}. The broker says where a group begins: leave it out."
            )
        super().__init__(settings, check_open, is_closed)
        self._new_reader = new_reader
        self._hide_s = min(hidden_s(settings.timeout + _MORE), HIDDEN_S_MAX)
        self._tags: dict[str, str] = {}
        self._readers: dict[str, Reader] = {}
        self._away: dict[tuple[str, str], Away] = {}  # by topic and broker, "" if it has no route

    def subscription(self, topic: str, handler: Any, tags: str) -> Subscription:
        """Return what a handler's messages come through; the broker chooses by tags."""
        names = parse_tags(tags)
        self._tags[topic] = ALL_TAGS if names is None else "||".join(sorted(names))
        return super().subscription(topic, handler, ALL_TAGS)

    def begin(self, subscriptions: Sequence[Subscription]) -> None:
        """Begin to read; the broker makes the group if it may."""
        for each in subscriptions:
            tags = self._tags[each.topic]
            self._readers[each.topic] = self._new_reader(self.settings.group, each.topic, tags)

    def pull(self, count_max: int) -> tuple[list[Task], bool]:
        """Pull from the first topic that has something, beginning with another each time."""
        self.store.check_writable()
        open_ones = [
            each
            for each in self.topics_in_turn()
            if self._is_asked(each, "") and self.fits(each, count_max)
        ]
        self.limited = len(open_ones) < len(self.topics)
        if not open_ones:
            return [], True
        calls = [call for topic in open_ones for call in self._calls(topic, count_max)]
        wait(calls, 0 if self.limited else _WAIT_S, FIRST_COMPLETED)
        for topic in open_ones:
            came = self._readers[topic].take(count_max)
            for broker in came.answered:
                self._answers(topic, broker)
            for broker, error in came.errors.items():
                self._fails(topic, broker, error)
            if came.messages:
                run = ClusterRun(self._readers[topic], came.messages)
                return self.tasks_of(topic, run), False
        self.limited |= not calls  # then nothing else makes it wait
        return [], self.limited

    def _calls(self, topic: str, count_max: int) -> list[Future[Any]]:
        try:
            reader = self._readers[topic]
            calls = reader.begin(count_max, self._hide_s, lambda each: self._is_asked(topic, each))
        except ClusterError as e:
            self._fails(topic, "", e)
            return []
        self._answers(topic, "")
        return calls

    def _answers(self, topic: str, broker: str) -> None:
        if (topic, broker) in self._away:
            self._away.pop((topic, broker)).back(time.monotonic())

    def _fails(self, topic: str, broker: str, error: TimerStoreError) -> None:
        if not isinstance(error, ClusterError):
            raise error
        self.store.check_writable()
        now_s, away = time.monotonic(), self._away.get((topic, broker))
        if away is None:
            self._away[topic, broker] = Away(now_s, error)
        else:
            away.again(now_s, error)

    def _is_asked(self, topic: str, broker: str) -> bool:
        away = self._away.get((topic, broker))
        return away is None or time.monotonic() >= away.until_s

    def close(self) -> None:
        """Read no more, once the calls that are under way have ended: about 5 s."""
        for each in self._readers.values():
            each.close()

    def look(self, topics: Sequence[str]) -> list[tuple[GroupStats, GroupTally]]:
        """Refuse it: the client does not tell how far a group has come."""
        raise InvalidArgumentError(
            "A cluster's client does not tell how far a group has come. Ask "
            "mqadmin consumerProgress."
        )
