"""What a clean close leaves, so that opening need not read all: two derived files.

`config/aheadcounts`: when what is pending falls due, by topic. It is the arrays as they are in
memory, without their zeros. If they do not hold, or the clock went back, opening counts again.
`config/cancelledset`: which timers still ahead were cancelled; else opening looks for deletes among
all units.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import Rows, Words
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.instant import used_slots
from timerstore.services.looking.read_pending import read_timers, reading_all
from timerstore.services.looking.read_units import chain_units
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.message import IDENTITY_HELD
from timerstore.timelog.files.checkpoint import (
    AHEAD_FILE,
    CANCELLED_FILE,
    Stamp,
    TimerCheckpoint,
    read_derived,
    write_derived,
)
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
from timerstore.wheel import judge
from timerstore.wheel.cancelled import are_of_level
from timerstore.wheel.sets import SET_ENTRY_WORDS

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
    words, ahead = (each[: len(engine.queues.topics)] for each in _of_rows(engine))
    kept = words[:, KEPT_FROM : KEPT_FROM + DUE_RING_COUNT].any(axis=1) | (words[:, FAR_COUNT] != 0)
    numbers = np.flatnonzero(kept).tolist()
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


# --- what was cancelled


def write_cancelled(engine: Engine, stamp: Stamp, checkpoint: TimerCheckpoint) -> None:
    """Write the file of a clean close; no service runs any more. Durable on return.

    O(set + units of slots that were claimed). What is held is left out: opening finds it behind the
    copies cursor.
    """
    if not checkpoint.cancelled_count:
        return
    entries = engine.cancelled.table.reshape(-1, SET_ENTRY_WORDS)
    is_kept = (entries != 0).any(axis=1) & (entries[:, 0] != IDENTITY_HELD)
    try:
        passed = list(_passed_targets(engine, checkpoint))
    except CorruptStoreError:  # opening names it when it reads all units
        return
    identities = np.concatenate([entries[is_kept], *passed])
    write_derived(engine.disk, engine.path / CANCELLED_FILE, stamp, identities)


def _passed_targets(engine: Engine, checkpoint: TimerCheckpoint) -> Iterator[Rows]:
    """Yield the targets of timers' deletes in slots that are claimed: int64[n, 2].

    Some have left the set, because they were passed. The next life reads these slots again, and in
    them what was cancelled. A level's loop does not read its messages again.
    """
    reading = reading_all(engine)
    read_slot = checkpoint.read_ms // engine.precision_ms
    for units in chain_units(engine, used_slots(engine.world, read_slot, checkpoint.claimed_slot)):
        messages: Words = units.message[units.magic & fmt.UNIT_DELETE != 0]
        found = read_timers(engine, messages, reading)
        known = found.verdict == judge.DELETE
        known &= ~are_of_level(found.high, found.low)
        yield np.stack((found.high[known], found.low[known]), axis=1)


def read_cancelled(engine: Engine, stamp: Stamp) -> Rows | None:
    """Return the identities in it, int64[n, 2]; None if it does not hold."""
    arrays = read_derived(engine.disk, engine.path / CANCELLED_FILE, stamp, np.dtype("<i8"))
    if arrays is None or len(arrays[0]) % SET_ENTRY_WORDS:
        return None
    words: Rows = arrays[0].reshape(-1, SET_ENTRY_WORDS)
    return words
