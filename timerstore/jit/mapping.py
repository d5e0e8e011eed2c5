"""Mappings, each with an owner: an array over a map's bytes keeps the map alive.

NumPy lets go of what lies between a view and the object at the end of its base chain, so that
object itself must own the map. `_bytes_at` is the one place that makes such an array; every view,
slice or memoryview of it, however it was made, keeps the owner, and the owner keeps the map.

Python's `mmap` keeps a duplicate of the descriptor for as long as the mapping lives, so a store of
a thousand topics could not be looked at if a process may open a thousand files. `map_bytes`
needs none.

A forked child would keep the disk of every file that its parent had mapped, also once the parent
has removed it. So in a child the maps of stores are replaced (`leave_to_parent`). MADV_DONTFORK
would leave their addresses free: the child's own memory could come there, and be unmapped when it
drops what it inherited.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Container
from pathlib import Path
from typing import Any, Final

import numpy as np

from timerstore.errors import StoreFullError
from timerstore.jit.host import MADV_POPULATE_WRITE, MAP_NORESERVE, MS_SYNC
from timerstore.jit.intrinsics import store_release
from timerstore.jit.kernel import INTERPRETED, kernel_ahead
from timerstore.jit.later import Instruction
from timerstore.jit.numpylayout import ARRAY_DATA_AT, layout_holds
from timerstore.jit.record import Bytes, Flags, Words

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_LIBC.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PAGE_BYTES: Final = 4_096
_FAILED: Final = ctypes.c_void_p(-1).value
_MADV_RANDOM: Final = 1
MADV_WILLNEED: Final = 3
MADV_DONTNEED: Final = 4
_PROT_NONE: Final = 0
_MAP_FIXED: Final = 0x10


class MapOwner:
    """What a map lives by: it is unmapped when the last array over its bytes is gone."""

    __slots__ = ("__weakref__", "memory", "path", "place")

    def __init__(self, memory: object, path: Path | None = None) -> None:
        """`memory`: what unmaps when it is gone; `path`: whose bytes these are."""
        self.memory, self.path, self.place = memory, path, (0, 0)


def lazy_zeros(count: int, kind: type = np.int64) -> np.ndarray[Any, Any]:
    """Return zeros in small pages of their own, which take no memory before they are written.

    NumPy clears memory that was used before, and asks for huge pages. Nothing is reserved: the
    system would else refuse to fork a process that has a few stores. Raises StoreFullError.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    try:
        memory = mmap.mmap(-1, count * np.dtype(kind).itemsize, flags=flags)
    except OSError as e:
        raise StoreFullError(
            f"The system has no memory left for a call of the store: {e.strerror}. Free memory, or "
            "raise the limits (`ulimit -v`, `ulimit -l`, vm.max_map_count)."
        ) from e
    return np.frombuffer(memory, kind)


_of_stores: Final = weakref.WeakSet[MapOwner]()


def note_of_store(owner: MapOwner, view: Bytes) -> None:
    """Say that a map is a file's of an open store, which a forked child has no use for."""
    owner.place = view.ctypes.data, len(view)
    _of_stores.add(owner)


def leave_to_parent(kept: Container[MapOwner]) -> None:
    """In a forked child, let go of the files of stores; the addresses stay taken, unreadable.

    `kept`: the owners of maps that the child may read.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE | _MAP_FIXED
    for owner in _of_stores:
        if owner not in kept:
            _LIBC.mmap(*owner.place, _PROT_NONE, flags, -1, 0)


def _bytes_at(address: int, length: int, owner: object) -> Bytes:
    """Return the `length` bytes at an address as a writable array that keeps `owner` alive."""
    content: Any = (ctypes.c_uint8 * length).from_address(address)
    content.owner = owner
    view: Bytes = np.ctypeslib.as_array(content)
    return view


def bytes_from(buffer: Any, length: int, owner: MapOwner) -> Bytes:
    """Return so many bytes, from an Arrow buffer on; the array is writable, and keeps `owner`."""
    return _bytes_at(int(buffer.address), length, owner)


def map_bytes(fd: int, length: int, *, private: bool, owner: MapOwner | None = None) -> Bytes:
    """Map the first `length` bytes of an open file, which may be closed right after.

    With `private` the view can be written to, and the file stays as it is; with an `owner`, whose
    map it becomes, the file changes. The mapping lives as long as any view of it. `fd` −1: zeros.
    `length` must be positive.
    """
    is_writable = private or owner is not None
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
    flags = mmap.MAP_PRIVATE if private or fd < 0 else mmap.MAP_SHARED
    flags |= mmap.MAP_ANONYMOUS if fd < 0 else 0
    address = _LIBC.mmap(None, length, protection, flags, fd, 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    owner = MapOwner(None) if owner is None else owner
    weakref.finalize(owner, _LIBC.munmap, address, length).atexit = False
    view = _bytes_at(address, length, owner)
    view.flags.writeable = is_writable
    return view


def sync_mapping(view: Bytes) -> None:
    """Make durable what was written to a whole shared mapping, and to its file; raises OSError.

    Linux does for `msync` what it does for `fdatasync`, with the open file that the mapping was
    made from, which the mapping keeps. So an error of an earlier write-back is told here, too, as
    it is to code that keeps the descriptor open; a file that is opened again might miss one that
    somebody else was told of before.
    """
    while _LIBC.msync(view.ctypes.data, len(view), MS_SYNC):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def open_pages(view: Bytes, at: int, count: int) -> bool:
    """Have the pages of `count` mapped bytes writable; False if a write would be a SIGBUS.

    That is so if the disk is full and a page lies in a folio of the page cache, up to 2 MiB,
    that reaches into a hole: who makes one page of it writable asks room for all of it. Linux
    before 5.14 cannot say.
    """
    return _advise(view, at, count, MADV_POPULATE_WRITE) or ctypes.get_errno() != errno.EFAULT


def read_ahead(view: Bytes, at: int, count: int) -> None:
    """Begin to read `count` bytes of a mapped file into the page cache; no more than their pages.

    There is no error if they cannot be read.
    """
    _advise(view, at, count, MADV_WILLNEED)


def expect_random_reads(view: Bytes) -> None:
    """Have a page that is missing read alone, and not with all that the system reads ahead."""
    _advise(view, 0, len(view), _MADV_RANDOM)


def is_resident(view: Bytes, at: int, count: int) -> bool:
    """Tell whether the page cache has all pages of `count` mapped bytes."""
    address = view.ctypes.data + at
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    pages = (ctypes.c_ubyte * (-(-(address + count - start) // mmap.PAGESIZE)))()
    if _LIBC.mincore(start, address + count - start, pages):
        return True  # nobody can say
    return all(page & 1 for page in pages)


def _advise(view: Bytes, at: int, count: int, advice: int) -> bool:
    """Tell the system what becomes of the pages of `count` mapped bytes; False: see errno."""
    address = view.ctypes.data + at
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    return int(_LIBC.madvise(start, address + count - start, advice)) == 0


def pages_in_memory(view: Bytes) -> Flags:
    """Return which pages of a mapping are in memory: to read those makes none."""
    found = np.zeros(-(-len(view) // PAGE_BYTES), np.uint8)
    other = mmap.PAGESIZE != PAGE_BYTES
    if other or _LIBC.mincore(view.ctypes.data, len(view), found.ctypes.data):
        return np.ones(len(found), np.bool_)
    return (found & 1).astype(np.bool_)


def release_pages(view: Bytes) -> None:
    """Take whole pages of a mapping out of this process's page table.

    What was written to a shared one stays in the page cache. They are mapped again when they are
    looked at.
    """
    _LIBC.madvise(view.ctypes.data, view.nbytes, MADV_DONTNEED)


# --- Arrays that Python lends to kernels by number: they may be replaced while kernels run.
#
# A record keeps the arrays that it was made with. A map of a segment comes and goes, and a table
# may be replaced by a larger one: such an array is lent. A kernel names its place, and how much of
# it there is. Who lends an array keeps it until no kernel can look at it any more. That an address
# stands at the place, only this file knows.
#
# Interpreted kernels find the array itself: they fail if nobody keeps it, or if it is shorter.

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
