"""Messages that go through a delay level: which level, then how they are composed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timerstore.errors import InvalidArgumentError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.writing.append import QUEUE_COUNT_MAX
from timerstore.timelog.writing.compose import Staged, compose
from timerstore.timelog.writing.frame import encode_waiting
from timerstore.values.arguments import check_alone
from timerstore.values.ids import format_id
from timerstore.values.kinds import as_int, shown_int

if TYPE_CHECKING:
    from timerstore.services.engine.engine import Engine


def check_level(engine: Engine, level: object, *others: object) -> int:
    """Return a delay level, counted from 1 and clamped to the highest, or refuse it.

    `others`: what else says when a message is due; all must be None.
    """
    check_alone(*others)
    number = as_int(level)
    if number is None or number < 1:
        raise InvalidArgumentError(
            f"delay_level is {shown_int(level)}. Pass an int, 1 to {len(engine.level_ms)}."
        )
    level = min(number, len(engine.level_ms))
    level_ms, limit_ms = int(engine.level_ms[level - 1]), engine.config.max_delay_ms
    if limit_ms is not None and level_ms > limit_ms:
        raise InvalidArgumentError(
            f"delay_level {level} is a delay of {level_ms} ms, and max_delay_ms is {limit_ms}. "
            "Pass a lower level, or raise max_delay_ms."
        )
    return level


def stage_at_level(
    engine: Engine,
    level: int,
    topic: bytes,
    body: bytes,
    properties: bytes,
    now_ms: int,
    *,
    key: bytes | None = None,
    born_ms: int | None = None,
    flag: int = 0,
    reconsume_times: int = 0,
) -> Staged:
    """Compose a message that goes through a delay level to `topic`, and say where it is staged.

    `properties`: as they stand in a message. Without `key` it gets one of its own, whose offset the
    appender stamps. It is due that level after `now_ms`: append it with the same.
    """
    due_ms = now_ms + int(engine.level_ms[level - 1])
    own = format_id(due_ms, fmt.LEVEL_MARK, engine.store_tag).encode()
    text = encode_waiting(fmt.PROPERTY_LEVEL, b"%d" % level, own if key is None else key, topic)
    message = compose(
        fmt.LEVEL_TOPIC,
        body,
        text + properties,
        born_ms=now_ms if born_ms is None else born_ms,
        queue_id=level - 1,
        flag=flag,
        reconsume_times=reconsume_times,
    )
    row = engine.queues.row(topic) + QUEUE_COUNT_MAX
    return Staged(message, engine.level_row(level), due_ms, row, 1, due_ms)
