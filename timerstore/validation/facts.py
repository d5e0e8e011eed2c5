"""What the parts of a store say that is to meet what others say: rows of tables, for queries.

A rule that needs two places of a store, such as a slot with its units, is a query over these tables
(`timerstore/audit/integrity/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from timerstore.jit.record import Words
from timerstore.timelog.bytes.message import IDENTITY_OURS

SOURCES: Final = "sources"
UNITS: Final = "units"
SLOTS: Final = "slots"
LOADS: Final = "loads"
MESSAGES: Final = "messages"
LOST: Final = "lost"
LATE: Final = "late"
GROWN: Final = "grown"
ROLLS: Final = "rolls"
SUMMED: Final = {LATE: 3, GROWN: 2, ROLLS: 1}
"""Tables of sums: so many columns say what is counted, the others how often."""
_COLUMNS: Final[dict[str, tuple[str, str]]] = {
    # One row: where the parts end.
    SOURCES: (
        "read_slot read_ms precision_ms units_start linked_again slots_anew floor_at log_start "
        "salvaged_to checkpoint_floor floor_offset scan_from",
        "is_wheel_torn is_our_store is_handed_over",
    ),
    # Units that are sound. `message`: −1 if it is none. `who`: as of messages. Superseded: the
    # timer waits elsewhere, it was moved or hopped on. Waiting: in a slot that has not passed.
    # Early: before the due time.
    UNITS: (
        "slot unit prev message who",
        "is_delete is_roll is_superseded is_waiting is_early is_hop is_by_broker",
    ),
    SLOTS: ("slot ring_index first_unit last_unit stored_count", ""),
    # If the store is measured: live units ahead. `belongs`: the slot that its message says.
    LOADS: ("slot message size topic_hash belongs", "is_late"),
    # What timers have: kinds below. `who`: the timer. `due_ms`: of a broker's copy without a due
    # time when it was stored. `origin`: of what it is a copy, −1. Unlinked: its entry is still to
    # be read. Old: before the first unit that is kept. First: not sent back, so a delete of its
    # key means it. Filler: of a salvage, for the copy that was lost there.
    MESSAGES: (
        "message who kind due_ms rolls topic origin",
        "is_copy is_unlinked is_old is_ours is_without_due is_first is_filler",
    ),
    # Ranges of the commit log that are damaged, or covered by a salvage.
    LOST: ("start_at stop_at", ""),
    # If the store is measured: what fired, what was appended, what rolls have still to do: hops to
    # come; timers that are not cancelled, bytes of one hop of all.
    LATE: ("topic hour late_ms fired", ""),
    GROWN: ("hour kind messages bytes", ""),
    ROLLS: ("hops timers bytes", ""),
}
SCHEMAS: Final = {
    name: pa.schema(
        [(each, pa.int64()) for each in numbers.split()]
        + [(each, pa.bool_()) for each in flags.split()]
    )
    for name, (numbers, flags) in _COLUMNS.items()
}

NO_MESSAGE: Final = -1

# Kinds of messages; a copy for a later slot is one of `GROWN` alone.
NO_TIMER: Final = -1
TIMER: Final = 0
DELETE: Final = 1
FIRED: Final = 2
IN_LEVEL: Final = 3
MOVED: Final = 4

Facts = dict[str, Any]
"""Arrow tables by name."""


def facts_of(name: str, columns: Mapping[str, Any]) -> Any:
    """Return rows of a table as Arrow has them, given by their columns, [n] each: copies."""
    schema = SCHEMAS[name]
    made = [pa.array(np.array(columns[field.name]), field.type) for field in schema]
    return pa.table(made, schema=schema)


def summed(name: str, rows: Any) -> Any:
    """Add up the rows of a table of sums that are about the same."""
    names, keys = SCHEMAS[name].names, SUMMED[name]
    added = rows.group_by(names[:keys], use_threads=False).aggregate(
        [(each, "sum") for each in names[keys:]]
    )
    return added.rename_columns([each.removesuffix("_sum") for each in added.column_names]).select(
        names
    )


def fold_identity(high: Words, low: Words) -> Words:
    """Return one int64 that stands for a timer; ours are told by their first put's offset."""
    folded: Words = np.where(high == IDENTITY_OURS, low, (high * np.int64(31)) ^ low)
    return folded


_EXACT_BITS: Final = 10


def lateness_told(late_ms: Words) -> Words:
    """Return lateness as it is counted: early is 0, a large one keeps its ten highest bits. O(n).

    So up to 1,023 ms it is exact, and above less than 0.2 % off.
    """
    late_ms = np.maximum(late_ms, 0)
    bits = np.frexp(late_ms.astype(np.float64))[1] - _EXACT_BITS
    shift = np.maximum(bits, 0).astype(np.int64)
    told: Words = (late_ms >> shift) << shift
    return told


def hops_to_come(hops: Words, hop: int, window: int) -> Words:
    """Return how often timers are passed on that are so many hops away: int64[n].

    A timer that is put down again goes as far as the window allows: see `wheel/place.py`.
    """
    rolled = hops > 0
    far = rolled & (hops * hop >= window)
    left = (hops * hop - window) // hop + 1  # after the first time, in hops
    limit = -(-window // hop)  # from so many hops on a timer is passed on again
    again = np.maximum(0, -((limit - 1 - left) // max(1, limit - 1)))
    found: Words = np.where(rolled, 1, 0) + np.where(far, 1 + again, 0)
    return found
