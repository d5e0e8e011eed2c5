"""The timer wheel: durable slots, one for each `precision_ms` of time, twice the slot count around.

    >>> wheel = TimerWheel(Disk(), folder / "timerwheel", slot_count=64)
    >>> wheel.put(Slot(9, first=0, last=160, timer_count=3))  # offsets in the timer log
    >>> wheel.put(Slot(9 + 64, first=52, last=52, timer_count=1))  # a lap on: beside the first
    >>> wheel.get(9)
    Slot(slot=9, first=0, last=160, timer_count=3)
    >>> wheel.put(Slot(9 + 128, first=212, last=212, timer_count=1))  # two: in its place
    >>> wheel.get(9), wheel.count(9), wheel.count(9 + 64), wheel.count(9 + 128)
    (None, 0, 1, 1)
    >>> wheel.write()  # durable
    >>> wheel.close()

After RocketMQ's `TimerWheel` and `Slot`. A place whose slot has passed is free for one two laps on.
The array is private: a copy of the file `timerwheel` in memory, big-endian as on disk. What was a
hole of the file takes none before it is written to. Kernels change it in memory and mark its pages
dirty; a clean close writes these. What is open, or was killed, has its slots made anew from the
timer log, and the file says nothing.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from timerstore.jit.crc import crc32
from timerstore.jit.host import open_in_memory
from timerstore.jit.intrinsics import get_i32, get_i64, prefetch, put_i32, put_i64
from timerstore.jit.kernel import inlined, kernel_ahead, kernel_later
from timerstore.jit.record import Bytes, ReadBytes, Words, read_only, record
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NO_UNIT, NOT_SAID, Units, unit_change
from timerstore.timelog.files.checkpoint import WHEEL_FILE, Stamp, read_derived, write_derived
from timerstore.timelog.files.disk import Disk, WrongSizeError
from timerstore.timelog.files.folders import OwnedFile
from timerstore.timelog.files.nonzero import nonzero_places
from timerstore.timelog.files.reader_end import ranges_of

# --- Checksums of the wheel's pages, as a clean close left them: `config/wheelsums`, a derived
# file; behind them `off_grid_until`. After a kill, or a broker, nobody asks for them: the slots are
# made anew from the timer log then.

PAGE_BYTES: Final = 4_096
_EMPTY_SUM: Final = zlib.crc32(bytes(PAGE_BYTES))
_SUM: Final = np.dtype("<u4")
_SLOT: Final = np.dtype("<i8")

Sums = np.ndarray[Any, np.dtype[np.uint32]]


@kernel_ahead
def sum_pages(pages: ReadBytes, sums: Words) -> None:
    """Fill `sums`, int64[n], with the CRC-32 of each page of `pages`, uint8. O(bytes).

    The last page may be shorter.
    """
    for i in range(len(sums)):
        at = i * PAGE_BYTES
        sums[i] = crc32(pages, at, min(PAGE_BYTES, len(pages) - at))


def page_sums(pages: Bytes, used: Iterable[tuple[int, int]] | None = None) -> Sums:
    """Return the checksums of pages that follow each other. O(bytes that are used).

    `used`: ranges outside of which all bytes are 0; None: there may be others anywhere.
    """
    count = -(-len(pages) // PAGE_BYTES)
    sums: Words = np.full(count, _EMPTY_SUM, np.int64)
    ranges = [(0, len(pages))] if used is None else [*used, (len(pages) - 1, len(pages))]
    for first, last in ranges:  # the last page may be shorter, so it is always among them
        start, stop = max(0, first) // PAGE_BYTES, -(-last // PAGE_BYTES)
        sum_pages(read_only(pages[start * PAGE_BYTES : stop * PAGE_BYTES]), sums[start:stop])
    return sums.astype(np.uint32)


WRONG_PAGE_REASON: Final = "the checksum of this page does not match"


def find_damaged(
    disk: Disk,
    path: Path,
    stamp: Stamp,
    wheel: Bytes,
    used: Iterable[tuple[int, int]] | None = None,
) -> int | None:
    """Return where the first page begins that is not as that clean close left it, −1 if all are.

    None: nobody knows. `used`: see `page_sums`. O(bytes).
    """
    arrays = read_derived(disk, path / WHEEL_FILE, stamp, _SUM)
    if arrays is None or len(arrays[0]) != -(-len(wheel) // PAGE_BYTES):
        return None
    wrong = np.flatnonzero(page_sums(wheel, used) != arrays[0])
    return int(wrong[0]) * PAGE_BYTES if len(wrong) else -1


_PAGE_SLOTS: Final = PAGE_BYTES // fmt.SLOT_BYTES
_AHEAD: Final = 8


@record
class SlotArray:
    """The wheel as kernels see it."""

    slots: Bytes  # uint8[2 * slot count * 32]
    dirty: Bytes  # uint8[pages]: 1 if the file does not have it
    latest: Words  # int64[pages]: no slot of this page that has units is later


def new_slot_array(slots: Bytes, used: Iterable[tuple[int, int]]) -> SlotArray:
    """Return a wheel over uint8[2 * slot count * 32]; all but these ranges of it are zeros."""
    pages = -(-len(slots) // PAGE_BYTES)
    wheel = SlotArray(slots, np.zeros(pages, np.uint8), np.zeros(pages, np.int64))
    times = slots.view(fmt.SLOT)["time"]
    for first, last in used:
        start, stop = first // PAGE_BYTES, -(-last // PAGE_BYTES)
        part = times[start * _PAGE_SLOTS : stop * _PAGE_SLOTS]
        wheel.latest[start:stop] = np.maximum.reduceat(part, np.arange(0, len(part), _PAGE_SLOTS))
    return wheel


@inlined
def slot_at(wheel: SlotArray, slot: int) -> int:
    """Return the position of a slot in the array."""
    return slot % (len(wheel.slots) // fmt.SLOT_BYTES) * fmt.SLOT_BYTES


@inlined
def slot_last(wheel: SlotArray, slot: int) -> int:
    """Return the offset of a slot's last unit, NO_UNIT if the slot is empty."""
    at = slot_at(wheel, slot)
    if get_i64(wheel.slots, at + fmt.SLOT_TIME_AT) != slot:
        return NO_UNIT
    return get_i64(wheel.slots, at + fmt.SLOT_LAST_AT)


@inlined
def next_used_slot(wheel: SlotArray, slot: int, stop: int) -> int:
    """Return the first slot from `slot` on that has units; `stop`, or one behind, without any.

    None is further than once around. O(pages between + slots of those in which one is later).
    """
    around = slot + len(wheel.slots) // fmt.SLOT_BYTES
    while slot < min(stop, around):
        at = slot_at(wheel, slot)
        page = at // PAGE_BYTES
        if wheel.latest[page] < slot:  # on to the next page, or around
            slot += (min((page + 1) * PAGE_BYTES, len(wheel.slots)) - at) // fmt.SLOT_BYTES
        elif slot_last(wheel, slot) == NO_UNIT:
            slot += 1
        else:
            return slot
    return max(slot, stop)


@inlined
def _change(wheel: SlotArray, at: int, slot: int) -> None:
    """Note that a slot was changed."""
    page = at // PAGE_BYTES
    wheel.dirty[page] = 1
    wheel.latest[page] = max(wheel.latest[page], slot)


@inlined
def link_unit(wheel: SlotArray, slot: int, offset: int, change: int) -> None:
    """Make the unit at `offset` the last of a slot; `change`: 1, or −1 for a delete. O(1)."""
    at = slot_at(wheel, slot)
    count = change
    if get_i64(wheel.slots, at + fmt.SLOT_TIME_AT) == slot:
        count += get_i32(wheel.slots, at + fmt.SLOT_COUNT_AT)
    else:
        put_i64(wheel.slots, at + fmt.SLOT_TIME_AT, slot)
        put_i64(wheel.slots, at + fmt.SLOT_FIRST_AT, offset)
        put_i32(wheel.slots, at + fmt.SLOT_COUNT_AT + 4, 0)
    put_i64(wheel.slots, at + fmt.SLOT_LAST_AT, offset)
    put_i32(wheel.slots, at + fmt.SLOT_COUNT_AT, count)
    _change(wheel, at, slot)


@kernel_later
def set_slot(wheel: SlotArray, slot: int, first: int, last: int, count: int) -> None:
    """Write a whole slot; with `last` = NO_UNIT it is emptied."""
    at = slot_at(wheel, slot)
    put_i64(wheel.slots, at + fmt.SLOT_TIME_AT, slot if last != NO_UNIT else -1)
    put_i64(wheel.slots, at + fmt.SLOT_FIRST_AT, first)
    put_i64(wheel.slots, at + fmt.SLOT_LAST_AT, last)
    put_i32(wheel.slots, at + fmt.SLOT_COUNT_AT, count)
    _change(wheel, at, slot)


@kernel_later
def revise_slots(
    wheel: SlotArray, offset: Words, ms: Words, magic: Words, precision_ms: int
) -> None:
    """Have slots lead to units, which are given in the order of the log. O(units)."""
    for i in range(len(offset)):
        if i + _AHEAD < len(offset):  # they may be anywhere in the wheel
            prefetch(wheel.slots, slot_at(wheel, ms[i + _AHEAD] // precision_ms))
        slot = ms[i] // precision_ms
        if slot_last(wheel, slot) < offset[i]:
            link_unit(wheel, slot, offset[i], unit_change(magic[i]))


class Slot(NamedTuple):
    """A slot that has units."""

    slot: int  # its time, divided by the precision
    first: int  # offsets of its units in the timer log
    last: int  # the chain's head, which points to the one before
    timer_count: int  # less one for each delete


class TimerWheel:
    """The file `timerwheel` with its private array."""

    def __init__(self, disk: Disk, path: Path, slot_count: int, *, is_gone: bool = False) -> None:
        """Map the file, or make it; a new one is a hole, and read as empty slots.

        With `is_gone` it is taken for new; if it cannot be removed, it lies in memory.
        """
        self.disk, self.path = disk, path
        length = 2 * slot_count * fmt.SLOT_BYTES
        # An empty file was about to be made when a process ended.
        is_new = not disk.exists(path) or disk.size(path) == 0
        stays = is_gone and not is_new
        fd = open_in_memory(path.name) if stays else disk.open_file(path, create=is_new)
        try:
            if is_new or is_gone:
                os.ftruncate(fd, length)
                disk.sync(fd, path)
                disk.sync_folder(path.parent)
            size = os.fstat(fd).st_size
            if size != length:
                setting = f"Open the store with wheel_slot_count={size // fmt.SLOT_BYTES // 2}."
                raise WrongSizeError(path, size, length, setting)
            # No map of the file: at any time a read of a hole may be a SIGBUS, see `used_ranges`.
            self._map = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            used = list(ranges_of(fd, 0, length))
            for first, last in used:
                self._map[first:last] = os.pread(fd, last - first, first)
            self.array = new_slot_array(np.frombuffer(self._map, np.uint8), used)
        except BaseException:
            os.close(fd)
            raise
        self._file = OwnedFile(fd)
        self.off_grid_until = 0 if is_new or is_gone else 1 << 62
        """All slots from this one on lead only to slots of their hops' grid."""

    @property
    def fd(self) -> int:
        """The descriptor of the open file."""
        return self._file.fileno()

    @property
    def slots(self) -> np.ndarray[Any, Any]:
        """The slots as a SLOT array, a view."""
        return self.array.slots.view(fmt.SLOT)

    def get(self, slot: int) -> Slot | None:
        """Return a slot; None if it has no unit, or its place is another's. O(1)."""
        held = self.slots[slot % len(self.slots)]
        if int(held["time"]) != slot or int(held["last"]) == NO_UNIT:
            return None
        return Slot(slot, *(int(held[name]) for name in ("first", "last", "count")))

    def put(self, slot: Slot) -> None:
        """Write a slot, whatever held its place; with `last` = NO_UNIT it is emptied. O(1)."""
        set_slot(self.array, *slot)

    def count(self, slot: int) -> int:
        """Return how many timers wait in a slot, less its deletes; 0 or more. O(1)."""
        held = self.get(slot)
        return 0 if held is None else max(0, held.timer_count)

    def revise(self, units: Units, precision_ms: int) -> None:
        """Have slots lead to units, see `revise_slots`. O(units)."""
        unsaid = (units.leads_to == NOT_SAID) & (units.magic & fmt.UNIT_ROLL != 0)
        last = int(units.ms[unsaid].max(initial=-1)) // precision_ms
        self.off_grid_until = max(self.off_grid_until, last + 1)
        revise_slots(self.array, units.offset, units.ms, units.magic, precision_ms)

    def clear(self) -> None:
        """Empty all slots. O(used pages)."""
        words = self.array.slots.view(np.int64)
        used = np.bitwise_or.reduceat(words, np.arange(0, len(words), PAGE_BYTES // 8)) != 0
        self.array.dirty[used] = 1
        for page in np.flatnonzero(used).tolist():
            self._pages(page, page + 1)[:] = 0
        self.array.latest[:] = 0
        self.off_grid_until = 0

    @property
    def disk_bytes(self) -> int:
        """Bytes that the file takes of the disk once it was written. O(pages)."""
        used_bytes = int(np.count_nonzero(self.array.latest)) * PAGE_BYTES
        return max(os.fstat(self.fd).st_blocks * 512, used_bytes)

    def _pages(self, first: int, stop: int) -> Bytes:
        return self.array.slots[first * PAGE_BYTES : stop * PAGE_BYTES]

    def write(self) -> None:
        """Write the pages that the file does not have, durable on return; nobody changes them."""
        pages = nonzero_places(self.array.dirty)
        for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
            if len(run):
                content = self._pages(int(run[0]), int(run[-1]) + 1)
                self.disk.write_at(self.fd, content, int(run[0]) * PAGE_BYTES, self.path)
        if len(pages):
            self.disk.sync(self.fd, self.path)
        self.array.dirty[:] = 0

    def _used(self) -> Iterator[tuple[int, int]] | None:
        """Return the ranges of the file that are no holes; None if a handover has closed it."""
        return None if self._file.closed else ranges_of(self.fd, 0, len(self.array.slots))

    def leave(self, stamp: Stamp) -> None:
        """Note the checksums of the slots, all written, at a clean close. O(used pages)."""
        sums = page_sums(self.array.slots, self._used())
        until = np.array([self.off_grid_until], _SLOT)
        write_derived(self.disk, self.path.parent / WHEEL_FILE, stamp, sums, until)

    def find_damaged(self, stamp: Stamp) -> int | None:
        """Return which slots are not those of a clean close, see `find_damaged`. O(used pages)."""
        slots, used = self.array.slots, self._used()
        said = read_derived(self.disk, self.path.parent / WHEEL_FILE, stamp, _SUM, _SLOT)
        if said is not None and len(said[1]):
            self.off_grid_until = int(said[1][0])
        return find_damaged(self.disk, self.path.parent, stamp, slots, used)

    def close(self) -> None:
        """Close the file; the array stays valid while it is referenced. Twice does nothing."""
        self._file.close()


# --- Placement: which slot a timer goes to.
#
# Below, base = max(now, read cursor, claim cursor − 1) and hop = window − 1, all in slots. A timer
# that is due before base + window goes to its own slot, or to the read cursor's when its own was
# passed. Any other becomes a *roll* on the timer's own grid: slot = due − k · hop with the smallest
# k that lies before base + window. So each roll goes to a slot that is not claimed, ahead of all
# that hop now, and each hop is as long as that allows; hops of many timers do not bunch, and an id
# alone tells which slots can hold its timer. Placement never asks whether a timer is due.
#
# Every slot lies from the read cursor on, and before top = read cursor + the ring's length. So no
# slot of the ring is needed twice: after a crash the slots are made anew, from units that were
# linked before the checkpoint.

# --- What is fixed when a store opens.

CHECKING: Final = 1
CHECKED: Final = 2


@record
class Settings:
    """Sizes and names that every service reads."""

    precision_ms: int = 0  # of one slot
    slot_count: int = 0  # the ring holds twice as many
    window_slots: int = 0  # the window: what lies further ahead rolls
    hop_slots: int = 0  # the window less one
    store_tag: int = 0  # uint32 at the end of our UNIQ_KEYs
    # Recovery links what an earlier life left, and deletes join the cancelled set. It checks each
    # message by its CRC (CHECKING), unless its scan of the log has done that (CHECKED).
    recovering: int = 0


@inlined
def ring_top(settings: Settings, passed_slot: int) -> int:
    """Return the first slot that may not be used yet."""
    return passed_slot + 2 * settings.slot_count


@inlined
def hops_ahead(own: int, base: int, window: int, hop: int, top: int) -> int:
    """Return the k >= 0 of the module's text; 0 stands for the timer's own slot. O(1)."""
    hops = 0
    if own >= base + window:
        hops = (own - base - window) // hop + 1
    if own - hops * hop >= top:
        hops = (own - top) // hop + 1
    return hops


@inlined
def place(settings: Settings, base: int, passed_slot: int, out_ms: int) -> tuple[int, int]:
    """Return (slot, hops) of a timer whose unit's time is `out_ms`. O(1).

    `base`: as in the module's text. With hops > 0 it is a roll, whose unit's time is
    out_ms − hops · hop · precision. A slot that was passed becomes the read cursor's.
    """
    top = ring_top(settings, passed_slot)
    own = out_ms // settings.precision_ms
    hops = hops_ahead(own, base, settings.window_slots, settings.hop_slots, top)
    return max(own - hops * settings.hop_slots, passed_slot), hops


@kernel_ahead
def may_have_rolled(settings: Settings, due_ms: int, put_ms: int) -> bool:
    """Tell whether a timer lay too far ahead, when it was put, for a slot of its own. O(1)."""
    ahead = due_ms // settings.precision_ms - put_ms // settings.precision_ms
    return ahead >= min(settings.window_slots, settings.slot_count)


@kernel_ahead
def place_all(settings: Settings, base: int, passed_slot: int, due_ms: Words, slots: Words) -> None:
    """Fill the slot that each timer's unit goes to, were it linked now; both int64[n]."""
    for i in range(len(due_ms)):
        slots[i], _ = place(settings, base, passed_slot, due_ms[i])
