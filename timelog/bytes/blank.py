"""The blank: what closes a commit log segment that the next message does not fit into.

RocketMQ writes eight bytes, which say how much is left, but not where that is. In a segment
that is used again such bytes may be those of an earlier use. So ours are followed by a *seal*: the
blank's own commit log offset and a CRC, in what RocketMQ leaves unused.
"""

from __future__ import annotations

from typing import Final

from timerstore.jit.crc import crc32
from timerstore.jit.intrinsics import get_i32, get_i64, get_u32, put_i32, put_i64
from timerstore.jit.kernel import kernel_later
from timerstore.jit.record import Bytes, ReadBytes
from timerstore.timelog.bytes import format as fmt

NO_BLANK: Final = 0
BLANK_PLAIN: Final = 1
"""As a broker writes it; or what a power cut left of one of ours."""
BLANK_SEALED: Final = 2
"""It says that it stands here; or it has no room to, as behind a broker's message."""
SEALED_NOWHERE: Final = 1 << 62
"""For a log whose blanks need no seal: none of them can be of an earlier use of its segment."""


@kernel_later
def read_blank(buf: ReadBytes, at: int, offset: int) -> int:
    """Return what kind of blank stands at `at`, which is `offset` of the commit log. O(1).

    One that was sealed for another place is none. There must be 8 bytes left.
    """
    left = len(buf) - at
    if get_u32(buf, at + fmt.BLANK_MAGIC_AT) != fmt.BLANK_MAGIC or get_i32(buf, at) != left:
        return NO_BLANK
    if left < fmt.SEALED_BLANK_BYTES:
        return BLANK_SEALED
    if get_u32(buf, at + fmt.BLANK_CRC_AT) != crc32(buf, at, fmt.BLANK_CRC_AT):
        return BLANK_PLAIN
    return BLANK_SEALED if get_i64(buf, at + fmt.BLANK_OFFSET_AT) == offset else NO_BLANK


@kernel_later
def put_blank(buf: Bytes, at: int, offset: int) -> None:
    """Close a segment at `at`, which is `offset` of the commit log; 8 bytes or more are left."""
    left = len(buf) - at
    put_i32(buf, at, left)
    put_i32(buf, at + fmt.BLANK_MAGIC_AT, fmt.BLANK_MAGIC)
    if left >= fmt.SEALED_BLANK_BYTES:
        put_i64(buf, at + fmt.BLANK_OFFSET_AT, offset)
        put_i32(buf, at + fmt.BLANK_CRC_AT, crc32(buf, at, fmt.BLANK_CRC_AT))
