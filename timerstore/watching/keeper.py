"""What keeps the oldest segment of the commit log, by its name."""

from __future__ import annotations

from itertools import chain, islice
from typing import Final

import numpy as np

from timerstore.core.core import Core
from timerstore.errors import CorruptStoreError
from timerstore.ground.moments import moment
from timerstore.pending.get import get
from timerstore.pending.timers import Timer, read_timer
from timerstore.services.looking.slot_units import slot_units
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.segmenttable import TABLE_LENGTH
from timerstore.watching.sections import NOTHING

_LOOKED_AT_MAX: Final = 4_096
"""Units of one slot among which a timer is looked for."""
_TRIES_MAX: Final = 16


def kept_by(core: Core) -> str:
    """Return what keeps the log: a group, a topic, a level, or a pending timer, with its offset.

    If a timer keeps the oldest segment, what would keep the log without it comes second.
    """
    reach, engine = core.cleaner.reach, core.engine
    floor, segment_bytes = engine.world.cleaning.floor, engine.commitlog.segment_bytes
    if not core.disk.writes:  # nobody cleans here, so nobody has looked
        reach.find(floor)
    number, others = floor // segment_bytes, reach.kept_by
    if reach.found < (number + 1) * segment_bytes:
        return others
    latest_slot = int(engine.world.latest_slot[number % TABLE_LENGTH])
    if 0 <= latest_slot < engine.read_slot:
        return others  # it goes with the next checkpoint
    # To name a timer that may just fire, all that is overdue would be searched again and again,
    # under the locks of the services: whoever looks at a store that is behind would hold it up.
    is_about_to_fire = latest_slot < engine.world.dequeue_get.claimed_slot
    found = None if is_about_to_fire else _keeper(core, floor, number, latest_slot)
    who = f"pending timers, from offset {floor:,} on"
    if found is not None:
        timer, offset = found
        due = moment(timer.due_ms)
        who = (
            f"timer {timer.id} of topic {timer.topic!r}, due {due:%Y-%m-%dT%H:%M:%SZ}, "
            f"at offset {offset:,}"
        )
    return who if others == NOTHING else f"{who}; then by {others}"


def _keeper(core: Core, floor: int, number: int, slot: int) -> tuple[Timer, int] | None:
    """Return a pending timer due in a slot whose message lies in a segment; None if none is.

    It waits in that slot, or in one that its hops come to. O(_LOOKED_AT_MAX) for each.
    """
    engine, settings = core.engine, core.engine.world.settings
    segment_bytes = engine.commitlog.segment_bytes
    hop = int(settings.hop_slots)
    top = int(engine.world.dequeue_get.claimed_slot + settings.window_slots)
    first = slot - max(0, -(-(slot - top + 1) // hop)) * hop
    chains = (slot_units(engine, each) for each in range(first, engine.read_slot - 1, -hop))
    for units in islice(chain.from_iterable(chains), _TRIES_MAX):
        messages = units.message
        mine = (messages >= floor) & (messages // segment_bytes == number)
        mine &= units.magic & fmt.UNIT_DELETE == 0
        for i in np.flatnonzero(mine)[:_TRIES_MAX]:
            try:
                offset = int(messages[i])
                id = read_timer(core, offset, int(units.ms[i])).id
                timer = get(core, id)  # with its own due time, which may be hops ahead
                if timer is not None:
                    return timer, offset
            except CorruptStoreError:
                continue  # the service that fires it names it
    return None
