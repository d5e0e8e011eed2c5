"""Numbers as text: the digits inside message properties.

Eight digits are made or read at once in one 64-bit word; each function has its plain twin in
`tests/naive.py`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from timerstore.jit.intrinsics import get_u8, get_word, put_u8, put_word, swap_64
from timerstore.jit.kernel import INTERPRETED, inlined, kernel_ahead
from timerstore.jit.objects import Pieces, piece
from timerstore.jit.record import Bytes

_ZEROS: Final = 0x3030303030303030
_ZEROS_3: Final = 0x303030
_SIXES: Final = 0x0606060606060606
_HIGH_NIBBLES: Final = -0x0F0F0F0F0F0F0F10  # 0xF0 in each byte
_LOW_NIBBLES: Final = 0x0F0F0F0F0F0F0F0F
_BITS_5: Final = 0x2020202020202020
_ONES: Final = 0x0101010101010101
OFFSET_DIGITS: Final = 20


@inlined
def _decimal_8(value: int) -> int:
    """Return the word whose bytes in memory are the eight digits of `value` < 10^8."""
    high = value // 10000
    pair = high | ((value - high * 10000) << 32)
    hundreds = ((pair * 10486) >> 20) & 0x7F0000007F
    quad = hundreds | ((pair - hundreds * 100) << 16)
    tens = ((quad * 103) >> 10) & 0x000F000F000F000F
    return (tens | ((quad - tens * 10) << 8)) + _ZEROS


@inlined
def _hex_8(value: int) -> int:
    """Return the word that, stored big-endian, is `value` < 2^32 in upper-case hex."""
    spread = ((value & 0xFFFF0000) << 16) | (value & 0xFFFF)
    spread = (spread | (spread << 8)) & 0x00FF00FF00FF00FF
    spread = (spread | (spread << 4)) & _LOW_NIBBLES
    letters = ((spread + _SIXES) >> 4) & _ONES
    return spread + _ZEROS + letters * 7


@inlined
def put_hex_8(buf: Bytes, at: int, value: int) -> None:
    """Write `value` < 2^32 as 8 upper-case hex digits."""
    put_word(buf, at, swap_64(_hex_8(value)))


@inlined
def put_hex_12(buf: Bytes, at: int, value: int) -> None:
    """Write `value` < 2^48 as 12 upper-case hex digits."""
    put_word(buf, at, swap_64(_hex_8(value >> 16)))
    put_word(buf, at + 4, swap_64(_hex_8(value & 0xFFFFFFFF)))


@inlined
def hex_12_is(buf: Bytes, at: int, value: int) -> bool:
    """Tell whether `put_hex_12` would have written what stands at `at`, byte for byte."""
    if get_word(buf, at) != swap_64(_hex_8(value >> 16)):
        return False
    return get_word(buf, at + 4) == swap_64(_hex_8(value & 0xFFFFFFFF))


@inlined
def put_decimal_13(buf: Bytes, at: int, value: int) -> None:
    """Write `value` < 10^13 as 13 decimal digits."""
    high = value // 100_000_000
    put_word(buf, at, _decimal_8(high) >> 24)
    put_word(buf, at + 5, _decimal_8(value - high * 100_000_000))


@inlined
def put_decimal(buf: Bytes, at: int, value: int) -> int:
    """Write `value` >= 0 in decimal; return the count of digits."""
    count = 1
    power = 10
    while count < 18 and value >= power:
        power *= 10
        count += 1
    left = value
    for i in range(count):
        put_u8(buf, at + count - 1 - i, 48 + left % 10)
        left //= 10
    return count


@inlined
def put_decimal_20(buf: Bytes, at: int, value: int) -> None:
    """Write `value` < 10^16 as 20 decimal digits."""
    high = value // 100_000_000
    put_word(buf, at, _ZEROS)
    put_word(buf, at + 4, _decimal_8(high))
    put_word(buf, at + 12, _decimal_8(value - high * 100_000_000))


@inlined
def put_crc_digits(buf: Bytes, at: int, code: int) -> None:
    """Write a CRC as ten decimal digits, least significant first (`__CRC32#`)."""
    high = code // 100_000_000
    put_word(buf, at, swap_64(_decimal_8(code - high * 100_000_000)))
    put_u8(buf, at + 8, 48 + high % 10)
    put_u8(buf, at + 9, 48 + high // 10)


@inlined
def crc_digits_are(buf: Bytes, at: int, code: int) -> bool:
    """Tell whether `put_crc_digits` would have written what stands at `at`, byte for byte."""
    high = code // 100_000_000
    if get_word(buf, at) != swap_64(_decimal_8(code - high * 100_000_000)):
        return False
    return get_u8(buf, at + 8) == 48 + high % 10 and get_u8(buf, at + 9) == 48 + high // 10


@inlined
def get_decimal(buf: Bytes, at: int, count: int) -> int:
    """Read `count` decimal digits; −1 if they are none, or more than 18."""
    if count < 1 or count > 18:
        return -1
    value = 0
    for i in range(count):
        digit = get_u8(buf, at + i) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@inlined
def get_decimal_13(buf: Bytes, at: int) -> int:
    """Read 13 decimal digits; −1 if they are none."""
    low = get_word(buf, at + 5)
    high = (get_word(buf, at) << 24) | _ZEROS_3  # three zeros before the first five digits
    if not (_are_digits(low) and _are_digits(high)):
        return -1
    return _read_8(high) * 100_000_000 + _read_8(low)


@inlined
def hex_8_word(value: int) -> int:
    """Return the word that `get_word` loads where `put_hex_8` wrote `value`."""
    return swap_64(_hex_8(value))


@inlined
def _are_digits(word: int) -> bool:
    """Tell whether all eight bytes of a word are decimal digits."""
    return (word & _HIGH_NIBBLES) == _ZEROS and ((word + _SIXES) & _HIGH_NIBBLES) == _ZEROS


@inlined
def _read_8(word: int) -> int:
    """Return what eight digits that lie in memory as `word` say."""
    word -= _ZEROS
    pairs = (word * 10 + (word >> 8)) & 0x00FF00FF00FF00FF
    quads = (pairs * 100 + (pairs >> 16)) & 0x0000FFFF0000FFFF
    return (quads * 10000 + (quads >> 32)) & 0xFFFFFFFF


@inlined
def _read_hex_8(word: int) -> int:
    """Return what eight hex digits that lie in memory as `word` say; −1 if they are none.

    They are digits if the number is written with them, but for lower case: a letter's bit 6 is set,
    and bit 5 if it is lower-case.
    """
    digits = swap_64(word)
    nibbles = (digits & _LOW_NIBBLES) + 9 * ((digits >> 6) & _ONES)
    pairs = (nibbles | (nibbles >> 4)) & 0x00FF00FF00FF00FF
    quads = (pairs | (pairs >> 8)) & 0x0000FFFF0000FFFF
    value = (quads | (quads >> 16)) & 0xFFFFFFFF
    upper_case = digits & ~((digits >> 1) & _BITS_5)
    return value if _hex_8(value) == upper_case else -1


@inlined
def get_hex_8(buf: Bytes, at: int) -> int:
    """Read 8 upper- or lower-case hex digits; −1 if they are none."""
    return _read_hex_8(get_word(buf, at))


@inlined
def get_hex_12(buf: Bytes, at: int) -> int:
    """Read 12 upper- or lower-case hex digits; −1 if they are none."""
    high, low = _read_hex_8(get_word(buf, at)), _read_hex_8(get_word(buf, at + 4))
    return -1 if high < 0 or low < 0 else high << 16 | low & 0xFFFF


@lru_cache(maxsize=4_096)
def java_hash_of(text: str) -> int:
    """Return Java's `String.hashCode` of a text."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        code = (code * 31 + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code


if INTERPRETED:  # Python's integers do not wrap at 64 bits, as the tricks above expect

    def _decimal_8(value: int) -> int:
        return int.from_bytes(b"%08d" % value, "little")

    def get_decimal_13(buf: Any, at: int) -> int:  # noqa: D103
        digits = bytes(buf[at : at + 13])
        return int(digits) if digits.isdigit() else -1

    def _hex_8(value: int) -> int:
        return int.from_bytes(b"%08X" % value, "big", signed=True)


@inlined
def _character_size(buf: Bytes, at: int) -> int:
    """Return how many bytes the UTF-8 character at a place has, 0 if there is none."""
    first = buf[at]
    if first < 0x80:
        return 1
    size = 2 + (first >= 0xE0) + (first >= 0xF0)
    if first < 0xC2 or first > 0xF4 or at + size > len(buf):
        return 0
    # The second byte's range keeps out surrogates, what is too long, and what is beyond U+10FFFF.
    low = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
    high = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
    if buf[at + 1] < low or buf[at + 1] > high:
        return 0
    for k in range(at + 2, at + size):
        if buf[k] & 0xC0 != 0x80:
            return 0
    return size


@kernel_ahead
def first_bad_key(keys: Pieces) -> int:
    """Return the first text that is empty, no UTF-8, or holds a separator, or −1."""
    for i in range(len(keys.length)):
        buf = piece(keys, i)
        if len(buf) == 0:
            return i
        at = 0
        while at < len(buf):
            size = _character_size(buf, at)
            if size == 0 or buf[at] == 1 or buf[at] == 2:
                return i
            at += size
    return -1
