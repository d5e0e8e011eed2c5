"""The timer that comes in the place of another one."""

from __future__ import annotations

from timerstore.arguments import (
    check_body,
)
from timerstore.core import Core
from timerstore.pending.timers import Timer
from timerstore.putting.putter import compose_timer
from timerstore.timelog.compose import Staged
from timerstore.timelog.decode import user_properties


def compose_moved(core: Core, timer: Timer, due_ms: int, id: str) -> Staged:
    """Compose the timer that comes in the place of another one, and say where it is staged."""
    described = {"TAGS": timer.tag, "KEYS": timer.key, **timer.properties}
    properties = encode_described({k: v for k, v in described.items() if v is not None})
    check_body(timer.body, len(properties), core.engine.content_bytes_max)
    topic = timer.topic.encode("utf-8", "surrogateescape")
    tag = timer.tag
    return compose_timer(core.engine, topic, timer.body, due_ms, properties, tag, replaces=id)


def encode_described(properties: dict[str, str]) -> bytes:
    """Return tag, key and the user's own of a message's properties as they stand in one."""
    first = [(name, properties[name]) for name in ("TAGS", "KEYS") if name in properties]
    described = [*first, *user_properties(properties).items()]
    encoded = "".join([f"{name}\x01{value}\x02" for name, value in described])
    return encoded.encode("utf-8", "surrogateescape")
