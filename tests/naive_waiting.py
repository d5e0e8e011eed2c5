"""Where a message waits, looked for everywhere: the twin of `services/calls/waiting.py`."""

from typing import Any

from tests import naive


def _chain(alone: Any, slot: int, start: int | None = None) -> list[int]:
    """The messages of a slot's units, from one of them back."""
    log, cells = alone.engine.timerlog, alone.engine.wheel.slots
    cell = cells[slot % len(cells)]
    if int(cell["time"]) != slot:
        return []
    at, found = int(cell["last"]) if start is None else start, []
    while at >= 0:
        number, position = divmod(at, log.segment_bytes)
        unit = naive.decode_unit(bytes(log.ensure(number).view[position : position + 52]))
        found.append(unit.message_offset)
        at = unit.prev_pos
    return found


def _unclaimed(alone: Any) -> list[tuple[int, int | None]]:
    """The slots of which some units are not claimed, with the unit to begin at."""
    found = list[tuple[int, int | None]]()
    read, stop = alone.cursor("read"), alone.cursor("aside_stop")
    used = sorted(int(each) for each in alone.engine.wheel.slots["time"])
    for slot in used:
        is_aside = read < stop and slot < stop
        names = ("aside_claimed", "aside_offset") if is_aside else ("claimed", "claim_offset")
        claimed, offset = (alone.cursor(name) for name in names)
        if slot >= max(claimed, read):
            found.append((slot, None))
        elif slot == claimed - 1 and offset != -1:
            found.append((slot, offset))
    return found


def waits(alone: Any, message: int) -> bool:
    """Whether a message is in a bucket, in a ring, or in what is not claimed of a chain."""
    if any(message == each for _, each in alone.near_messages()):
        return True
    late, due = (
        alone.since(ring, alone.tail(ring) - alone.waiting(ring)) for ring in ("late", "dequeue")
    )
    if message in [row[2] for row in late] + [row[0] for row in due]:
        return True
    return any(message in _chain(alone, *each) for each in _unclaimed(alone))


def in_chains(alone: Any, due_ms: int) -> bool:
    """Whether a slot that can hold a timer has units that are not claimed."""
    settings, read = alone.engine.world.settings, alone.cursor("read")
    own = due_ms // settings.precision_ms
    slots = [slot for slot, _ in _unclaimed(alone)]
    return any(
        slot == read or (slot <= own and (own - slot) % settings.hop_slots == 0) for slot in slots
    )
