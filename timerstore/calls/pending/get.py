"""One pending timer of any kind by its id; `byid.py` is the short way of an ordinary one."""

from __future__ import annotations

import numpy as np

from timerstore.calls.pending.find_by_id import broker_copies
from timerstore.calls.pending.found import read_messages
from timerstore.calls.pending.is_pending import judge
from timerstore.calls.pending.timers import Timer, read_timer
from timerstore.core.core import Core
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.services.calls.first_puts import PUT_DAMAGED
from timerstore.services.engine.holds import while_held
from timerstore.services.looking.instant import capture_instant
from timerstore.services.looking.timer_places import slot_messages, unlinked_messages
from timerstore.values.ids import parse_id
from timerstore.wheel.place import may_have_rolled


def get(core: Core, id: str) -> Timer | None:
    """Return a pending timer; see `TimerStore.get`."""
    if not isinstance(id, str):
        raise InvalidArgumentError(f"id is {id!r}. Pass an id that put returned, a str.")
    parsed = parse_id(id)
    if parsed is None or parsed.tag != core.engine.store_tag:
        copies = broker_copies(core, id)
        return copies[0][1] if copies else None
    offset, due_ms = parsed.offset, parsed.due_ms
    while True:
        verdict = judge(core, [id])
        message = int(verdict.message[0])
        if not verdict.pending[0] and (
            verdict.row[0] != PUT_DAMAGED or due_ms <= core.clock.now_ms
        ):
            return None
        try:
            first = read_timer(core, message, due_ms)
            latest = offset
            if message == offset:
                put_ms = first.put_ms
                latest = while_held(lambda: latest_copy(core, offset, due_ms, put_ms))  # noqa: B023
            return first if latest == offset else read_timer(core, latest, due_ms)
        except CorruptStoreError:
            if message >= core.engine.commitlog.start:
                raise  # else it rolled, and retention removed its segment just now


def latest_copy(core: Core, offset: int, due_ms: int, put_ms: int) -> int:
    """Return the offset of the latest copy of a timer that may have rolled; raises LapsedError."""
    engine, world = core.engine, core.engine.world
    if not may_have_rolled(world.settings, due_ms, put_ms):
        return offset
    own = due_ms // engine.precision_ms
    instant = capture_instant(engine, whole=False)
    at = instant.snapshot
    parts = [instant.messages, unlinked_messages(engine, at)]
    hop = world.settings.hop_slots
    latest = own - max(0, -(-(own - at.top + 1) // hop)) * hop
    for slot in range(latest, min([at.claimed, *at.owed[:1, 0].tolist()]) - 1, -hop):
        parts.append(slot_messages(engine, at, slot))
    found = read_messages(core, np.concatenate(parts), at.hold)
    mine = found.message[found.low == offset]
    return int(mine.max()) if len(mine) else offset
