"""The rules that a store must keep, each declared once.

A rule has a name, what it says of each thing that it looks at, what its failure means for the user
of the store, and how bad that is. The code that looks is elsewhere in this folder, or a query in
`timerstore/audit/integrity/`. `docs/validate.md` shows this table (`docs/hooks/made.py`).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from timerstore.audit.meeting import INTEGRITY

Severity = Literal["error", "warning"]


class Rule(NamedTuple):
    """One rule."""

    name: str
    group: str
    counts: str
    """What it looks at: one of each is one that was checked."""
    says: str
    means: str
    """What it means if the rule fails."""
    severity: Severity = "error"


# What the rules look at, in the order in which they are shown.
FILES: Final = "files"
SLOTS: Final = "slots"
UNITS: Final = "units"
MESSAGES: Final = "messages"
TIMERS: Final = "timers"
QUEUES: Final = "queues"
CURSORS: Final = "cursors"
OWN: Final = "own"
"""Of rules that the user has written."""

RULES: Final = (
    Rule(
        "files",
        FILES,
        "a file",
        "A segment has its size and place; none is missing between two; no other file is there.",
        "A broker fails to load the folder; what lay in a missing segment is lost.",
    ),
    Rule(
        "closed",
        FILES,
        "a segment that is full, or a log's end",
        "Only its blank follows the last record; a log reaches as far as it was flushed.",
        "Opening takes the other bytes for a record, or records at the end were lost.",
    ),
    Rule(
        "json",
        FILES,
        "a JSON file",
        "It is one object, in UTF-8.",
        "Opening, or a broker, goes on without the content of the file.",
    ),
    Rule(
        "slot_place",
        SLOTS,
        "a used slot",
        "Its time belongs to its index, and its magic is 0.",
        "The slot is read as another time's, or as empty: its timers do not fire.",
    ),
    Rule(
        "slot_last",
        SLOTS,
        "a used slot",
        "Its last unit belongs to this slot.",
        "None of the slot's timers fires.",
    ),
    Rule(
        "slot_first",
        SLOTS,
        "a used slot",
        "The chain ends at the slot's first unit, unless the slot has passed: then nobody reads "
        "it.",
        "The oldest timers of the slot were lost, or the slot was torn.",
    ),
    Rule(
        "slot_count",
        SLOTS,
        "a used slot",
        "Its count is the number of its units minus twice the number of its deletes, unless the "
        "slot has passed.",
        "Only an estimate is wrong: firing does not use it.",
        "warning",
    ),
    Rule(
        "chain",
        SLOTS,
        "a unit",
        "Its prev_pos is −1, or an earlier unit of the same slot.",
        "The chain breaks there: the timers behind it in the slot do not fire.",
    ),
    Rule(
        "chain_shared",
        SLOTS,
        "a unit",
        "At most one unit has it as its predecessor, so it is not in two chains.",
        "A part of a chain was overtaken: timers fire twice, or not at all.",
    ),
    Rule(
        "unreached",
        SLOTS,
        "a unit of a slot that has not passed",
        "The chain of its slot leads to it.",
        "Its timer does not fire.",
    ),
    Rule(
        "wheel_sums",
        SLOTS,
        "a page of the wheel",
        "Its checksum is one of those noted beside the wheel.",
        "The page was changed, or torn: opening makes the wheel anew.",
    ),
    Rule(
        "unit_sound",
        UNITS,
        "a unit",
        "Its size, magic, times and pointer are possible, and its CRC matches.",
        "The bytes were damaged; the chain breaks there.",
    ),
    Rule(
        "unit_message",
        UNITS,
        "a unit",
        "It points to a timer's message. If the message was removed, the slot has passed or the "
        "message was below the floor.",
        "The timer cannot be fired: there is no body to hand out.",
    ),
    Rule(
        "unit_size",
        UNITS,
        "a unit",
        "Its message has the size that it says.",
        "The message is refused when it is due.",
    ),
    Rule(
        "unit_topic",
        UNITS,
        "a unit",
        "Its hash is that of the message's real topic.",
        "A broker counts the timer under another topic.",
    ),
    Rule(
        "unit_kind",
        UNITS,
        "a unit",
        "It is a delete if its message is one, and only then.",
        "A cancelled timer fires, or a timer is taken for a delete and does not.",
    ),
    Rule(
        "unit_slot",
        UNITS,
        "a unit",
        "Its slot is the one of its due time, a later one if that had passed, or a hop on its "
        "grid. A broker's unit is half a window or a whole one ahead.",
        "The timer fires late or rolls for ever, and an id does not lead to it.",
    ),
    Rule(
        "message_sound",
        MESSAGES,
        "a message",
        "Messages follow each other without a gap; sizes, offset and checksum hold.",
        "The message is lost; all else is read past it.",
    ),
    Rule(
        "enqueued",
        TIMERS,
        "a message of the timer topic",
        "It has exactly one unit that no hop linked, unless it waits behind the queue cursor or "
        "is done. At most one unit of it waits in a slot ahead. A broker fires overdue timers "
        "without a unit.",
        "Without a unit it never fires; with two it fires twice.",
    ),
    Rule(
        "accounted",
        TIMERS,
        "a timer's message",
        "It is pending, was fired, was rolled, or is cancelled.",
        "The timer was lost: its slot passed, but it was neither fired, rolled nor cancelled.",
    ),
    Rule(
        "level_accounted",
        TIMERS,
        "a message of a delay level",
        "It is pending, was delivered, or is cancelled.",
        "The message was lost: its level passed it, but it was neither delivered nor cancelled.",
    ),
    Rule(
        "once",
        TIMERS,
        "a message that was copied",
        "Exactly one copy was made of it when it was fired, rolled, or delivered from its delay "
        "level.",
        "A timer was fired twice.",
    ),
    Rule(
        "reached_once",
        TIMERS,
        "a timer that waits in a slot",
        "If the store was handed over, its message is not superseded and was not copied.",
        "A broker fires the timer twice.",
    ),
    Rule(
        "succession",
        TIMERS,
        "a copy",
        "It is a copy of a message before it. A rolled copy counts one roll more and has the "
        "same due time.",
        "Nobody can tell what was fired: a timer may come again.",
    ),
    Rule(
        "early",
        TIMERS,
        "a fired message",
        "It was stored at its due time or later, or after the delay of its level.",
        "A timer was fired too early.",
    ),
    Rule(
        "cancelled",
        TIMERS,
        "a fired message",
        "There is no delete of its timer before it.",
        "A timer was fired after it was cancelled.",
    ),
    Rule(
        "settled",
        TIMERS,
        "a copy",
        "If opening can still find its source, it lies at or after the cursor from which opening "
        "looks for copies.",
        "Opening the store would fire the timer again.",
    ),
    Rule(
        "entry",
        QUEUES,
        "a message",
        "The queue entry at its index has its offset and size.",
        "A consumer does not get the message, or gets another one.",
    ),
    Rule(
        "entry_tags",
        QUEUES,
        "a message",
        "The entry's tags code is the hash of its tag.",
        "A consumer that asks for the tag misses the message.",
    ),
    Rule(
        "level_due",
        QUEUES,
        "a message of a delay level",
        "The entry's tags code is the stored time plus a delay of whole seconds, as levels have.",
        "The message is delivered at another time.",
    ),
    Rule(
        "entry_message",
        QUEUES,
        "a queue entry",
        "It points to a message of its queue and index. Before the first message there are only "
        "entries of removed messages and gaps.",
        "A consumer stops at the entry, or gets a message of another queue.",
    ),
    Rule(
        "queue_order",
        QUEUES,
        "a message",
        "In each queue the indexes of the messages go up by one.",
        "Messages of the queue are missing from the log, or one stands there twice.",
    ),
    Rule(
        "cursors",
        CURSORS,
        "a cursor",
        "It lies within the log or queue into which it points.",
        "Opening starts at the wrong place: it loses timers, or fires them again.",
    ),
    Rule(
        "cursor_copies",
        CURSORS,
        "a copy of the cursors",
        "Both copies are whole and the same, so are the two of `timerstore.json` beside them, "
        "and the file has nothing else.",
        "Opening takes the copy that is whole. If that is damaged too, the cursors are lost.",
    ),
    Rule(
        "flush_times",
        CURSORS,
        "a number in `checkpoint`",
        "It is a possible time or offset; after a clean close it is the one that was written.",
        "A broker begins to recover at the wrong place.",
    ),
    Rule(
        "level_offsets",
        CURSORS,
        "a delay level's offset",
        "It lies within its level's queue.",
        "Opening corrects it to the nearest end: messages were skipped, or come twice.",
        "warning",
    ),
    Rule(
        "group_offsets",
        CURSORS,
        "a group's offset",
        "It lies within its queue.",
        "Opening cuts it back to the queue's end.",
        "warning",
    ),
    Rule(
        "pending_count",
        CURSORS,
        "a store that was closed",
        "The count that closing stored is the number of pending timers.",
        "`count` is wrong until the store is counted again.",
    ),
)

NAMES: Final = {rule.name: rule for rule in RULES}
assert len(NAMES) == len(RULES)
ABOUT_BYTES: Final = frozenset(NAMES) - INTEGRITY.keys() | {"unit_slot"}
"""The rules of `verify`. The others are queries (`timerstore/audit/integrity/`): they ask whether
what is sound by itself fits together, and what became of each timer."""
