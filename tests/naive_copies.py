"""A slow, obvious twin: which message is a copy of which, where no copy says so."""

from collections import defaultdict

import numpy as np

from timerstore.timelog.reading.scan import LoggedMessages

_LEVEL = -1


def match(
    rows: LoggedMessages, in_timer_topic: np.ndarray, in_level_topic: np.ndarray
) -> dict[int, int]:
    """Return the source of each copy of a whole log that does not name it, by their offsets."""
    known = set(rows.origin.tolist())
    sources: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    found: dict[int, int] = {}

    def take(who: tuple[int, int, int, int], copy: int) -> bool:
        """Note the oldest source of this kind that has no copy; tell if there is one."""
        while sources[who]:
            source = sources[who].pop(0)
            if source not in known:
                found[copy] = source
                return True
        return False

    for i, row in enumerate(rows):
        waits, in_level = bool(in_timer_topic[i]), bool(in_level_topic[i])
        rolls, offset, is_delete = int(row.roll_times), int(row.offset), int(row.is_delete)
        who = int(row.identity_high), int(row.identity_low)
        timed = row.due_ms >= 0
        if row.real_topic_bytes < 0 or (waits and not timed):
            continue
        if row.origin < 0:
            if waits and rolls > 0:
                take((*who, rolls - 1, is_delete), offset)
            elif not waits and not in_level:
                (timed and take((*who, rolls, is_delete), offset)) or take(
                    (*who, _LEVEL, 0), offset
                )
        if waits:
            sources[*who, rolls, is_delete].append(offset)
        elif in_level:
            sources[*who, _LEVEL, 0].append(offset)
    return found
