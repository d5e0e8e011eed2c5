"""What is fixed when a store opens."""

from __future__ import annotations

from typing import Final

from timerstore.jit.record import record

CHECKING: Final = 1
CHECKED: Final = 2


@record
class Settings:
    """Sizes and names that every service reads."""

    precision_ms: int = 0  # of one slot
    slot_count: int = 0  # the ring holds twice as many
    window_slots: int = 0  # the window: what lies further ahead rolls
    hop_slots: int = 0  # the window less one; 2/3 of it in a store of the first version
    store_tag: int = 0  # uint32 at the end of our UNIQ_KEYs
    # Recovery links what an earlier life left, and deletes join the cancelled set. It checks each
    # message by its CRC (CHECKING), unless its scan of the log has done that (CHECKED).
    recovering: int = 0
