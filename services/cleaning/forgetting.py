"""The deletes that a pass of cleaning drops.

A delete is needed for as long as its timer can still be found. Everything that its timer has in the
log lies before it, if it was appended since the store was opened: a cancelled timer is never
appended again. So a pass that comes to the delete has dropped the timer as well, or has left it to
fire before the pass's first slot, and nothing of the delete has to be copied. A delete of an
earlier life is copied: a broker, or an older store, rolls by message, so the timer may lie behind
it.

The timer's entry in the cancelled set stays until the floor is past the delete, because what was
left to fire has come to its slot only then. If the store is killed before that, the delete is found
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from timerstore.jit.acting import act_as
from timerstore.jit.kernel import kernel_ahead
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.record import Words
from timerstore.services.pipeline.copying import read_source
from timerstore.services.world.state import CANCEL, CLEANING
from timerstore.services.world.world import World
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import IDENTITY_OURS, identify_target
from timerstore.timelog.bytes.unit import Units
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at
from timerstore.timelog.writing.tally import PENDING_BYTES, TALLY_WORDS
from timerstore.wheel.cancelled import cancelled_remove, is_our_timer

if TYPE_CHECKING:
    from timerstore.services.engine.engine import Engine

NO_TARGET: Final = -1
_FORGOTTEN_AT_ONCE: Final = 1024
"""Entries that leave the set in one hold of fire."""


@kernel_ahead
def read_targets(world: World, source: SegmentTable, units: Units, targets: Words) -> None:
    """Write the offset of the timer that each delete to be dropped cancels; else NO_TARGET.

    `source`: the commit log's segments. A delete that cannot be read, that cancels a broker's
    timer, or a message of a delay level, is not dropped. O(bytes of the deletes).
    """
    before = act_as(CLEANING)
    found, tag = world.cleaning.thread.found, world.settings.store_tag
    for i in range(len(units.offset)):
        targets[i] = NO_TARGET
        message = units.message[i]
        if units.magic[i] & fmt.UNIT_DELETE == 0 or message < world.cleaning.opened_at:
            continue
        buf = segment_at(source, message)
        if len(buf) == 0 or not read_source(world, buf, found, message, units.size[i]):
            continue
        identify_target(buf, found, tag)
        if is_our_timer(found.identity_high, found.identity_low):
            targets[i] = found.identity_low
    act_as(before)


@kernel_ahead
def _forget(world: World, targets: Words) -> None:
    before = act_as(CANCEL)
    lock_acquire(world.fire_lock)
    for i in range(len(targets)):
        cancelled_remove(world.cancelled, IDENTITY_OURS, targets[i])
    lock_release(world.fire_lock)
    act_as(before)


def forget_targets(engine: Engine, targets: Words) -> None:
    """Let the timers of dropped deletes leave the cancelled set: the floor is past these. O(n)."""
    for at in range(0, len(targets), _FORGOTTEN_AT_ONCE):
        _forget(engine.world, targets[at : at + _FORGOTTEN_AT_ONCE])


def live_bytes(engine: Engine, waits_bytes: int, dropped_count: int) -> int:
    """Return about how many of the bytes that wait are of pending timers. O(queues).

    The others are of timers of ours that were cancelled, and of their deletes, of which passes have
    dropped `dropped_count` already. The bodies of pending timers are known; all else is taken to be
    spread evenly over the messages.
    """
    dead_count = engine.cancelled.set.timer_count - dropped_count
    if dead_count <= 0:
        return waits_bytes
    count = engine.pending_count()
    row_count = len(engine.queues.files)
    words = engine.queues.table.tally.words[: row_count * TALLY_WORDS]
    bodies_bytes = int(np.sum(words[PENDING_BYTES::TALLY_WORDS]))
    rest_bytes = max(0, waits_bytes - bodies_bytes)
    return min(waits_bytes, bodies_bytes + rest_bytes * count // (count + 2 * dead_count))
