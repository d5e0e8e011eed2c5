"""Using a removed segment's file for the next one, as an executable model with an oracle.

A segment is a file of CELLS cells, and a cell is what reaches the disk whole, a page. A message
takes one to three cells of one segment; each cell names its message, so "its CRC holds" means: all
of its cells are there. A blank closes a segment. A kill keeps the page cache; a power cut keeps of
each cell that was not synced the old content or the new, and of the renamings that no sync of the
folder followed any. `RULES` are those of the store; each switch takes one away:

names   the oldest file, which lies before the durable floor, gets the next name; the folder is
        synced; only then a byte is written into it. ("flush": the folder is synced with the next
        flush; "never".)
apron   before a message is copied the APRON cells behind its end are zeros, also in the next
        segment. So a kill leaves zeros, where a broker stops, which does not compare a message's
        own offset with its place. ("after": they are zeroed behind the message.)
own     a message counts only at its own offset.
blank   a blank counts only if it says its own place. ("plain": as a broker's.)
tail    recovery zeroes everything behind the log's end, in that segment and all later ones, and
        syncs it, before anything is appended: messages of this very use of the file that were
        undone are right by offset and CRC. ("apron": no more than an apron.)

Files before the checkpoint's floor are not scanned; where the checkpoint is lost (`lose`) the log
begins with the first file.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

CELLS, APRON = 8, 2
RULES: dict[str, Any] = {
    "names": "first",
    "apron": "before",
    "own": True,
    "blank": "placed",
    "tail": "all",
    "lose": True,
}
WRONG: list[dict[str, Any]] = [
    {"names": "flush"},
    {"names": "flush", "lose": False},
    {"names": "never", "lose": False},
    {"apron": "after"},
    {"own": False},
    {"blank": "plain"},
    {"tail": "apron"},
]
Cell = Any  # 0, ("message", its offset, its size, which cell of it, its id), ("blank", left, place)


@dataclass
class File:
    """An inode: what the page cache holds, and what a power cut cannot take."""

    cache: list[Cell] = field(default_factory=lambda: [0] * CELLS)
    disk: list[Cell] = field(default_factory=lambda: [0] * CELLS)


class WrongError(Exception):
    """The history cannot go on."""


class Store:
    """A log, its files, and all that was ever appended to it."""

    def __init__(self, seed: int, **rules: Any) -> None:
        self.rules, self.random = RULES | rules, random.Random(seed)
        self.bad: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        first = File()
        self.files = [first]
        self.names: dict[int, File] = {0: first}  # by number, as the process sees them
        self.safe_names = {0: first}
        self.renamings: list[tuple[int | None, int, File]] = []  # since the folder was synced
        self.end = self.acknowledged = 0
        self.floor = self.flushed = 0  # of the durable checkpoint
        self.count = 0
        self.all: dict[int, tuple[int, int]] = {}  # by offset: id, size

    # --- names

    def sync_folder(self) -> None:
        self.safe_names, self.renamings = dict(self.names), []

    def prepare(self, number: int) -> None:
        """Have a segment: the oldest file again, or a new one."""
        if number in self.names:
            return
        oldest = min(self.names)
        if (oldest + 1) * CELLS <= self.floor and self.random.random() < 0.9:
            self.names[number] = file = self.names.pop(oldest)
            self.renamings.append((oldest, number, file))
            self.seen["reused"] += 1
            if self.rules["names"] == "first":
                self.sync_folder()
        else:
            self.names[number] = file = File()
            self.files.append(file)
            self.renamings.append((None, number, file))

    # --- appending

    def put(self, offset: int, cell: Cell) -> None:
        self.names[offset // CELLS].cache[offset % CELLS] = cell

    def zero(self, start: int, stop: int) -> None:
        for offset in range(start, stop):
            self.prepare(offset // CELLS)
            self.put(offset, 0)

    def append(self, cells_max: int = 99) -> None:
        """Append a message, cell by cell; a kill comes before the cell `cells_max`."""
        size, left = self.random.choice((1, 1, 2, 3)), CELLS - self.end % CELLS
        at = self.end if size + 1 <= left else self.end + left
        self.prepare(at // CELLS)
        self.count += 1
        if self.rules["apron"] == "before":
            self.zero(at, at + size + APRON)
        cells = [(self.end, ("blank", left, self.end))] if at != self.end else []
        cells += [(at + i, ("message", at, size, i, self.count)) for i in range(size)]
        for place, cell in cells[:cells_max]:
            self.put(place, cell)
        if len(cells) > cells_max:
            return
        if self.rules["apron"] == "after":
            self.zero(at + size, at + size + APRON)
        self.all[at] = self.count, size
        self.end = at + size

    def flush(self, *, checkpoint: bool) -> None:
        for number, file in self.names.items():
            if number * CELLS < self.end:
                file.disk = list(file.cache)
        if self.rules["names"] != "never":
            self.sync_folder()
        self.acknowledged = self.end
        if checkpoint:
            later = [offset for offset in self.all if offset >= self.floor]
            self.floor, self.flushed = self.random.choice([*later, self.end]), self.end

    # --- reading

    def scan(self, offset: int, *, as_broker: bool = False) -> tuple[list[tuple[int, int]], int]:
        """All messages from an offset on, as (offset, id), and where the log ends."""
        found = []
        while offset // CELLS in self.names:
            cells, at = self.names[offset // CELLS].cache, offset % CELLS
            if not cells[at]:
                break
            if cells[at][0] == "blank":
                _, left, place = cells[at]
                is_placed = as_broker or self.rules["blank"] == "plain" or place == offset
                if left != CELLS - at or not is_placed:
                    break
                offset += left
                continue
            _, own, size, _, id = cells[at]
            if cells[at : at + size] != [("message", own, size, i, id) for i in range(size)]:
                break
            if self.rules["own"] and not as_broker and own != offset:
                break
            found.append((offset, id))
            offset += size
        return found, offset

    # --- crashes

    def crash(self, *, power: bool, lost: bool) -> None:
        if power:
            self.cut_power()
        else:
            for file in self.files:
                file.disk = list(file.cache)
        self.safe_names, self.renamings = dict(self.names), []
        wanted = [(at, id) for at, (id, _) in sorted(self.all.items()) if at >= self.floor]
        if not power and self.scan(self.floor, as_broker=True)[0] != wanted:
            self.bad["kill: a broker reads on"] += 1
        found, end = self.scan(min(self.names) * CELLS if lost else self.floor)
        found = [each for each in found if each[0] >= self.floor]
        if found != wanted[: len(found)]:
            self.stop("not a prefix")
        if sum(at < self.acknowledged for at, _ in wanted) > len(found):
            self.stop("acknowledged, and lost")
        if not power and len(found) < len(wanted):
            self.stop("a kill lost something")
        self.recover(max(end, self.floor))

    def cut_power(self) -> None:
        share = self.random.choice((0, 0.1, 0.5, 0.9, 1))
        self.names = dict(self.safe_names)
        for old, number, file in self.renamings:
            if self.random.random() < 0.5:
                if old is None:
                    self.names[number] = file
                elif old in self.names:
                    self.names[number] = self.names.pop(old)
        for file in self.files:
            cells = zip(file.disk, file.cache, strict=True)
            file.cache = [new if self.random.random() < share else old for old, new in cells]
            file.disk = list(file.cache)

    def recover(self, end: int) -> None:
        self.all = {at: each for at, each in self.all.items() if at < end}
        self.end = self.acknowledged = end
        for number, file in self.names.items():
            at = max(0, end - number * CELLS)
            if (number + 1) * CELLS > self.floor and at < CELLS:
                stop = CELLS if self.rules["tail"] == "all" else min(CELLS, at + APRON)
                file.cache[at:stop] = [0] * (stop - at)
                file.disk = list(file.cache)

    def stop(self, what: str) -> None:
        self.bad[what] += 1
        raise WrongError

    # --- a history

    def history(self) -> "Store":
        """Play; what is wrong is counted in `bad`."""
        chance = self.random.random
        try:
            for _ in range(self.random.randrange(20, 120)):
                kind = chance()
                if kind < 0.8:
                    self.append()
                elif kind < 0.9:
                    self.flush(checkpoint=chance() < 0.7)
                else:
                    power = chance() < 0.6
                    if not power or chance() < 0.5:
                        self.append(self.random.randrange(4))
                    self.crash(power=power, lost=self.rules["lose"] and chance() < 0.2)
                    self.seen["crashes"] += 1
        except WrongError:
            pass
        except KeyError:
            self.bad["a segment is missing"] += 1
        return self
