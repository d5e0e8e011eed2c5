"""What a consumer is made of, whether threads, a loop's tasks or a step call its handlers."""

from __future__ import annotations

from typing import Any

from timerstore.consumer.consumersettings import ConsumerSettings
from timerstore.consumer.handling import Handling
from timerstore.consumer.messagesource import Source
from timerstore.consumer.storesource import StoreSource
from timerstore.consumer.subscription import Subscription
from timerstore.core.core import Core
from timerstore.errors import InvalidArgumentError
from timerstore.values.arguments import check_topic_to_consume

NEW, STARTED, CLOSED = "new", "started", "closed"


class Workings:
    """A source, the rules, the topics with their handlers, and how far the consumer has come."""

    def __init__(self, source: Source) -> None:
        self.source, self.settings = source, source.settings
        self.handling = Handling(source)
        self.subscriptions: list[Subscription] = []
        self.state = NEW

    def subscribe(self, topic: str, handler: Any, tags: str) -> None:
        """Take a handler of any kind."""
        self.source.store.check_process()
        check_topic_to_consume(topic)
        if self.state != NEW:
            raise InvalidArgumentError(
                "The consumer was started already. Call subscribe() before start()."
            )
        if any(known.topic == topic for known in self.subscriptions):
            raise InvalidArgumentError(
                f"{topic!r} has a handler already. Subscribe one handler that calls both."
            )
        subscription = self.source.subscription(topic, handler, tags)
        subscription.hold_back = self.handling.hand_in_again
        self.subscriptions.append(subscription)

    def start(self) -> None:
        """Begin to read, without anybody who calls handlers yet."""
        self.source.store.check_writable()
        if self.state != NEW:
            raise InvalidArgumentError(
                "The consumer was started before, and starts only once. Make another one."
            )
        if not self.subscriptions:
            raise InvalidArgumentError(
                "The consumer has no handler. Call subscribe() before start()."
            )
        self.begin()

    def begin(self) -> None:
        """Begin to read, also if there is nothing to read yet."""
        self.source.begin(self.subscriptions)
        self.state = STARTED

    def end(self) -> None:
        """Let others have what waits, once nobody calls handlers any more; may be called twice."""
        self.handling.shut()
        self.handling.give_back_all([])
        for subscription in self.subscriptions:
            for task in subscription.waiting():
                subscription.give_back(task)
        self.source.close()
        self.state = CLOSED

    def __repr__(self) -> str:
        topics = ", ".join(each.topic for each in self.subscriptions)
        return f"Consumer {self.settings.group!r} of {topics or 'nothing'}, {self.state}"


def source_of(store: Any, settings: ConsumerSettings) -> Source:
    """Return the source of a plain consumer: a client says which is its own."""
    new_source = getattr(store, "new_source", None)
    if new_source is not None:
        source: Source = new_source(settings)
        return source
    if not isinstance(getattr(store, "core", None), Core):
        raise InvalidArgumentError(f"store is {store!r}. Pass a TimerStore.")
    return StoreSource(store.core, store.consuming, settings)
