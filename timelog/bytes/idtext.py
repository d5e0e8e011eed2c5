"""Timer ids as text, many at once: kernels that read or write their 32 hex digits."""

from __future__ import annotations

from typing import Final

from timerstore.jit.intrinsics import get_word, prefetch
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.objects import Pieces, piece
from timerstore.jit.record import Bytes, Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.text import get_hex_12, hex_8_word, hex_12_is, put_hex_8, put_hex_12

_IDS_AHEAD: Final = 8


@inlined
def put_id(digits: Bytes, at: int, due_ms: int, offset: int, tag: int) -> None:
    """Write the id of a timer."""
    put_hex_12(digits, at, due_ms)
    put_hex_12(digits, at + 12, offset)
    put_hex_8(digits, at + 24, tag)


@inlined
def id_is(digits: Bytes, at: int, due_ms: int, offset: int, tag: int) -> bool:
    """Tell whether `put_id` would have written what stands at `at`, byte for byte."""
    if get_word(digits, at + 24) != hex_8_word(tag):
        return False
    return hex_12_is(digits, at, due_ms) and hex_12_is(digits, at + 12, offset)


@kernel_ahead
def write_ids(due_ms: Words, offsets: Words, tag: int, digits: Bytes) -> None:
    """Write the ids of timers, one behind the other. `digits`: uint8[32 n]. O(n)."""
    for i in range(len(due_ms)):
        put_id(digits, fmt.KEY_DIGITS * i, due_ms[i], offsets[i], tag)


@kernel_ahead
def read_ids(ids: Pieces, tag: int, due_ms: Words, offsets: Words) -> int:
    """Read ids; return how many are as `write_ids` writes them.

    It ends at the first that is not, or has another store's tag. `due_ms`, `offsets`: int64[n],
    written. O(n).
    """
    for i in range(len(due_ms)):
        if i + _IDS_AHEAD < len(due_ms):  # they may be anywhere in memory
            prefetch(piece(ids, i + _IDS_AHEAD), fmt.KEY_DIGITS - 1)
        digits = piece(ids, i)
        if len(digits) != fmt.KEY_DIGITS:
            return i
        due_ms[i], offsets[i] = get_hex_12(digits, 0), get_hex_12(digits, 12)
        if not id_is(digits, 0, due_ms[i], offsets[i], tag):
            return i  # no digits, or lower-case ones
    return len(due_ms)
