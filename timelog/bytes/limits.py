"""How large a message may be: one limit for all code that puts one.

A message is checked once, when it is put, and copied many times after. Each copy says more about
itself than its source: when it was fired, how often it rolled, where it was first consumed from. A
copy that did not fit could neither be made nor be dropped. So what is put leaves room for the
longest of all its copies, under the longest names of topics and groups that may come: then it can
be fired, rolled, rescheduled, sent back until it is dead, and put back from there.
"""

from __future__ import annotations

from typing import Final

from timerstore.jit.kernel import inlined
from timerstore.timelog.bytes import format as fmt

_TIME_DIGITS = 15  # of the year 9999
_COUNT_DIGITS = 10
_OFFSET_DIGITS = 20
_BROKER_KEY_DIGITS = 56  # of a producer's unique key; ours has 32

GROUP_BYTES_MAX: Final = fmt.TOPIC_BYTES_MAX - max(len(fmt.RETRY_PREFIX), len(fmt.DEAD_PREFIX))


def _bytes(topic_bytes: int, *properties: tuple[bytes, int]) -> int:
    """Return what a message takes around its content; properties: name, longest value."""
    named = sum(len(name) + 1 + value_bytes + 1 for name, value_bytes in properties)
    return fmt.MESSAGE_HEADER_BYTES + 1 + topic_bytes + 2 + named + fmt.CRC_PROPERTY_BYTES


_DUE = fmt.PROPERTY_DUE, _TIME_DIGITS
_KEY = fmt.PROPERTY_UNIQUE_KEY, fmt.KEY_DIGITS
_FIRST_PUT = fmt.PROPERTY_FIRST_PUT, _TIME_DIGITS
_MOVED = (fmt.PROPERTY_REPLACES, _BROKER_KEY_DIGITS), _FIRST_PUT
_WAITING = (fmt.PROPERTY_REAL_QUEUE, 1), (fmt.PROPERTY_REAL_TOPIC, fmt.TOPIC_BYTES_MAX)
_ROLLED = (fmt.PROPERTY_ROLL_TIMES, _COUNT_DIGITS), (fmt.PROPERTY_ORIGIN, _OFFSET_DIGITS)
_FIRED = *_ROLLED, (fmt.PROPERTY_ENQUEUED, _TIME_DIGITS), (fmt.PROPERTY_DEQUEUED, _TIME_DIGITS)
_RETRY = (fmt.PROPERTY_RETRY_TOPIC, fmt.TOPIC_BYTES_MAX), (fmt.PROPERTY_ORIGIN_ID, fmt.KEY_DIGITS)

AROUND_BYTES: Final = {
    "put, or rescheduled": _bytes(len(fmt.TIMER_TOPIC), _DUE, _KEY, *_WAITING, *_MOVED),
    "rolled": _bytes(len(fmt.TIMER_TOPIC), _DUE, _KEY, *_WAITING, *_MOVED, *_ROLLED),
    "fired": _bytes(fmt.TOPIC_BYTES_MAX, _DUE, _KEY, *_MOVED, *_FIRED),
    "sent back": _bytes(len(fmt.TIMER_TOPIC), _DUE, _KEY, *_WAITING, *_RETRY),
    "sent back, rolled": _bytes(len(fmt.TIMER_TOPIC), _DUE, _KEY, *_WAITING, *_RETRY, *_ROLLED),
    "sent back, fired": _bytes(fmt.TOPIC_BYTES_MAX, _DUE, _KEY, *_RETRY, *_FIRED),
    "in a level": _bytes(len(fmt.LEVEL_TOPIC), (fmt.PROPERTY_LEVEL, 2), _KEY, *_WAITING, *_RETRY),
    "from a level": _bytes(
        fmt.TOPIC_BYTES_MAX, _DUE, _KEY, *_RETRY, (fmt.PROPERTY_ORIGIN, _OFFSET_DIGITS)
    ),
    "dead": _bytes(fmt.TOPIC_BYTES_MAX, _KEY, *_RETRY),
}
"""What a message of ours takes beside its body, key, tag and the user's properties, in each of the
forms that it can come to have."""

CONTENT_SPARE_BYTES: Final = 640
"""Kept free of a segment, or of 4 MiB, for what is around the content."""
assert max(AROUND_BYTES.values()) <= CONTENT_SPARE_BYTES

DESCRIPTION_BYTES_MAX: Final = fmt.PROPERTIES_BYTES_MAX - 1_536
"""Key, tag and properties of a user, of the 32,767 bytes that all properties of a message have."""
assert fmt.PROPERTIES_BYTES_MAX - DESCRIPTION_BYTES_MAX > CONTENT_SPARE_BYTES

SENT_BACK_GROWTH_BYTES: Final = max(
    AROUND_BYTES["sent back, fired"] - AROUND_BYTES["sent back"],
    AROUND_BYTES["sent back, rolled"] - AROUND_BYTES["sent back"],
    AROUND_BYTES["from a level"] - AROUND_BYTES["in a level"],
)
"""How much longer a message that was sent back comes to be: for a broker's, which we did not check
when it was put."""

CARRIED_BYTES_MAX: Final = fmt.PROPERTIES_BYTES_MAX - 512
"""Properties that a message keeps when it is sent back, of the 32,767 bytes of all: its topics' and
times' come to them."""

MESSAGE_BYTES_READ_MAX: Final = fmt.MESSAGE_BYTES_MAX + (64 << 10)
"""The largest message that is copied: a broker allows a body of 4 MiB, and 64 KiB around it."""


def content_bytes_max(segment_bytes: int) -> int:
    """Return what body, key, tag and properties may take together, in a store of such segments."""
    return min(fmt.MESSAGE_BYTES_MAX, segment_bytes - fmt.SEALED_BLANK_BYTES) - CONTENT_SPARE_BYTES


def message_bytes_max(segment_bytes: int) -> int:
    """Return how large a message may be that is in the log already, or goes there as it is."""
    return min(MESSAGE_BYTES_READ_MAX, segment_bytes - fmt.SEALED_BLANK_BYTES)


@inlined
def fits_segment(segment_bytes: int, size: int) -> bool:
    """Tell whether a message fits a segment of its own, with the blank that may close it."""
    return size + fmt.SEALED_BLANK_BYTES <= segment_bytes
