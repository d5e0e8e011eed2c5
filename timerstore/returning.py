"""Sending back: what a consumer does with a message that failed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from timerstore.timelog.decode import Message
from timerstore.timelog.format import DEAD_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from timerstore.store import TimerStore


def return_later(store: TimerStore, group: str, message: Message, level: int) -> None:
    """Append a message again for its group, through a delay level; see `wait_durable`."""
    levels_ms = store.engine.config.delay_levels_ms()
    delay = timedelta(milliseconds=levels_ms[min(level, len(levels_ms)) - 1])
    _again(store, RETRY_PREFIX + group.encode(), message, delay)


def bury(store: TimerStore, group: str, message: Message) -> None:
    """Append a message to its group's dead letters; see `wait_durable`."""
    _again(store, DEAD_PREFIX + group.encode(), message, None)


def revive(store: TimerStore, group: str, message: Message) -> None:
    """Append a dead letter again for its group, as if it never failed; see `wait_durable`."""
    fresh = message._replace(reconsume_times=-1)
    _again(store, RETRY_PREFIX + group.encode(), fresh, None)


def wait_durable(store: TimerStore) -> None:
    """Return once what was appended is as durable as a put."""
    store.check_open()
    now_ms = store.clock.now_ms
    store._after_put(now_ms, now_ms)


def _again(store: TimerStore, topic: bytes, message: Message, delay: timedelta | None) -> None:
    store.check_writable()
    store._putter.send_back(topic, message, delay)
