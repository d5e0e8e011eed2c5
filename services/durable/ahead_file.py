"""`config/aheadcounts.json`: when what is pending falls due, by topic, as of a clean close.

So that opening need not look at every timer. It counts only together with what else that close
left. It does not count if the log ends elsewhere, the counts differ from `config/timermetrics`, or
the clock went back.
"""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np

from timerstore.errors import TimerStoreError
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.files.jsonfile import (
    check_seal,
    read_json,
    sealed,
    understood,
    whole,
    write_json,
)
from timerstore.timelog.files.names import INT32_MAX, is_topic
from timerstore.timelog.writing.tally import (
    AHEAD_BUCKETS,
    FAR_COUNT,
    KEPT_FROM,
    OVERDUE_COUNT,
    OVERDUE_FROM_MS,
    PENDING_BYTES,
    RING_COUNT,
    RING_PASSED,
    RING_SHIFT,
    RING_STEP,
    TALLY_WORDS,
)

AHEAD_FILE: Final = "aheadcounts.json"
_WORD_MAX: Final = 1 << 62


def write_ahead(engine: Engine) -> None:
    """Write the file; no service runs any more. Durable on return. O(queues)."""
    tally, rows = engine.queues.table.tally, []
    words = tally.words.reshape(-1, TALLY_WORDS)
    for row, topic in enumerate(engine.queues.topics):
        mine = words[row]
        if not mine[KEPT_FROM : KEPT_FROM + RING_COUNT].any() and not mine[FAR_COUNT]:
            continue
        counts = tally.ahead[row * AHEAD_BUCKETS : (row + 1) * AHEAD_BUCKETS]
        used = np.flatnonzero(counts)
        rows.append(
            {
                "topic": text(topic),
                "queue": int(engine.queues.table.queue_id[row]),
                "words": mine[PENDING_BYTES : KEPT_FROM + RING_COUNT].tolist(),
                "buckets": used.tolist(),
                "counts": counts[used].tolist(),
            }
        )
    content = {"logEnd": engine.commitlog.end, "rows": rows}
    write_json(engine.disk, engine.path / "config" / AHEAD_FILE, sealed(content))


def take_ahead(engine: Engine, log_end: int, metrics: dict[str, Any]) -> bool:
    """Take the counts; False, and nothing taken, if they do not hold.

    `metrics`: what `config/timermetrics` says.
    """
    path = engine.path / "config" / AHEAD_FILE
    try:
        content = read_json(path, engine.disk.read) or {}
        check_seal(path, content)
        if content.get("logEnd") != log_end:
            return False
        with understood(AHEAD_FILE):
            found = [_decode(row) for row in content["rows"]]
            pending = _by_topic(metrics)
    except TimerStoreError:
        return False
    counted: dict[str, int] = {}
    for topic, _, words, _, counts in found:
        far, overdue = int(words[FAR_COUNT]), int(words[OVERDUE_COUNT])
        counted[topic] = counted.get(topic, 0) + int(counts.sum()) + far + overdue
    if {k: n for k, n in counted.items() if n} != {k: n for k, n in pending.items() if n}:
        return False
    tally, now_ms = engine.queues.table.tally, engine.clock.now_ms
    for _, _, words, _, _ in found:
        kept = words[KEPT_FROM : KEPT_FROM + RING_COUNT] + RING_PASSED
        if (kept > now_ms >> (RING_SHIFT + RING_STEP * np.arange(RING_COUNT))).any():
            return False  # the clock went back
    for topic, queue_id, words, buckets, counts in found:
        row = engine.queues.row(os.fsencode(topic), queue_id)
        first = row * TALLY_WORDS + PENDING_BYTES
        tally.words[first : (row + 1) * TALLY_WORDS] = words[PENDING_BYTES:]
        tally.ahead[row * AHEAD_BUCKETS + buckets] = counts
    return True


def _by_topic(known: dict[str, Any]) -> dict[str, int]:
    """Return how many timers each topic has, with those in levels."""
    counts: dict[str, int] = {}
    levels = known.get("levelCount")
    for table in (known["timingCount"], levels if isinstance(levels, dict) else {}):
        for topic, entry in table.items():
            _check_topic(topic)
            counts[topic] = counts.get(topic, 0) + whole(entry["count"])
    return counts


def _check_topic(topic: str) -> None:
    if not is_topic(os.fsencode(topic)):
        raise ValueError(f"{topic!r} is no topic")


def _decode(row: dict[str, Any]) -> tuple[str, int, Any, Any, Any]:
    """Return topic, queue id, words as in a row of the tally, buckets with their counts.

    Raises what `understood` takes if that is not what stands there.
    """
    words = np.zeros(TALLY_WORDS, np.int64)
    words[PENDING_BYTES : KEPT_FROM + RING_COUNT] = row["words"]
    buckets, counts = np.array(row["buckets"], np.int64), np.array(row["counts"], np.int32)
    if buckets.shape != counts.shape or buckets.ndim != 1:
        raise ValueError("it does not have a count for each bucket")
    sound = (buckets >= 0).all() and (buckets < AHEAD_BUCKETS).all() and (counts > 0).all()
    signs = np.abs(words) < _WORD_MAX
    sound &= (words[[PENDING_BYTES, OVERDUE_COUNT, FAR_COUNT]] >= 0).all() and signs.all()
    if not sound or len(np.unique(buckets)) != len(buckets) or words[OVERDUE_FROM_MS] < 0:
        raise ValueError("its counts are not whole numbers from 0 on")
    _check_topic(row["topic"])
    return row["topic"], whole(row["queue"], 0, INT32_MAX), words, buckets, counts
