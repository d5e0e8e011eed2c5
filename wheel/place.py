"""Placement: which slot a timer goes to.

Below, base = max(now, read cursor, claim cursor − 1) and hop = window − 1, all in slots. A timer
that is due before base + window goes to its own slot, or to the read cursor's when its own was
passed. Any other becomes a *roll* on the timer's own grid: slot = due − k · hop with the smallest k
that lies before base + window. So each roll goes to a slot that is not
claimed, ahead of all that hop now, and each hop is as long as that allows; hops of many timers do
not bunch, and an id alone tells which slots can hold its timer. Placement never asks whether a
timer is due.

Every slot lies from the read cursor on, and before top = read cursor + the ring's length. So no
slot of the ring is needed twice: after a crash the slots are made anew, from units that were linked
before the checkpoint.
"""

from __future__ import annotations

from typing import Final

from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.record import Words, record

# --- What is fixed when a store opens.

CHECKING: Final = 1
CHECKED: Final = 2


@record
class Settings:
    """Sizes and names that every service reads."""

    precision_ms: int = 0  # of one slot
    slot_count: int = 0  # the ring holds twice as many
    window_slots: int = 0  # the window: what lies further ahead rolls
    hop_slots: int = 0  # the window less one
    store_tag: int = 0  # uint32 at the end of our UNIQ_KEYs
    # Recovery links what an earlier life left, and deletes join the cancelled set. It checks each
    # message by its CRC (CHECKING), unless its scan of the log has done that (CHECKED).
    recovering: int = 0


@inlined
def ring_top(settings: Settings, passed_slot: int) -> int:
    """Return the first slot that may not be used yet."""
    return passed_slot + 2 * settings.slot_count


@inlined
def hops_ahead(own: int, base: int, window: int, hop: int, top: int) -> int:
    """Return the k >= 0 of the module's text; 0 stands for the timer's own slot. O(1)."""
    hops = 0
    if own >= base + window:
        hops = (own - base - window) // hop + 1
    if own - hops * hop >= top:
        hops = (own - top) // hop + 1
    return hops


@inlined
def place(settings: Settings, base: int, passed_slot: int, out_ms: int) -> tuple[int, int]:
    """Return (slot, hops) of a timer whose unit's time is `out_ms`. O(1).

    `base`: as in the module's text. With hops > 0 it is a roll, whose unit's time is
    out_ms − hops · hop · precision. A slot that was passed becomes the read cursor's.
    """
    top = ring_top(settings, passed_slot)
    own = out_ms // settings.precision_ms
    hops = hops_ahead(own, base, settings.window_slots, settings.hop_slots, top)
    return max(own - hops * settings.hop_slots, passed_slot), hops


@kernel_ahead
def may_have_rolled(settings: Settings, due_ms: int, put_ms: int) -> bool:
    """Tell whether a timer lay too far ahead, when it was put, for a slot of its own. O(1)."""
    ahead = due_ms // settings.precision_ms - put_ms // settings.precision_ms
    return ahead >= min(settings.window_slots, settings.slot_count)


@kernel_ahead
def place_all(settings: Settings, base: int, passed_slot: int, due_ms: Words, slots: Words) -> None:
    """Fill the slot that each timer's unit goes to, were it linked now; both int64[n]."""
    for i in range(len(due_ms)):
        slots[i], _ = place(settings, base, passed_slot, due_ms[i])
