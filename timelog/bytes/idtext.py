"""Timer ids as text, many at once: kernels that read or write their 32 hex digits."""

from __future__ import annotations

from timerstore.timelog.bytes.text import get_hex_12, hex_8_word, hex_12_is, put_hex_8, put_hex_12
from timerstore.timelog.jit.intrinsics import get_word
from timerstore.timelog.jit.kernel import kernel_ahead
from timerstore.timelog.jit.record import Bytes, ReadBytes, Words


@kernel_ahead
def write_ids(due_ms: Words, offsets: Words, tag: int, digits: Bytes) -> None:
    """Write the ids of timers, one behind the other. `digits`: uint8[32 n]. O(n)."""
    for i in range(len(due_ms)):
        put_hex_12(digits, 32 * i, due_ms[i])
        put_hex_12(digits, 32 * i + 12, offsets[i])
        put_hex_8(digits, 32 * i + 24, tag)


@kernel_ahead
def read_ids(digits: ReadBytes, tag: int, due_ms: Words, offsets: Words) -> int:
    """Read ids, one behind the other; return how many are as `write_ids` writes them.

    It ends at the first that is not, or has another store's tag. `digits`: uint8[32 n]; `due_ms`,
    `offsets`: int64[n], written. O(n).
    """
    word = hex_8_word(tag)
    for i in range(len(due_ms)):
        at = 32 * i
        due_ms[i] = get_hex_12(digits, at)
        offsets[i] = get_hex_12(digits, at + 12)
        if due_ms[i] < 0 or offsets[i] < 0 or get_word(digits, at + 24) != word:
            return i
        if not hex_12_is(digits, at, due_ms[i]) or not hex_12_is(digits, at + 12, offsets[i]):
            return i  # lower-case digits
    return len(due_ms)
