"""The words that the services share, with the one writer of each.

All are int64 in one array. Unless a line says otherwise, a word is read and written under the
*step lock*, which each service holds for one bounded step; Python takes the same lock to cancel,
to look at pending timers and to capture a checkpoint. A slot here is a time divided by the
precision, not yet an index into the ring.
"""

from __future__ import annotations

from typing import Final

# --- fixed when the store opens
PRECISION: Final = 0  # ms of one slot
SLOT_COUNT: Final = 1  # the ring holds twice as many
WINDOW: Final = 2  # W: slots; what lies further ahead rolls
HOP: Final = 3  # H: 2W/3 slots
STORE_TAG: Final = 4  # uint32 at the end of our UNIQ_KEYs

# --- cursors
READ: Final = 8  # R: all slots before it are fired. Written by dequeue-put; never falls
CLAIMED: Final = 9  # C: slots in [R, C) are in the near wheel. Written by dequeue-get
LINKED: Final = 10  # Q: timer queue entries before it have their unit. Written by enqueue-put
GOT: Final = 11  # entries before it are in the enqueue-put queue. Written by enqueue-get
READ_CHECKPOINTED: Final = 12  # R of the last durable checkpoint. Written by flush
FRONTIER: Final = 13  # no timer due later than this ms was ever taken. Written by dequeue-*
SCAN: Final = 14  # ms: the near wheel's buckets before it are empty. Written by dequeue-get, -put
CLAIM_OFFSET: Final = 15  # the unit at which a claim goes on, −1 for none. Written by dequeue-get
TAKE_LIMIT: Final = 17  # nothing behind this ms is taken; set by a handover
ROLLS_BEFORE: Final = 16  # timer queue index behind the last roll of a passed slot

# --- sets: address and length of their arrays; replaced by Python under the step lock
CANCELLED_ADDRESS: Final = 20
CANCELLED_LENGTH: Final = 21  # int64 words: two for each entry
CANCELLED_COUNT: Final = 22
DONE_ADDRESS: Final = 23
DONE_LENGTH: Final = 24
DONE_COUNT: Final = 25

# --- why a step could not go on; read by the thread that ran the step
NEED: Final = 32
NEED_OFFSET: Final = 33
WANT_FLUSH: Final = 34  # R waits for a newer checkpoint. Written by dequeue-put, cleared by flush
STOP: Final = 35  # the resident kernel shall return. Written by Python without the lock
SLEEPING: Final = 36  # the resident kernel sleeps, or is about to, until this ms; 0: awake. Atomic
NOW: Final = 37  # the clock of the last step; for those who look on

# --- counters since the store was opened; read without the lock
COUNT_LINKED: Final = 40
COUNT_FIRED: Final = 41
COUNT_ROLLED: Final = 42
COUNT_DROPPED: Final = 43  # cancelled timers that were reached
COUNT_UNREADABLE: Final = 44
COUNT_COLLISIONS: Final = 45  # slots that were needed twice: must stay 0
LAST_UNREADABLE: Final = 46  # commit log offset
LATENESS_SUM_MS: Final = 47
LATENESS_MAX_MS: Final = 48

WORDS: Final = 128

# NEED: what a step waits for. NEED_OFFSET says which.
NOTHING: Final = 0
COMMITLOG_SEGMENT: Final = 1  # to append to
QUEUE_SEGMENT: Final = 2  # of the row in NEED_OFFSET
TIMERLOG_SEGMENT: Final = 3  # that holds the offset; made if it lies at the end
COMMITLOG_READ: Final = 4  # a segment to read from
TIMER_QUEUE_READ: Final = 5  # a segment of the timer queue, by its byte offset
TOPIC: Final = 6  # the destination of the message at this offset has no row
CANCELLED_ROOM: Final = 7  # the cancelled set must grow
NEAR_FULL: Final = 8  # the near wheel's limit is reached
DAMAGED_TIMERLOG: Final = 9  # the unit at this offset is damaged
FLUSHED: Final = 10  # R waits for a checkpoint
LEVEL_READ: Final = 11  # the segment that the level in NEED_OFFSET wants of its queue
