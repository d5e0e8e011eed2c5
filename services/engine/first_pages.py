"""The pages that opening needs first, as a clean close found them: `config/firstpages`.

The units of a slot's chain, and the messages that they name, lie anywhere in their logs. Each unit
is known only from the one behind it. So with nothing in memory an opened store would wait for a
page for each timer of its first slots, one after the other. A clean close has these chains in
memory, and writes down where their units and messages lie. The next opening begins with a thread
that asks for all these pages, many at the same time: those of the present slot first, and last
those of what is overdue.

It only asks: nothing depends on what the file says, or on what the thread has done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from timerstore.errors import StoreFullError, TimerStoreError
from timerstore.jit.intrinsics import get_i32, get_i64
from timerstore.jit.kernel import inlined, kernel_ahead
from timerstore.jit.mapping import PAGE_BYTES
from timerstore.jit.record import Bytes, Rows, acting_as
from timerstore.jit.system import is_resident, nap_us, set_thread_name, set_timer_slack_us
from timerstore.services.world.background import BackgroundThread, Flag
from timerstore.services.world.state import PREFETCH, Prefetch, new_pages
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import NO_UNIT, UNIT_GOOD, check_unit
from timerstore.timelog.files.checkpoint import FIRST_FILE, Stamp, read_derived, write_derived
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.memory import available_bytes
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.files.segmenttable import TABLE_LENGTH, SegmentTable, ask_for, segment_at
from timerstore.timelog.timerlog import TimerLog
from timerstore.wheel.timerwheel import SlotArray, next_used_slot, slot_last

log = logging.getLogger("timerstore")

FIRST_PLACES_MAX: Final = 131_072
"""Units that a close looks at: some 50 ms, and a file of 4 MiB. They are those of 26 s if 5,000
timers are due in each."""
_SPAN_MS: Final = 600_000
"""Of slots further ahead none is looked at: what opens later has them overdue."""
_SHARE: Final = 2
"""Of the memory that is free their pages may take this part: one in so many."""
_PIECE: Final = 1_024
_DEPTH: Final = 16
"""Places that are read at the same time: more are no faster, but hold up what opening reads."""
_NAP_US: Final = 50
_NAPS_MAX: Final = 200
"""What has not come by then does not: it cannot be read."""
# Columns of a place.
PLACE_SLOT: Final = 0
PLACE_UNIT: Final = 1
PLACE_MESSAGE: Final = 2
PLACE_SIZE: Final = 3  # bytes of the message, 0: it is not read, because the unit is a roll
PLACE_COLUMNS: Final = 4


@kernel_ahead
def list_places(
    wheel: SlotArray, timerlog: SegmentTable, start: int, stop: int, pages: Bytes, places: Rows
) -> int:
    """Write where the units of slots [start, stop) lie, and their messages; return how many.

    One that shares its pages with the unit behind it is left out. A chain ends at a unit that is
    not in memory. `places`: int64[n, PLACE_COLUMNS], written; no more units than these are looked
    at. `pages`: scratch. No service runs. O(slots + n).
    """
    walked = count = 0
    slot = next_used_slot(wheel, start, stop)
    while slot < stop and walked < len(places):
        offset, unit_page, message_page = slot_last(wheel, slot), -1, -1
        while offset != NO_UNIT and walked < len(places):
            buf = segment_at(timerlog, offset)
            at = offset % timerlog.segment_bytes
            if len(buf) == 0 or not is_resident(buf, at, min(fmt.UNIT_BYTES, len(buf) - at), pages):
                break
            if check_unit(buf, at, offset) != UNIT_GOOD:
                break
            message, size = get_i64(buf, at + fmt.UNIT_MESSAGE_AT), 0
            if get_i32(buf, at + fmt.UNIT_MAGIC_AT) & fmt.UNIT_ROLL == 0:
                size = get_i32(buf, at + fmt.UNIT_MESSAGE_SIZE_AT)
            is_new = offset // PAGE_BYTES != unit_page
            is_new = is_new or (size > 0 and message // PAGE_BYTES != message_page)
            if is_new:
                places[count, PLACE_SLOT] = slot
                places[count, PLACE_UNIT] = offset
                places[count, PLACE_MESSAGE] = message
                places[count, PLACE_SIZE] = size
                count += 1
                unit_page = offset // PAGE_BYTES
                if size > 0:
                    message_page = message // PAGE_BYTES
            walked += 1
            offset = get_i64(buf, at + fmt.UNIT_PREV_AT)
        slot = next_used_slot(wheel, slot + 1, stop)
    return count


@kernel_ahead
def ask_for_places(
    timerlog: SegmentTable, commitlog: SegmentTable, places: Rows, pages: Bytes
) -> int:
    """Have units and messages read into memory; return how many were not there.

    It waits for those that it asked for _DEPTH places before: else whoever reads beside it would
    stand behind all of them. `pages`: scratch. O(pages).
    """
    missing = 0
    for i in range(len(places)):
        if missing > 0 and i >= _DEPTH:
            naps = 0
            while naps < _NAPS_MAX and _have(timerlog, commitlog, places, i - _DEPTH, pages) > 0:
                nap_us(_NAP_US)
                naps += 1
        missing += _have(timerlog, commitlog, places, i, pages)
    return missing


@inlined
def _have(
    timerlog: SegmentTable, commitlog: SegmentTable, places: Rows, i: int, pages: Bytes
) -> int:
    """Ask for what is missing of a unit and of its message; return how many of the two."""
    missing = 0
    buf = segment_at(timerlog, places[i, PLACE_UNIT])
    if len(buf) > 0:
        at = places[i, PLACE_UNIT] % timerlog.segment_bytes
        missing += not ask_for(buf, at, fmt.UNIT_BYTES, pages)
    buf = segment_at(commitlog, places[i, PLACE_MESSAGE])
    if len(buf) > 0 and 0 < places[i, PLACE_SIZE] <= fmt.MESSAGE_BYTES_MAX:
        at = places[i, PLACE_MESSAGE] % commitlog.segment_bytes
        missing += not ask_for(buf, at, places[i, PLACE_SIZE], pages)
    return missing


def map_segments(log: SegmentedFile, numbers: Iterable[int]) -> list[int]:
    """Map those of these segments that are there, if no other map has to go; return the others."""
    with log.reading() as table:
        unmapped = [each for each in numbers if table.number[each % TABLE_LENGTH] != each]
    left = list[int]()
    for number in unmapped:
        if log.maps.is_used_up or number not in log.numbers:
            left.append(number)
            continue
        try:
            log.existing(number)
        except (TimerStoreError, OSError):  # who needs it says so
            left.append(number)
    return left


class FirstPages:
    """What a clean close writes of them, and the thread that asks for them."""

    def __init__(
        self, disk: Disk, path: Path, timerlog: TimerLog, commitlog: SegmentedFile
    ) -> None:
        """Nothing is read yet, nothing asked for."""
        self._disk, self._path = disk, path / FIRST_FILE
        self._timerlog, self._commitlog = timerlog, commitlog
        self._thread: BackgroundThread | None = None
        self._stop = Flag()

    def write(self, wheel: SlotArray, read_slot: int, precision_ms: int, stamp: Stamp) -> None:
        """Leave them to the next life, at a clean close, when no service runs any more.

        Durable on return. O(FIRST_PLACES_MAX); no unit is read from the disk for it.
        """
        places = np.empty((FIRST_PLACES_MAX, PLACE_COLUMNS), np.int64)
        stop = read_slot + _SPAN_MS // precision_ms
        map_segments(self._timerlog, self._timerlog.numbers)
        with self._timerlog.reading() as table:
            count = list_places(wheel, table, read_slot, stop, new_pages(), places)
        if count:
            with suppress(StoreFullError):
                write_derived(self._disk, self._path, stamp, places[:count])

    def ask(self, prefetch: Prefetch, stamp: Stamp, now_slot: int) -> None:
        """Have a thread ask for what the clean close with that stamp left. O(file)."""
        arrays = read_derived(self._disk, self._path, stamp, np.dtype("<i8"))
        if arrays is None or len(arrays[0]) % PLACE_COLUMNS:
            return
        places = arrays[0].reshape(-1, PLACE_COLUMNS)
        due = np.flatnonzero(places[:, PLACE_SLOT] >= now_slot)
        places = np.roll(places, -int(due[0]) if len(due) else 0, axis=0)
        bytes_up_to = np.cumsum(
            2 * PAGE_BYTES + places[:, PLACE_SIZE].clip(0, fmt.MESSAGE_BYTES_MAX)
        )
        places = places[: np.searchsorted(bytes_up_to, available_bytes() // _SHARE)]
        prefetch.is_asking = 1

        def run() -> None:
            try:
                self._ask(places)
            finally:
                with acting_as(PREFETCH):
                    prefetch.is_asking = 0

        thread = BackgroundThread("timerstore-first-pages", run, self._tell)
        try:
            thread.start()
            self._thread = thread
        except StoreFullError:  # the system has no thread left
            prefetch.is_asking = 0

    def _ask(self, places: Rows) -> None:
        """Ask for these places, piece by piece; no further if the first ones are in memory."""
        set_thread_name("first-pages")
        set_timer_slack_us(1)
        pages = new_pages()
        for start in range(0, len(places), _PIECE):
            piece = places[start : start + _PIECE]
            for log, column in ((self._timerlog, PLACE_UNIT), (self._commitlog, PLACE_MESSAGE)):
                map_segments(log, np.unique(piece[:, column] // log.segment_bytes).tolist())
            with self._timerlog.reading() as timerlog, self._commitlog.reading() as commitlog:
                missing = ask_for_places(timerlog, commitlog, piece, pages)
            if self._stop.is_set() or (start == 0 and missing == 0):
                break

    def _tell(self, error: BaseException) -> None:
        """Log what ended the thread, which nobody waits for."""
        log.warning("%s: what falls due first is not asked for: %r", self._path, error)

    def stop(self) -> None:
        """Stop that thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
