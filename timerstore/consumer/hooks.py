"""Hooks: a program's own code around each call of a handler, for metrics or traces."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from timerstore.calls.consuming.delivery import Delivery
from timerstore.consumer.retry_rules import Outcome

log = logging.getLogger("timerstore")


class Hook(Protocol):
    """What a consumer calls around its handlers, in the thread that runs them.

    An exception in a hook is logged, also one that is no Exception; it changes nothing for the
    message. KeyboardInterrupt stops the consumer.
    """

    def before(self, deliveries: list[Delivery]) -> None:
        """Act before the handler is called; `deliveries` is a list also if it gets one."""

    def after(self, deliveries: list[Delivery], outcome: Outcome) -> None:
        """Act once it is known what became of the messages.

        After a time-out that is in another thread, while the handler still runs.
        """


def call_before(hooks: Sequence[Hook], deliveries: list[Delivery]) -> None:
    """Call all hooks, in their order."""
    for hook in hooks:
        try:
            hook.before(list(deliveries))
        except KeyboardInterrupt:
            raise
        except BaseException:
            log.exception("the hook %r failed before a handler was called", hook)


def call_after(hooks: Sequence[Hook], deliveries: list[Delivery], outcome: Outcome) -> None:
    """Call all hooks, the last one first."""
    for hook in reversed(hooks):
        try:
            hook.after(list(deliveries), outcome)
        except KeyboardInterrupt:
            raise
        except BaseException:
            log.exception("the hook %r failed after a handler had ended", hook)
