"""Every byte that stands on disk, declared once.

All integers are big-endian and signed unless a comment says otherwise. The layouts are those of
Apache RocketMQ 5.x (`MessageExtEncoder`, `ConsumeQueue`, `TimerLog`, `Slot`, `TimerCheckpoint`);
`docs/format.md` shows real records. Kernels use the `*_AT` positions, Python the NumPy dtypes; the
asserts below keep the two together.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

# --- message: one record of the commit log -----------------------------------------------------
#
#   0        4        8        12       16       20                28
#   ┌────────┬────────┬────────┬────────┬────────┬─────────────────┬─────────────────┐
#   │ size   │ magic  │ body   │ queue  │ flag   │ queue offset    │ own offset in   │
#   │        │        │ CRC    │ id     │        │ (an index)      │ the commit log  │
#   └────────┴────────┴────────┴────────┴────────┴─────────────────┴─────────────────┘
#   36       40                48                56                64
#   ┌────────┬─────────────────┬─────────────────┬─────────────────┬─────────────────┐
#   │ system │ born, ms        │ born host: IPv4 │ stored, ms      │ store host      │
#   │ flag   │                 │ and int32 port  │                 │                 │
#   └────────┴─────────────────┴─────────────────┴─────────────────┴─────────────────┘
#   72       76                84       88
#   ┌────────┬─────────────────┬────────┬──────┬────────┬───────┬────────┬────────────┐
#   │ recon- │ prepared trans- │ body   │ body │ topic  │ topic │ proper-│ properties │
#   │ sumes  │ action offset   │ bytes  │ …    │ bytes 1│ …     │ ties 2 │ …          │
#   └────────┴─────────────────┴────────┴──────┴────────┴───────┴────────┴────────────┘
#
# A host takes 20 bytes if its IPv6 bit is set in the system flag; what follows then moves by 12.

MESSAGE_HEADER: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_index", ">i8"),
        ("offset", ">i8"),
        ("system_flag", ">i4"),
        ("born_ms", ">i8"),
        ("born_host", "V8"),
        ("stored_ms", ">i8"),
        ("store_host", "V8"),
        ("reconsume_times", ">i4"),
        ("prepared_offset", ">i8"),
        ("body_bytes", ">i4"),
    ]
)


def _at(layout: np.dtype[Any], name: str) -> int:
    fields = layout.fields
    assert fields is not None
    return int(fields[name][1])


MESSAGE_SIZE_AT: Final = _at(MESSAGE_HEADER, "size")
MESSAGE_MAGIC_AT: Final = _at(MESSAGE_HEADER, "magic")
MESSAGE_BODY_CRC_AT: Final = _at(MESSAGE_HEADER, "body_crc")
MESSAGE_QUEUE_ID_AT: Final = _at(MESSAGE_HEADER, "queue_id")
MESSAGE_FLAG_AT: Final = _at(MESSAGE_HEADER, "flag")
MESSAGE_QUEUE_INDEX_AT: Final = _at(MESSAGE_HEADER, "queue_index")
MESSAGE_OFFSET_AT: Final = _at(MESSAGE_HEADER, "offset")
MESSAGE_SYSTEM_FLAG_AT: Final = _at(MESSAGE_HEADER, "system_flag")
MESSAGE_BORN_AT: Final = _at(MESSAGE_HEADER, "born_ms")
MESSAGE_STORED_AT: Final = _at(MESSAGE_HEADER, "stored_ms")
MESSAGE_STORE_HOST_AT: Final = _at(MESSAGE_HEADER, "store_host")
MESSAGE_RECONSUME_AT: Final = _at(MESSAGE_HEADER, "reconsume_times")
MESSAGE_BODY_BYTES_AT: Final = _at(MESSAGE_HEADER, "body_bytes")
MESSAGE_HEADER_BYTES: Final = 88
MESSAGE_BYTES_MIN: Final = 91
assert MESSAGE_HEADER.itemsize == MESSAGE_HEADER_BYTES
assert (MESSAGE_QUEUE_INDEX_AT, MESSAGE_OFFSET_AT, MESSAGE_STORED_AT) == (20, 28, 56)

MESSAGE_MAGIC: Final = 0xDAA320A7
MESSAGE_MAGIC_LONG_TOPIC: Final = 0xDAA320AB
"""The topic's length takes two bytes: for topics over 127 bytes."""
BLANK_MAGIC: Final = 0xCBD43194
"""int32 remaining bytes, int32 this: the rest of a segment holds nothing."""
BLANK_BYTES: Final = 8
"""A broker's blank; no message ends closer to its segment's end."""
BLANK_MAGIC_AT: Final = 4
BLANK_OFFSET_AT: Final = 8
BLANK_CRC_AT: Final = 16
"""uint32: the CRC-32 of the 16 bytes before it, in a blank of ours."""
SEALED_BLANK_BYTES: Final = 24
"""A blank of ours, with four bytes that stay 0; what we write ends no closer to the end."""
HOST_V6_EXTRA_BYTES: Final = 12
SYSTEM_FLAG_BORN_V6: Final = 0x10
SYSTEM_FLAG_STORE_V6: Final = 0x20
BODY_CRC_MASK: Final = 0x7FFFFFFF
MESSAGE_BYTES_MAX: Final = 4 << 20
PROPERTIES_BYTES_MAX: Final = 32_767

OUR_HOST: Final = bytes([127, 0, 0, 1, 0, 0, 0, 0])
"""The host that stored what we write, except our copies of a broker's: no broker has port 0."""

# --- properties: `name 0x01 value 0x02` repeated ------------------------------------------------

NAME_END: Final = 0x01
VALUE_END: Final = 0x02
PROPERTY_CRC: Final = b"__CRC32#"
CRC_PROPERTY_BYTES: Final = 20
"""`__CRC32#`, 0x01, ten decimal digits least significant first, 0x02: a message's last 20 bytes."""

PROPERTY_DUE: Final = b"TIMER_OUT_MS"
PROPERTY_DELIVER: Final = b"TIMER_DELIVER_MS"
PROPERTY_DELAY_MS: Final = b"TIMER_DELAY_MS"
PROPERTY_DELAY_SEC: Final = b"TIMER_DELAY_SEC"
PROPERTY_LEVEL: Final = b"DELAY"
PROPERTY_UNIQUE_KEY: Final = b"UNIQ_KEY"
PROPERTY_REAL_TOPIC: Final = b"REAL_TOPIC"
PROPERTY_REAL_QUEUE: Final = b"REAL_QID"
PROPERTY_ENQUEUED: Final = b"TIMER_ENQUEUE_MS"
PROPERTY_DEQUEUED: Final = b"TIMER_DEQUEUE_MS"
PROPERTY_ROLL_TIMES: Final = b"TIMER_ROLL_TIMES"
PROPERTY_DELETES: Final = b"TIMER_DEL_UNIQKEY"
PROPERTY_ORIGIN: Final = b"TIMER_ORIGIN"
PROPERTY_REPLACES: Final = b"TIMER_REPLACES"
PROPERTY_TAGS: Final = b"TAGS"
PROPERTY_KEYS: Final = b"KEYS"
PROPERTY_RETRY_TOPIC: Final = b"RETRY_TOPIC"
PROPERTY_ORIGIN_ID: Final = b"ORIGIN_MESSAGE_ID"
PROPERTY_PUT_BY: Final = b"PUT_BY"  # ours: the client that put it, see `timerstore/share/`
PROPERTY_FIRST_FAILED: Final = b"TIMER_FIRST_FAILED_MS"
PROPERTY_EXPIRES: Final = b"TIMER_EXPIRES_MS"  # ours: not to be handed out after that
PROPERTY_FIRST_PUT: Final = b"TIMER_FIRST_PUT_MS"  # ours: of a debounce, see `put`
PROPERTY_ERROR_TYPE: Final = b"TIMER_ERROR_TYPE"
PROPERTY_ERROR_TEXT: Final = b"TIMER_ERROR_TEXT"

FLAG_EXPIRES: Final = 1 << 24
"""Of a message's flag, which goes with it everywhere: look whether it has PROPERTY_EXPIRES."""

RESERVED_PROPERTIES: Final = frozenset(
    name.decode()
    for name in (
        *(PROPERTY_CRC, PROPERTY_DUE, PROPERTY_DELIVER, PROPERTY_DELAY_MS, PROPERTY_DELAY_SEC),
        *(PROPERTY_LEVEL, PROPERTY_UNIQUE_KEY, PROPERTY_REAL_TOPIC, PROPERTY_REAL_QUEUE),
        *(PROPERTY_ENQUEUED, PROPERTY_DEQUEUED, PROPERTY_ROLL_TIMES, PROPERTY_DELETES),
        *(PROPERTY_ORIGIN, PROPERTY_REPLACES, PROPERTY_TAGS, PROPERTY_KEYS),
        *(PROPERTY_PUT_BY, PROPERTY_RETRY_TOPIC, PROPERTY_ORIGIN_ID),
        *(PROPERTY_FIRST_FAILED, PROPERTY_ERROR_TYPE, PROPERTY_ERROR_TEXT),
        *(PROPERTY_EXPIRES, PROPERTY_FIRST_PUT),
        *(
            b"TRACE_ON",
            b"MSG_REGION",
            b"WAIT",
            b"PGROUP",
            b"MIN_OFFSET",
            b"MAX_OFFSET",
            b"TRAN_MSG",
        ),
        *(b"BUYER_ID", b"RECONSUME_TIME", b"MAX_RECONSUME_TIMES", b"CONSUME_START_TIME"),
        *(b"INNER_NUM", b"INNER_BASE", b"DUP_INFO", b"CLUSTER", b"INSTANCE_ID", b"CORRELATION_ID"),
        *(b"REPLY_TO_CLIENT", b"TTL", b"ARRIVE_TIME", b"PUSH_REPLY_TIME", b"MSG_TYPE", b"POP_CK"),
        *(b"POP_CK_OFFSET", b"1ST_POP_TIME", b"TRANSACTION_CHECK_TIMES", b"__SHARDINGKEY"),
        *(b"REAL_TOPIC_WITH_RETRY", b"CHECK_IMMUNITY_TIME_IN_SECONDS", b"__transactionId__"),
    )
)

TIMER_TOPIC: Final = b"rmq_sys_wheel_timer"
LEVEL_TOPIC: Final = b"SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = b"RMQ_SYS_TRANS_HALF_TOPIC"
"""Of halves of transactions. One that waits in a delay level is dropped, as a broker does."""
SALVAGED_TOPIC: Final = b"SALVAGED"
"""Of the messages that fill what is lost of a commit log, see `compose.py`. Nobody reads it."""
RETRY_PREFIX: Final = b"%RETRY%"
DEAD_PREFIX: Final = b"%DLQ%"
TOPIC_BYTES_MAX: Final = 127
TOPIC_BYTES_READ_MAX: Final = 255
"""The longest topic that is understood when read; a broker's own limit is 127."""
KEY_DIGITS: Final = 32
"""Our `UNIQ_KEY`: 12 hex digits due time, 12 commit log offset, 8 store tag."""
LEVEL_COUNT_MAX: Final = 32
"""Delay levels that a store can have, each a queue of LEVEL_TOPIC; the checkpoint has as many."""
LEVEL_MARK: Final = 1 << 47
"""Set in the offset of a `UNIQ_KEY` whose message waits in a delay level: logs end at 140 TB."""
TAGS_HASH_MAX: Final = 0x7FFFFFFF
"""A tags code above it is no hash but a due time: that of a delay level's message."""
assert len(TIMER_TOPIC) == len(LEVEL_TOPIC)  # so one template fits both

# --- consume queue entry ------------------------------------------------------------------------
#
#   0                 8        12                20
#   ┌─────────────────┬────────┬─────────────────┐
#   │ commit log      │ size   │ tags code       │
#   │ offset          │        │                 │
#   └─────────────────┴────────┴─────────────────┘

QUEUE_ENTRY: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
Entries = np.ndarray[Any, Any]
"""Of QUEUE_ENTRY."""
ENTRY_BYTES: Final = 20
ENTRY_OFFSET_AT: Final = _at(QUEUE_ENTRY, "offset")
ENTRY_SIZE_AT: Final = _at(QUEUE_ENTRY, "size")
ENTRY_TAGS_AT: Final = _at(QUEUE_ENTRY, "tags_code")
assert QUEUE_ENTRY.itemsize == ENTRY_BYTES

# --- key index (`index/`): RocketMQ's IndexFile. A header, slots of four bytes, then entries, the
# first of which is unused. A slot, or an entry, names the entry before it in its chain; 0: none.

KEY_HEADER: Final = np.dtype(
    [
        ("begin_ms", ">i8"),  # stored time of the first message, and of the last
        ("end_ms", ">i8"),
        ("begin_offset", ">i8"),
        ("end_offset", ">i8"),
        ("used_slots", ">i4"),
        ("next_entry", ">i4"),
    ]
)
KEY_ENTRY: Final = np.dtype(
    [
        ("hash", ">i4"),  # |h| of Java's String.hashCode of topic + "#" + key
        ("offset", ">i8"),
        ("seconds", ">i4"),  # stored time since the first message's
        ("previous", ">i4"),
    ]
)
KEY_HEADER_BYTES: Final = 40
KEY_SLOT_BYTES: Final = 4
KEY_ENTRY_BYTES: Final = 20
KEY_BEGIN_MS_AT: Final = _at(KEY_HEADER, "begin_ms")
KEY_END_MS_AT: Final = _at(KEY_HEADER, "end_ms")
KEY_BEGIN_OFFSET_AT: Final = _at(KEY_HEADER, "begin_offset")
KEY_END_OFFSET_AT: Final = _at(KEY_HEADER, "end_offset")
KEY_USED_SLOTS_AT: Final = _at(KEY_HEADER, "used_slots")
KEY_NEXT_ENTRY_AT: Final = _at(KEY_HEADER, "next_entry")
KEY_HASH_AT: Final = _at(KEY_ENTRY, "hash")
KEY_OFFSET_AT: Final = _at(KEY_ENTRY, "offset")
KEY_SECONDS_AT: Final = _at(KEY_ENTRY, "seconds")
KEY_PREVIOUS_AT: Final = _at(KEY_ENTRY, "previous")
assert KEY_HEADER.itemsize == KEY_HEADER_BYTES and KEY_ENTRY.itemsize == KEY_ENTRY_BYTES
QUEUE_BLANK_SIZE: Final = 0x7FFFFFFF
"""The size in a blank (0, this, 0): a queue whose first messages are gone can begin with them."""
QUEUE_LOST_SIZE: Final = 1
"""Size in the entry of a message that is lost: no message has it, so none is taken for it.

It points to the second byte of what was lost; if a broker left it out, to the message before."""

# --- timer log unit -----------------------------------------------------------------------------
#
#   0        4                 12       16                24       28
#   ┌────────┬─────────────────┬────────┬─────────────────┬────────┬─────────────────┐
#   │ 52     │ prev_pos        │ magic  │ write time, ms  │ unit's │ commit log      │
#   │        │ (−1: the first) │        │ (floored)       │ − write│ offset          │
#   └────────┴─────────────────┴────────┴─────────────────┴────────┴─────────────────┘
#   36       40       44       48       52
#   ┌────────┬────────┬────────┬────────┐
#   │ message│ topic  │ CRC    │ extra  │   CRC-32 of (int64 own offset, bytes 0–43 and 48–51);
#   │ size   │ hash   │ uint32 │ uint32 │   extra: see EXTRA_READ_MESSAGE; a broker writes both 0
#   └────────┴────────┴────────┴────────┘

UNIT: Final = np.dtype(
    [
        ("size", ">i4"),
        ("prev_pos", ">i8"),
        ("magic", ">i4"),
        ("write_ms", ">i8"),
        ("delta_ms", ">i4"),
        ("message_offset", ">i8"),
        ("message_size", ">i4"),
        ("topic_hash", ">i4"),
        ("crc", ">u4"),
        ("extra", ">u4"),
    ]
)
UNIT_BYTES: Final = 52
UNIT_SIZE_AT: Final = _at(UNIT, "size")
UNIT_PREV_AT: Final = _at(UNIT, "prev_pos")
UNIT_MAGIC_AT: Final = _at(UNIT, "magic")
UNIT_WRITE_AT: Final = _at(UNIT, "write_ms")
UNIT_DELTA_AT: Final = _at(UNIT, "delta_ms")
UNIT_MESSAGE_AT: Final = _at(UNIT, "message_offset")
UNIT_MESSAGE_SIZE_AT: Final = _at(UNIT, "message_size")
UNIT_HASH_AT: Final = _at(UNIT, "topic_hash")
UNIT_CRC_AT: Final = _at(UNIT, "crc")
UNIT_EXTRA_AT: Final = _at(UNIT, "extra")
assert UNIT.itemsize == UNIT_BYTES

UNIT_PLAIN: Final = 1
UNIT_ROLL: Final = 2
UNIT_DELETE: Final = 4
UNIT_HOP: Final = 8
"""Linked by a hop: its message had a unit before. A broker takes such a magic, and ignores this."""
UNIT_MAGIC_BITS: Final = 0xF
"""A magic m is valid if (m | 0xF) == 0xF."""
EXTRA_READ_MESSAGE: Final = 0xFFFFFFFF
"""In a roll, extra is the true due time in seconds; else due − unit's time in ms; or this."""
WRITE_BEFORE_SLOT_MS_MAX: Final = 2_000_000_000
TIMERLOG_BLANK_BYTES: Final = 16
"""int32 remaining, int64 0, int32 BLANK_MAGIC: written if 52 + 16 > what is left."""

# --- timer wheel slot ---------------------------------------------------------------------------
#
#   0                 8                 16                24       28       32
#   ┌─────────────────┬─────────────────┬─────────────────┬────────┬────────┐
#   │ time /          │ first unit's    │ last unit's     │ count  │ 0      │
#   │ precision       │ offset          │ offset          │        │        │
#   └─────────────────┴─────────────────┴─────────────────┴────────┴────────┘

SLOT: Final = np.dtype(
    [("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">i4")]
)
SLOT_BYTES: Final = 32
SLOT_TIME_AT: Final = _at(SLOT, "time")
SLOT_FIRST_AT: Final = _at(SLOT, "first")
SLOT_LAST_AT: Final = _at(SLOT, "last")
SLOT_COUNT_AT: Final = _at(SLOT, "count")
assert SLOT.itemsize == SLOT_BYTES
SLOT_COUNT_DEFAULT: Final = 604_800
"""Slots of the wheel; its ring holds twice as many. A broker has this number compiled in."""

# --- config/timercheck: RocketMQ's 56 bytes, then ours -------------------------------------------

TIMER_CHECKPOINT: Final = np.dtype(
    [
        ("read_ms", ">i8"),
        ("timerlog_flushed", ">i8"),
        ("queue_index", ">i8"),
        ("master_queue_index", ">i8"),
        ("state_version", ">i8"),
        ("state_timestamp", ">i8"),
        ("state_counter", ">i8"),
    ]
)
CHECKPOINT_EXTENSION: Final = np.dtype(
    [
        ("mark", "S8"),
        ("sequence", ">i8"),
        ("echo", TIMER_CHECKPOINT),
        ("scan_from", ">i8"),  # the copies cursor
        ("commitlog_flushed", ">i8"),
        ("claimed_slot", ">i8"),  # the claim cursor
        ("frontier_ms", ">i8"),
        ("clean", ">i8"),  # 1: closed cleanly, 2: and handed to a broker, 0: written while open
        ("cancelled_count", ">i8"),
        ("store_tag", ">i8"),
        ("level_offsets", ">i8", (32,)),
        ("floor", ">i8"),  # every unit whose message lies before it is superseded
        ("hops_from", ">i8"),  # no unit before it counts because a hop linked it
        ("timerlog_from", ">i8"),  # where the timer log begins at the latest
        ("crc", ">u4"),
    ]
)
CHECKPOINT_MARK: Final = b"TMSTORE4"
CHECKPOINT_MARK_BEFORE: Final = b"TMSTORE3"
"""Of a checkpoint that does not say `timerlog_from`."""
CHECKPOINT_BYTES: Final = 4_096
CHECKPOINT_COPY_AT: Final = 2_048
IDENTITY: Final = np.dtype(  # what timerstore.json says, behind each copy of the checkpoint
    [
        ("mark", "S8"),
        ("version", ">i8"),
        ("store_tag", ">i8"),
        ("precision_ms", ">i8"),
        ("roll_window_slots", ">i8"),
        ("wheel_slot_count", ">i8"),
        ("commitlog_segment_bytes", ">i8"),
        ("consumequeue_segment_bytes", ">i8"),
        ("timerlog_segment_bytes", ">i8"),
        ("roll_hop_slots", ">i8"),
        ("crc", ">u4"),
    ]
)
IDENTITY_MARK: Final = b"TMSTOREJ"
IDENTITY_AT: Final = 512
assert IDENTITY_AT + IDENTITY.itemsize <= CHECKPOINT_COPY_AT
assert TIMER_CHECKPOINT.itemsize == 56
assert TIMER_CHECKPOINT.itemsize + CHECKPOINT_EXTENSION.itemsize <= IDENTITY_AT

STORE_CHECKPOINT: Final = np.dtype(
    [
        ("commitlog_flushed_ms", ">i8"),
        ("queues_flushed_ms", ">i8"),
        ("index_flushed_ms", ">i8"),
        ("master_flushed_offset", ">i8"),
        ("confirmed_offset", ">i8"),
        ("queues_flushed_offset", ">i8"),  # as RocketMQ writes it from 5.5 on; before it is 0
    ]
)
assert STORE_CHECKPOINT.itemsize == 48

SEGMENT_NAME_DIGITS: Final = 20
COMMITLOG_SEGMENT_BYTES_BROKER: Final = 1 << 30
QUEUE_SEGMENT_BYTES_BROKER: Final = 6_000_000
TIMERLOG_SEGMENT_BYTES_BROKER: Final = 104_857_600
