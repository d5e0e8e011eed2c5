"""Pulling: one kernel that turns queue entries into columns."""

from __future__ import annotations

from typing import Any, Final

from timerstore.timelog.intrinsics import copy_bytes, get_i64, prefetch
from timerstore.timelog.kernel import kernel
from timerstore.timelog.message import (
    BODY_AT,
    BODY_BYTES,
    DUE_MS,
    GOOD,
    KEY_AT,
    KEY_BYTES,
    SIZE,
    exact_due_ms,
    read_message,
    stored_at,
)
from timerstore.timelog.segments import SEGMENT_BYTES, segment_at

_AHEAD: Final = 12
PULL_UNMAPPED: Final = -1


@kernel
def pull_messages(
    commitlog: Any,
    offsets: Any,
    sizes: Any,
    tag: int,
    precision_ms: int,
    found: Any,
    bodies: Any,
    body_ends: Any,
    ids: Any,
    id_ends: Any,
    due_ms: Any,
    fired_ms: Any,
    good: Any,
) -> int:
    """Read the messages at `offsets`; return how many are sound, or PULL_UNMAPPED. O(bytes).

    `offsets`: int64[n], `sizes`: int32[n]. Written, a place for each sound one: `bodies` and `ids`:
    uint8, `body_ends` and `id_ends`: int32[n + 1], `due_ms` and `fired_ms`: int64[n]; and `good`:
    bool[n], which those are. Each message's CRC is checked. A message without a due time is due
    when it was stored.
    """
    count = 0
    body_end, id_end = 0, 0
    body_ends[0] = 0
    id_ends[0] = 0
    segment_bytes = commitlog.words[SEGMENT_BYTES]
    for k in range(len(offsets)):
        if k + _AHEAD < len(offsets):
            ahead = segment_at(commitlog, offsets[k + _AHEAD])
            at = offsets[k + _AHEAD] % segment_bytes
            for line in range(0, 448, 64):
                prefetch(ahead, at + line)
        buf = segment_at(commitlog, offsets[k])
        if len(buf) == 0:
            return PULL_UNMAPPED
        at = offsets[k] % segment_bytes
        good[k] = read_message(buf, at, found, True) == GOOD and found[SIZE] == sizes[k]
        if not good[k]:
            continue
        if found[BODY_BYTES] > 0:
            copy_bytes(bodies, body_end, buf, found[BODY_AT], found[BODY_BYTES])
            body_end += found[BODY_BYTES]
        if found[KEY_BYTES] > 0:
            copy_bytes(ids, id_end, buf, found[KEY_AT], found[KEY_BYTES])
            id_end += found[KEY_BYTES]
        body_ends[count + 1] = body_end
        id_ends[count + 1] = id_end
        fired_ms[count] = get_i64(buf, stored_at(buf, at))
        due_ms[count] = fired_ms[count]
        if found[DUE_MS] >= 0:
            due_ms[count] = exact_due_ms(buf, found, tag, precision_ms)
        count += 1
    return count
