"""Scrubbing: reads all of an open store again, slowly, so that damage is found before it is met.

One pass goes over the wheel's file, the timer log, then the commit log with the queue entries of
its messages; a step reads STEP_BYTES, or STEP_MESSAGES. It only reads: what is damaged is named,
and an index of which that is a part is made anew by the next opening. Nothing is taken off any
count here: the services do that when they come upon it. It reads through maps of its own, and holds
no lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.services.damage.entries import is_sound
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import QUEUES, TIMERS
from timerstore.services.world.damage import WRONG_ENTRY_REASON
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.unit import UNIT_GOOD, WRONG_UNIT_REASON
from timerstore.timelog.reading import scan, units
from timerstore.timelog.reading.pastdamage import Damage, read_past_damage
from timerstore.timelog.reading.reader import ReadSegments, StoreReader
from timerstore.wheel.checksums import PAGE_BYTES, page_sums

STEP_BYTES: Final = 256 << 10
STEP_MESSAGES: Final = 512
"""Of the commit log; some 160 KiB of small ones."""
BYTES_PER_S: Final = 4 << 20
"""A gigabyte takes four minutes; a disk does hundreds of times as much."""
FIRST_S: Final = 60.0
"""From the opening, which has looked at much, to the first pass."""
PAUSE_S: Final = 3_600.0
"""Between the end of a pass and the next."""


class Scrub:
    """The pass over one engine's files. `step` is called by one thread at a time."""

    def __init__(
        self, engine: Engine, on_damage: Callable[[Damage], object] = lambda damage: None
    ) -> None:
        """Begin a first pass a while after opening, which has looked at much of it.

        `on_damage` is told what is damaged of the commit log, as often as a pass meets it.
        """
        self.engine, self.on_damage = engine, on_damage
        self.pass_count = 0
        self.message_count = 0
        """Sound messages that the pass has read."""
        self.file, self.offset = "", 0
        self._steps: Iterator[int] | None = None
        self._next_s = time.monotonic() + FIRST_S

    def run(self) -> None:
        """Do one step, if it is time for it."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        done = self.step()
        self._next_s = now_s + (done / BYTES_PER_S if done else PAUSE_S)

    def step(self) -> int:
        """Read on; return how many bytes, 0 if a pass has ended."""
        if self._steps is None:
            self._steps = self._pass()
        try:
            return next(self._steps)
        except StopIteration:
            self.pass_count += 1
        except (CorruptStoreError, OSError):
            pass  # retention removed what was about to be read: begin again
        self._steps, self.file, self.offset = None, "", 0
        return 0

    def to_dict(self) -> dict[str, Any]:
        """Return the place of the pass, for `stats()`."""
        return {"pass_count": self.pass_count, "file": self.file, "offset": self.offset}

    def _pass(self) -> Iterator[int]:
        yield from self._read_wheel()
        yield from self._read_units()
        yield from self._read_messages()

    # --- the wheel

    def _read_wheel(self) -> Iterator[int]:
        wheel = self.engine.wheel
        self.file = "timerwheel"
        for offset in range(0, len(wheel.array.slots), STEP_BYTES):
            self.offset = offset
            data = np.frombuffer(os.pread(wheel.fd, STEP_BYTES, offset), np.uint8)
            first, sums = offset // PAGE_BYTES, page_sums(data)
            known = wheel.sums.either()
            if known is not None:
                before, after = (each[first : first + len(sums)] for each in known)
                wrong = np.flatnonzero((sums != before) & (sums != after))
                for place in wrong.tolist():
                    if wheel.sums.either() is not known:
                        break  # it was written meanwhile
                    reason = "the checksum of this page does not match"
                    self._name(TIMERS, "timerwheel", (first + place) * PAGE_BYTES, reason)
            yield STEP_BYTES

    # --- the timer log

    def _read_units(self) -> Iterator[int]:
        engine, log = self.engine, self.engine.timerlog
        self.file = "timerlog"
        stop = log.end
        reader = ReadSegments(
            log.folder, "timerlog", log.segment_bytes, engine.disk.at, open_count_max=4
        )
        self.offset = log.start
        for part in units.walk_units(reader, log.start, stop, chunk=STEP_BYTES // fmt.UNIT_BYTES):
            damaged = part.offset[part.status != UNIT_GOOD]
            for offset in damaged.tolist():
                self._name(TIMERS, "timerlog", offset, WRONG_UNIT_REASON)
            if len(part):
                self.offset = int(part.offset[-1]) + fmt.UNIT_BYTES
            yield STEP_BYTES

    # --- the commit log, with the queues

    def _read_messages(self) -> Iterator[int]:
        engine, log = self.engine, self.engine.commitlog
        self.file, self.offset, self.message_count = "commitlog", log.start, 0
        stop = log.end  # before: what is mapped ahead of the end may be removed, and made again
        reader = StoreReader(
            engine.path,
            engine.level_ms,
            precision_ms=engine.precision_ms,
            folder=engine.disk.folder,
            shares=False,
        )
        for item in read_past_damage(reader, log.start, stop, chunk=STEP_MESSAGES):
            start = self.offset
            if isinstance(item, Damage):
                self.offset = item.resume
                if item.offset >= log.start:
                    engine.damage.note("commitlog", item.offset, item.told(stop))
                    self.on_damage(item)
            else:
                self.offset = int(item.offset[-1] + item.size[-1])
                self.message_count += len(item)
                self._compare(item)
            yield max(1, self.offset - start)
            reader.commitlog.unmap()

    def _compare(self, rows: scan.LoggedMessages) -> None:
        """Compare messages with their queue entries."""
        queues, log = self.engine.queues, self.engine.commitlog
        names: dict[tuple[bytes, int], list[int]] = {}
        columns = (column.tolist() for column in scan.stored_in(rows))
        for i, (at, count, queue_id) in enumerate(zip(*columns, strict=True)):
            names.setdefault((log.read(at, count), queue_id), []).append(i)
        for (topic, queue_id), places in names.items():
            mine, number = rows[places], queues.row(topic, queue_id)
            low, high = queues.first_index(number), queues.next_index(number)
            index = mine.queue_index
            mine = mine[(index >= low) & (index < high)]
            if not len(mine):
                continue
            first, last = int(mine.queue_index[0]), int(mine.queue_index[-1])
            entries = queues.read(number, first, last - first + 1)
            entries = entries[mine.queue_index - first]
            wrong = (entries["offset"] != mine.offset) | (entries["size"] != mine.size)
            for i in np.flatnonzero(wrong).tolist():
                # Of two messages with one index, which older versions may write, one counts.
                at, entry = int(mine.queue_index[i]), entries[i : i + 1]
                if not is_sound(self.engine, number, at, entry):
                    place = at * fmt.ENTRY_BYTES
                    self._name(QUEUES, queues.files[number].name, place, WRONG_ENTRY_REASON)

    def _name(self, index: str, file: str, offset: int, reason: str) -> None:
        """Name a place of an index, which the next opening makes anew."""
        self.engine.damage.note(file, offset, reason)
        if index not in self.engine.wanted.indexes:
            self.engine.wanted.add(index)
