"""What was put, what was cancelled, what came: a byte for each timer, in files that outlive a kill.

A timer's number is `turn * putters + putter`. A putter notes the numbers that it begins before it
puts them, and again when they are put. So after a kill what lies between may be there or not.
"""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

CAME = 0x0F
"""The bits that count how often a timer was handed out; 15 stands for more."""
ASKED = 0x10
"""Whether it may be cancelled: somebody asked, or is about to."""
CANCELLED = 0x20
"""Whether a cancel has returned True."""
UNSURE = 0x40
"""Whether its put was under way when the process was killed."""
_WORDS = 1_024
_FIRSTS = 32  # words of what was blamed first
_FIRST = 64  # words of putters
NAMES = (
    *("stop", "ready", "finished", "early", "strange", "pulled", "refused", "hopped", "fired"),
    *("queue_end", "pending", "cancelled", "stalled", "lost", "undead", "again"),
    "used_bytes",
)
"""Counters that parent and worker share, by name."""
_ROOM = 1 << 36  # of a sparse file
_PART = 1 << 22  # of it, looked at in one piece


class Ledger:
    """The files, mapped by the worker and by its parent."""

    def __init__(self, folder: Path, putters: int) -> None:
        """Open the files below a folder, or make them."""
        folder.mkdir(parents=True, exist_ok=True)
        self.putters = putters
        self._words: Any = np.frombuffer(_mapped(folder / "words", 8 * _WORDS), np.int64)
        self._bytes: Any = np.frombuffer(_mapped(folder / "timers", _ROOM), np.uint8)
        self.begun: Any = self._words[_FIRST : _FIRST + putters]
        """How many turns each putter has begun."""
        self.put: Any = self._words[_FIRST + 256 : _FIRST + 256 + putters]
        """How many turns each has put, or found to be unsure."""
        self._audited = [0] * putters
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> int:
        return int(self._words[NAMES.index(name)])

    def __setitem__(self, name: str, value: int) -> None:
        """Set a counter that one process alone sets."""
        self._words[NAMES.index(name)] = value

    def add(self, name: str, count: int = 1) -> None:
        """Count; of the worker's threads."""
        with self._lock:
            self._words[NAMES.index(name)] += count

    # --- of putters

    def begin(self, putter: int, count: int) -> Any:
        """Return the numbers of the next turns of a putter, which it is about to put: int64[n]."""
        first = int(self.begun[putter])
        self.begun[putter] = first + count
        return np.arange(first, first + count) * self.putters + putter

    def done(self, putter: int, count: int) -> None:
        """Note that the next turns of a putter are put."""
        self.put[putter] += count

    def ask(self, numbers: Any) -> None:
        """Note that somebody is about to cancel timers, each of them once."""
        with self._lock:
            self._bytes[numbers] |= ASKED

    def answered(self, numbers: Any, is_cancelled: Any) -> None:
        """Note which of them were cancelled; the others come."""
        cancelled = numbers[is_cancelled]
        with self._lock:
            self._bytes[numbers] &= 0xFF ^ ASKED
            self._bytes[cancelled] |= CANCELLED
            came = self._bytes[cancelled] & CAME > 0
        self.add("cancelled", len(cancelled))
        self.blame("undead", cancelled[came])

    # --- of consumers

    def take(self, numbers: Any, is_early: Any) -> None:
        """Note what was handed out: int64[n], bool[n]."""
        self.blame("early", numbers[is_early])
        if int(numbers.min()) >= 0 and int(numbers.max()) < self.limit():
            different, counts = np.unique(numbers, return_counts=True)
            with self._lock:
                before = self._bytes[different]
                came = np.minimum((before & CAME) + counts, CAME).astype(np.uint8)
                self._bytes[different] = (before & (0xFF ^ CAME)) | came
            self.blame("undead", different[before & CANCELLED > 0])
            self.blame("again", different[came > 1])
        else:
            self.blame("strange", numbers)
        self.add("pulled", len(numbers))

    # --- of who judges

    def blame(self, name: str, numbers: Any) -> None:
        """Count timers of which something is wrong; keep the number of the first one: int64[n]."""
        if len(numbers):
            if not self[name]:
                self._words[_FIRSTS + NAMES.index(name)] = numbers[0]
            self.add(name, len(numbers))

    def first(self, name: str) -> int:
        """Return the number of the timer that was blamed first."""
        return int(self._words[_FIRSTS + NAMES.index(name)])

    def audit(self, put: Any) -> None:
        """Blame each timer before these turns that should have come by now, and is lost.

        `put`: int64[putters]. Each turn is looked at once.
        """
        for putter in range(self.putters):
            states, stop = self._bytes[putter :: self.putters], int(put[putter])
            for first in range(self._audited[putter], stop, _PART):
                part = states[first : min(first + _PART, stop)]
                turns = first + np.flatnonzero(part & (CAME | ASKED | CANCELLED | UNSURE) == 0)
                self.blame("lost", turns * self.putters + putter)
            self._audited[putter] = stop

    # --- of the parent

    def limit(self) -> int:
        """Return a number beyond all that were begun."""
        return int(self.begun.max()) * self.putters

    def settle(self) -> int:
        """After a kill, note what nobody knows to be put, or not; return how many."""
        count = 0
        for putter in range(self.putters):
            turns = np.arange(int(self.put[putter]), int(self.begun[putter]))
            self._bytes[turns * self.putters + putter] |= UNSURE
            self.put[putter] = self.begun[putter]
            count += len(turns)
        return count

    def is_put(self, numbers: Any) -> Any:
        """Tell which numbers a putter has begun: bool[n]."""
        return numbers // self.putters < self.begun[numbers % self.putters]

    def parts(self) -> Any:
        """Yield (first number, the bytes from there on), for all that were begun."""
        for first in range(0, self.limit(), _PART):
            yield first, self._bytes[first : min(first + _PART, self.limit())]


def _mapped(path: Path, size: int) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(fd, size)
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)


def bodies_of(numbers: Any, earliest_ms: Any, size: int) -> Any:
    """Return bodies that say their numbers, and when each may come at the earliest: uint8[n, size].

    `earliest_ms`: int64[n], by the clock of the putter.
    """
    bodies = np.zeros((len(numbers), size), np.uint8)
    words = np.column_stack([numbers, earliest_ms]).astype("<i8")
    bodies[:, :16] = words.view(np.uint8)
    return bodies


def words_of(bodies: Any, size: int) -> tuple[Any, Any]:
    """Return what bodies say, an Arrow binary array, all of one size: int64[n], int64[n].

    If one of them is of another size, all numbers are −1.
    """
    offsets = np.frombuffer(bodies.buffers()[1], np.int32)[bodies.offset :][: len(bodies) + 1]
    if not (np.diff(offsets) == size).all():
        return np.full(len(bodies), -1), np.zeros(len(bodies), np.int64)
    data = np.frombuffer(bodies.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    words = np.ascontiguousarray(data.reshape(-1, size)[:, :16]).view("<i8")
    return words[:, 0], words[:, 1]
