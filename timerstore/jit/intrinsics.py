"""What only an instruction can say: loads, stores, copies, atomics, byte searches.

Each name has two forms. Compiled, it is a few lines of LLVM code (`codegen.py`); under
`NUMBA_DISABLE_JIT=1` it is a plain Python twin that does the same with `struct`. Buffers are
one-dimensional C-contiguous uint8 arrays, `at` is a position in one. With `NUMBA_BOUNDSCHECK=1`
every access is checked against the buffer's length.

`view_bytes` and `view_words` turn an address into an array. They are how a kernel reaches mapped
segments, whose number changes while a kernel stays inside.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Final

import numpy as np

from timerstore.jit.guards import Lock
from timerstore.jit.kernel import INTERPRETED, inlined, inlined_always, instruction
from timerstore.jit.later import Instruction


def _loader(width: int, *, big: bool, signed: bool) -> Any:
    """Return what loads an integer of `width` bytes as an int64."""
    code = {1: "b", 2: "h", 4: "i", 8: "q"}[width]
    layout = struct.Struct((">" if big else "<") + (code if signed else code.upper()))

    def twin(buf: Any, at: int) -> int:
        value = layout.unpack_from(buf, at)[0]
        return value - (1 << 64) if width == 8 and value >= 1 << 63 else value

    return twin if INTERPRETED else Instruction("codegen.loader", width, big, signed)


def _storer(width: int, *, big: bool) -> Any:
    """Return what stores the low `width` bytes of an int64."""
    order = "big" if big else "little"
    mask = (1 << (8 * width)) - 1

    def twin(buf: Any, at: int, value: int) -> None:
        if not 0 <= at <= len(buf) - width:
            raise IndexError(at)
        buf[at : at + width] = np.frombuffer((int(value) & mask).to_bytes(width, order), np.uint8)  # type: ignore[arg-type]

    return twin if INTERPRETED else Instruction("codegen.storer", width, big)


get_u8 = _loader(1, big=True, signed=False)
get_i16 = _loader(2, big=True, signed=True)
get_u16 = _loader(2, big=True, signed=False)
get_i32 = _loader(4, big=True, signed=True)
get_u32 = _loader(4, big=True, signed=False)
get_i64 = _loader(8, big=True, signed=True)
get_word = _loader(8, big=False, signed=True)
"""Eight bytes as they lie in memory, to be compared with a name's first eight (`as_word`)."""
put_u8 = _storer(1, big=True)
put_i16 = _storer(2, big=True)
put_i32 = _storer(4, big=True)
put_i64 = _storer(8, big=True)
put_word = _storer(8, big=False)
put_half_word = _storer(4, big=False)


def as_word(name: bytes) -> int:
    """Return the first eight bytes of `name` as `get_word` would load them."""
    return int.from_bytes(name[:8].ljust(8, b"\0"), "little", signed=True)


@instruction("codegen.copy")
def copy_bytes(dst: Any, at: int, src: Any, start: int, count: int) -> None:
    """Copy `count` >= 1 bytes; the two must not overlap."""
    assert 0 <= at and at + count <= len(dst) and 0 <= start and start + count <= len(src)
    dst[at : at + count] = src[start : start + count]


@instruction("codegen.zero")
def zero_bytes(buf: Any, at: int, count: int) -> None:
    """Zero `count` >= 1 bytes."""
    assert 0 <= at and at + count <= len(buf)
    buf[at : at + count] = 0


@instruction("codegen.copy_64")
def copy_64(dst: Any, at: int, src: Any, start: int) -> None:
    """Copy 64 bytes, without a call; the two must not overlap."""
    copy_bytes(dst, at, src, start, 64)


_COPIED_IN_LINES_MAX: Final = 512


@inlined
def copy_lines(dst: Any, at: int, src: Any, start: int, count: int) -> None:
    """Copy `count` >= 0 bytes; of less than 64, up to 64 bytes behind them may change as well.

    It is for short bytes that are written from front to back: it is done without a call. The two
    must not overlap. O(count).
    """
    if count < 64 and start + 64 <= len(src) and at + 64 <= len(dst):
        copy_64(dst, at, src, start)
    elif count < 64 or count > _COPIED_IN_LINES_MAX:
        if count > 0:
            copy_bytes(dst, at, src, start, count)
    else:
        for i in range(0, count - 64, 64):
            copy_64(dst, at + i, src, start + i)
        copy_64(dst, at + count - 64, src, start + count - 64)


def _viewer(item: str, c_type: Any) -> Any:
    def twin(address: int, count: int) -> Any:
        if count == 0:
            return np.zeros(0, item)
        return np.ctypeslib.as_array((c_type * int(count)).from_address(int(address)))

    return twin if INTERPRETED else Instruction("codegen.viewer", item)


view_bytes = _viewer("uint8", ctypes.c_uint8)
"""view_bytes(address, count): a uint8 array over memory that the caller keeps alive."""
view_words = _viewer("int64", ctypes.c_int64)
"""view_words(address, count): an int64 array over memory that the caller keeps alive."""


# --- atomics on int64 arrays: what threads share without the GIL


_one_at_a_time = Lock()


@instruction("codegen.load_acquire")
def load_acquire(words: Any, index: int) -> int:
    """Load a word with acquire order."""
    return int(words[index])


@instruction("codegen.store_release")
def store_release(words: Any, index: int, value: int) -> None:
    """Store a word with release order."""
    words[index] = value


@instruction("codegen.fetch_add")
def fetch_add(words: Any, index: int, value: int) -> int:
    """Add to a word, and return what stood there; a full fence."""
    with _one_at_a_time.guard():
        before = int(words[index])
        words[index] = before + value
        return before


@instruction("codegen.exchange")
def exchange(words: Any, index: int, value: int) -> int:
    """Store a word, and return what stood there; a full fence."""
    with _one_at_a_time.guard():
        before = int(words[index])
        words[index] = value
        return before


@instruction("codegen.compare_exchange")
def compare_exchange(words: Any, index: int, expected: int, value: int) -> bool:
    """Store a word if it was as expected, and tell whether it was; a full fence."""
    with _one_at_a_time.guard():
        if words[index] != expected:
            return False
        words[index] = value
        return True


# --- hints, bits, searches


@inlined_always
def bytes_are(buf: Any, at: int, other: Any, start: int, count: int) -> bool:
    """Tell whether two buffers hold the same `count` bytes, from `at` and from `start` on."""
    for i in range(count):
        if get_u8(buf, at + i) != get_u8(other, start + i):
            return False
    return True


@instruction("codegen.touch")
def touch(buf: Any, at: int) -> None:
    """Fault in the page of a mapped byte for writing, and change nothing."""
    assert 0 <= at < len(buf)


@instruction("codegen.touch_to_read")
def touch_to_read(buf: Any, at: int) -> None:
    """Fault in the page of a mapped byte for reading, from a disk perhaps."""
    assert 0 <= at < len(buf)


@instruction("codegen.prefetch")
def prefetch(buf: Any, at: int) -> None:
    """Ask for the cache line at `at`; any value of `at` is allowed."""


@instruction("codegen.match_64")
def match_64(buf: Any, at: int, byte: int) -> int:
    """Return which of 64 bytes equal `byte`: bit i is set if the one at `at` + i does."""
    assert 0 <= at <= len(buf) - 64
    bits = int.from_bytes(
        np.packbits(buf[at : at + 64] == byte, bitorder="little").tobytes(), "little"
    )
    return bits - (1 << 64) if bits >= 1 << 63 else bits


@instruction("codegen.lowest_bit")
def lowest_bit(value: int) -> int:
    """Return the index of the lowest set bit, 64 for 0."""
    return (int(value) & -int(value)).bit_length() - 1 if value else 64


@instruction("codegen.bit_length")
def bit_length(value: int) -> int:
    """Return how many bits a value >= 0 has, 0 for 0."""
    return int(value).bit_length()


@instruction("codegen.wrapping_multiply")
def wrapping_multiply(a: int, b: int) -> int:
    """Return the lower 64 bits of the product.

    Numba says of `a * b` that it never overflows (LLVM's `nsw`). If it does, the result is what the
    optimiser finds convenient, and differs between callers: no good for a hash.
    """
    return (int(a) * int(b) + (1 << 63)) % (1 << 64) - (1 << 63)


@instruction("codegen.swap_64")
def swap_64(value: int) -> int:
    """Return the eight bytes of an int64 in the opposite order."""
    return int.from_bytes(
        (int(value) & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little"), "big", signed=True
    )
