"""What the parts of a store tell each other: notes, as arrays of int64.

A rule that needs two places of a store, such as a slot with its units, is judged where the notes of
both meet. Each note goes to a *bucket* by what it is about: by slot, or by timer. A bucket can be
judged by a process that has all its notes, so buckets are judged on any machine, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from timerstore.jit.record import Words
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.reading.rowsums import divided

# Kinds of notes, with their columns.
UNIT_NOTE: Final = 0  # by slot
UNIT_SLOT: Final = 0
UNIT_OFFSET: Final = 1
UNIT_LINK: Final = 2  # prev_pos × 8, + 1 for a delete, + 2 if it is superseded, + 4 for a roll

SLOT_NOTE: Final = 1  # by slot
SLOT_TIME: Final = 0
SLOT_INDEX: Final = 1
SLOT_FIRST: Final = 2
SLOT_LAST: Final = 3
SLOT_COUNT: Final = 4

TIMER_NOTE: Final = 2  # by timer: a message
TIMER_KEY: Final = 0
TIMER_OFFSET: Final = 1
TIMER_DUE_MS: Final = 2  # to the millisecond; −1 if it has none
TIMER_WORD: Final = 3

COPY_NOTE: Final = 3  # by timer: a message that says what it is a copy of; TIMER_ columns, and
COPY_ORIGIN: Final = 4

LINK_NOTE: Final = 4  # by timer: a unit that points to its message
LINK_KEY: Final = 0
LINK_MESSAGE: Final = 1
LINK_UNIT: Final = 2  # the unit's offset × 32, + bits

# Only if a store is measured as well, see `measured.py`:
LOAD_NOTE: Final = 5  # by slot: a live unit ahead
LOAD_SLOT: Final = 0
LOAD_MESSAGE: Final = 1
LOAD_WORD: Final = 2

EXPECTED_NOTE: Final = 6  # by slot: where messages say that units of other slots belong
EXPECTED_SLOT: Final = 0
EXPECTED_COUNT: Final = 1

COLUMNS: Final = (3, 5, 4, 5, 3, 3, 2)
"""Of each kind. A store has a note of three kinds for each timer, so each column counts."""
BY_SLOT: Final = (UNIT_NOTE, SLOT_NOTE, LOAD_NOTE, EXPECTED_NOTE)

# Bits of TIMER_WORD. What it is:
IS_TIMER: Final = 0
IS_DELETE: Final = 1
IS_FIRED: Final = 2
IS_LEVEL: Final = 3
KIND_BITS: Final = 3
TIMER_UNLINKED: Final = 4  # its entry lies at or after the queue cursor, or its level's offset
TIMER_OLD: Final = 8  # before the first unit that is kept
TIMER_OURS: Final = 16
TIMER_WITHOUT_DUE: Final = 32  # of a broker: from a level, maybe; TIMER_DUE_MS: when it was stored
TIMER_FIRST: Final = 64  # of a level: not sent back, so a delete of its key means it
TIMER_FILLER: Final = 128  # of a salvage: stands for the copy that was lost there
ROLLS_SHIFT: Final = 8
ROLLS_MAX: Final = (1 << 24) - 1
TOPIC_SHIFT: Final = 32

# Bits of LINK_UNIT.
LINK_SHIFT: Final = 4
LINK_WAITING: Final = 1  # in a slot that is not passed
LINK_EARLY: Final = 2  # in a slot before the due time: sound if a copy was made
LINK_HOP: Final = 4  # linked by a hop: its message had a unit before
LINK_BY_BROKER: Final = 8

# Bits of LOAD_WORD.
LOAD_ROLL: Final = 1
LOAD_LATE: Final = 2  # its own slot has passed
LOAD_HASH_SHIFT: Final = 2
LOAD_SIZE_SHIFT: Final = 34
LOAD_SIZE_BITS: Final = 26
LOAD_ELSEWHERE_SHIFT: Final = 60  # its message says that it belongs to another slot

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


class Note(NamedTuple):
    """Notes of one kind that go to one bucket."""

    bucket: int
    kind: int
    rows: Words


def fold_identity(high: Words, low: Words) -> Words:
    """Return one int64 that stands for a timer; ours are told by their first put's offset."""
    folded: Words = np.where(high == IDENTITY_OURS, low, (high * np.int64(31)) ^ low)
    return folded


def bucket_of(about: Words, bucket_count: int) -> Words:
    """Return the bucket of each slot, or timer; close ones are spread over all buckets."""
    mixed = (about.astype(np.uint64) * _MIX) >> np.uint64(40)
    return (mixed % np.uint64(bucket_count)).astype(np.int64)


def into_buckets(kind: int, rows: Words, bucket_count: int) -> Iterator[Note]:
    """Divide notes by bucket, keeping their order; slots' buckets come before timers'."""
    if not len(rows):
        return
    assert rows.shape[1] == COLUMNS[kind]
    base = 0 if kind in BY_SLOT else bucket_count
    rows, ends = divided(rows, bucket_of(rows[:, 0], bucket_count), bucket_count)
    for bucket in range(bucket_count):
        part = rows[(ends[bucket - 1] if bucket else 0) : ends[bucket]]
        if len(part):
            yield Note(base + bucket, kind, part)
