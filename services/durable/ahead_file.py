"""`config/aheadcounts`: when what is pending falls due, by topic, as of a clean close.

So that opening need not look at every timer. It is the arrays as they are in memory, without their
zeros. If they do not hold, or the clock went back, opening counts again.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.services.engine.engine import Engine
from timerstore.timelog.files.derived import AHEAD_FILE, Stamp, read_derived, write_derived
from timerstore.timelog.files.names import INT32_MAX, is_topic
from timerstore.timelog.writing.append import NAME_STRIDE
from timerstore.timelog.writing.tally import (
    AHEAD_BUCKETS,
    DUE_RING_COUNT,
    FAR_COUNT,
    KEPT_FROM,
    PENDING_BYTES,
    RING_PASSED,
    RING_SHIFT,
    RING_STEP,
    TALLY_WORDS,
)

_WORDS: Final = slice(PENDING_BYTES, KEPT_FROM + DUE_RING_COUNT)
_ROW: Final = np.dtype(
    [
        ("queue_id", "<i4"),
        ("name_bytes", "<i4"),
        ("name", "u1", NAME_STRIDE),
        ("words", "<i8", _WORDS.stop - _WORDS.start),
    ]
)
_BUCKET: Final = np.dtype([("place", "<i8"), ("count", "<i8")])
"""Counts of what is due: `place` is its row's number here × AHEAD_BUCKETS + the bucket."""


def write_ahead(engine: Engine, stamp: Stamp) -> None:
    """Write the file; no service runs any more. Durable on return. O(queues)."""
    words, ahead = _of_rows(engine)
    kept = words[:, KEPT_FROM : KEPT_FROM + DUE_RING_COUNT].any(axis=1) | (words[:, FAR_COUNT] != 0)
    numbers = [row for row in range(len(engine.queues.topics)) if kept[row]]
    rows, buckets = np.zeros(len(numbers), _ROW), [np.zeros(0, _BUCKET)]
    rows["words"] = words[numbers, _WORDS]
    rows["queue_id"] = engine.queues.table.queue_id[numbers]
    for place, row in enumerate(numbers):
        name = np.frombuffer(engine.queues.topics[row], np.uint8)
        rows["name_bytes"][place], rows["name"][place, : len(name)] = len(name), name
        counts = ahead[row]
        used = np.flatnonzero(counts)
        buckets.append(np.zeros(len(used), _BUCKET))
        buckets[-1]["place"], buckets[-1]["count"] = place * AHEAD_BUCKETS + used, counts[used]
    write_derived(engine.disk, engine.path / AHEAD_FILE, stamp, rows, np.concatenate(buckets))


def take_ahead(engine: Engine, stamp: Stamp) -> bool:
    """Take the counts; False, and nothing taken, if they do not hold."""
    arrays = read_derived(engine.disk, engine.path / AHEAD_FILE, stamp, _ROW, _BUCKET)
    if arrays is None:
        return False
    rows, buckets = arrays
    topics = [each["name"][: each["name_bytes"]].tobytes() for each in rows]
    sound = all(map(is_topic, topics)) and (rows["queue_id"] >= 0).all()
    sound &= (0 <= buckets["place"]).all() and (buckets["place"] < len(rows) * AHEAD_BUCKETS).all()
    sound &= (buckets["count"] > 0).all() and (buckets["count"] <= INT32_MAX).all()
    if not sound:
        return False
    kept = rows["words"][:, KEPT_FROM - _WORDS.start :] + RING_PASSED
    now = engine.clock.now_ms >> (RING_SHIFT + RING_STEP * np.arange(DUE_RING_COUNT))
    if (kept > now).any():
        return False  # the clock went back
    numbers = np.zeros(len(rows), np.int64)
    for place, topic in enumerate(topics):
        numbers[place] = engine.queues.row(topic, int(rows["queue_id"][place]))
    words, ahead = _of_rows(engine)
    words[numbers, _WORDS] = rows["words"]
    places, bucket = np.divmod(buckets["place"], AHEAD_BUCKETS)
    ahead[numbers[places], bucket] = buckets["count"]
    return True


def _of_rows(engine: Engine) -> tuple[Any, Any]:
    """Return the words and the buckets of each row."""
    tally = engine.queues.table.tally
    return tally.words.reshape(-1, TALLY_WORDS), tally.ahead.reshape(-1, AHEAD_BUCKETS)
