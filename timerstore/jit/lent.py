"""Arrays that Python lends to kernels by number: they may be replaced while kernels run.

A record keeps the arrays that it was made with. A map of a segment comes and goes, and a table may
be replaced by a larger one: such an array is lent. A kernel names its place, and how much of it
there is. Who lends an array keeps it until no kernel can look at it any more. That an address
stands at the place, only this file knows.

Interpreted kernels find the array itself: they fail if nobody keeps it, or if it is shorter.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Final

from timerstore.jit.intrinsics import store_release
from timerstore.jit.kernel import INTERPRETED, kernel_ahead
from timerstore.jit.later import Instruction
from timerstore.jit.mapping import lazy_zeros
from timerstore.jit.numpylayout import ARRAY_DATA_AT, layout_holds
from timerstore.jit.record import Bytes, Words

Lent = Words
"""int64[n]: a place for each of n arrays."""
_IS_LAID_OUT: Final = layout_holds()
_word_at: Final = ctypes.c_int64.from_address
_kept: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""What was lent, if kernels are interpreted."""


def new_lent(count: int) -> Lent:
    """Return places for arrays, on cache lines of their own; nothing is lent yet."""
    return lazy_zeros(count)


def lend(lent: Lent, place: int, array: Bytes | Words) -> None:
    """Let kernels find an array, which the caller keeps, at a place."""
    # `array.ctypes` would make three objects, at each pull and put.
    address = _word_at(id(array) + ARRAY_DATA_AT).value if _IS_LAID_OUT else array.ctypes.data
    if INTERPRETED:
        _kept[address] = array
    lent[place] = address


@kernel_ahead
def publish_at(words: Words, place: int, value: int) -> None:
    """Store a word of a table with release order: who sees it sees all that was written before.

    With it Python tells kernels of what it has lent; a plain store of Python's has no order on ARM.
    """
    store_release(words, place, value)


def is_lent(lent: Lent, place: int, array: Bytes | Words) -> bool:
    """Tell whether it is this array that kernels find at a place."""
    return int(lent[place]) == array.ctypes.data


def _viewer(item: str) -> Any:
    def twin(lent: Lent, place: int, count: int) -> Any:
        array = _kept[int(lent[place])].view(item)
        assert count <= len(array)
        return array[:count]

    return twin if INTERPRETED else Instruction("codegen.lent_viewer", item)


lent_bytes = _viewer("uint8")
"""lent_bytes(lent, place, count): the first `count` bytes of the array at a place."""
lent_words = _viewer("int64")
"""lent_words(lent, place, count): the first `count` words of the array at a place."""
