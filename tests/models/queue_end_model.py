"""Where a queue ends, as an executable model: random histories with an oracle, `bad`.

A commit log, two queues whose entries point into it, a record of where the queues ended, a
checkpoint. A kill keeps what the page cache has. A power cut keeps of the log a prefix that has all
that was synced, and of each entry and of the record the synced or a later content. A fault makes
zeros of a queue's last entries, once in a history, behind a close or a kill: a power cut may also
take the record, which then says less. Retention removes
messages from the log's begin. `RULES` are the store's (`services/opening/recover_log.py`,
`services/engine/counter_file.py`); each switch takes one away. `WRONG` must fail; nothing depends
on those in `SAME`.

says    The record says the ends that are durable, and the log's end up to which that holds. ("now":
        the ends when it is written, which are behind those.)
end     A queue that ends before what is recorded is made anew. ("zeros": zeros are its end.)
anew    It ends there at least, though its last messages may have been removed. ("log": with the
        last message of the log.)
behind  What the log has behind the checkpoint gets its entries. ("no": the end is not raised.)
longer  A record of a log that reaches further says nothing. ("counts": it does.)
order   The record is written behind the fsync of the queues, or before: no matter, for `longer`.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

QUEUES = range(2)
RULES = {
    "says": "durable",
    "end": "recorded",
    "anew": "recorded",
    "behind": "scanned",
    "longer": "nothing",
    "order": "behind",
}
WRONG = [
    {"says": "now"},
    {"end": "zeros"},
    {"anew": "log"},
    {"behind": "no"},
    {"order": "before", "longer": "counts"},
]
SAME = [{"order": "before"}]
NONE = -1  # zeros where an entry was


class Message(NamedTuple):
    queue: int
    index: int


class Said(NamedTuple):
    """What the record says."""

    ends: tuple[int, ...]
    log_end: int


NOTHING = Said((0, 0), 0)


class StoppedError(Exception):
    """The process ends between two steps of a checkpoint."""


@dataclass
class Files:
    """What a process sees, or what is on the disk."""

    log: list[Message] = field(default_factory=list)
    entries: tuple[list[int], ...] = field(default_factory=lambda: ([], []))
    said: Said = NOTHING

    def copy(self) -> "Files":
        return Files(list(self.log), tuple(map(list, self.entries)), self.said)


class Store:
    def __init__(self, seed: int, **rules: str) -> None:
        self.rules, self.rnd = RULES | rules, random.Random(seed)
        self.bad: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.files, self.disk = Files(), Files()
        self.checkpointed = self.start = 0  # of the log: durable, and where it begins
        self.has_fault = False

    def history(self) -> "Store":
        acts: list[Any] = [self.put] * 6 + [self.flush] * 3 + [self.remove, self.stop, self.close]
        for _ in range(self.rnd.randrange(5, 60)):
            try:
                self.rnd.choice(acts)()
            except StoppedError:
                self.stop()
        self.stop()
        return self

    # --- a life

    def put(self) -> None:
        queue = self.rnd.choice(QUEUES)
        entries = self.files.entries[queue]
        used = [message.index for message in self.files.log if message.queue == queue]
        self.bad["an index is given twice"] += len(entries) in used
        self.files.log.append(Message(queue, len(entries)))
        entries.append(len(self.files.log) - 1)

    def flush(self, *, closes: bool = False) -> None:
        log_end, ends = len(self.files.log), tuple(map(len, self.files.entries))
        steps = [lambda: self.sync_log(log_end), lambda: self.sync_entries(ends)]
        steps.insert(0 if self.rules["order"] == "before" else 2, lambda: self.say(ends, log_end))
        for step in steps:
            if not closes:
                self.between()
            step()
        if closes:
            self.disk.said = self.files.said
        self.checkpointed = log_end

    def between(self) -> None:
        """Others put meanwhile; or it ends here."""
        for _ in range(self.rnd.choice((0, 0, 1, 3))):
            self.put()
        if self.rnd.random() < 0.1:
            raise StoppedError

    def sync_log(self, log_end: int) -> None:
        self.disk.log = self.files.log[:log_end]

    def sync_entries(self, ends: tuple[int, ...]) -> None:
        for mine, durable, end in zip(self.files.entries, self.disk.entries, ends, strict=True):
            durable[:] = mine[:end]

    def say(self, ends: tuple[int, ...], log_end: int) -> None:
        if self.rules["says"] == "now":
            ends = tuple(map(len, self.files.entries))
        self.files.said = Said(ends, log_end)

    def remove(self) -> None:
        if self.checkpointed > self.start:
            self.start = self.rnd.randrange(self.start, self.checkpointed + 1)

    # --- an end, and what comes behind it

    def close(self) -> None:
        self.flush(closes=True)
        self.open(self.files.copy(), False)

    def stop(self) -> None:
        kept, is_cut = self.files.copy(), self.rnd.random() < 0.6
        if is_cut:
            self.seen["power cuts"] += 1
            durable = len(self.disk.log)
            kept.log = kept.log[: self.rnd.randrange(durable, len(kept.log) + 1)]
            for mine, synced in zip(kept.entries, self.disk.entries, strict=True):
                for i in range(len(synced), len(mine)):
                    if self.rnd.random() < 0.5:
                        mine[i] = NONE
            kept.said = self.rnd.choice((kept.said, self.disk.said))
        self.open(kept, is_cut)

    def open(self, kept: Files, is_cut: bool) -> None:
        if not is_cut and not self.has_fault and self.rnd.random() < 0.2:
            mine = self.rnd.choice(kept.entries)
            for i in range(max(0, len(mine) - self.rnd.randrange(1, 6)), len(mine)):
                self.has_fault |= 0 <= mine[i] < self.checkpointed
                mine[i] = NONE
        self.files = kept
        is_anew = self.recover()
        self.seen["made anew"] += is_anew
        self.bad["made anew, and all was sound"] += is_anew and not self.has_fault
        for offset, message in enumerate(kept.log):
            mine = kept.entries[message.queue]
            has_entry = message.index < len(mine) and mine[message.index] == offset
            self.bad["a message is not handed out"] += offset >= self.start and not has_entry
        self.disk = kept.copy()  # recovery syncs what it keeps
        self.flush(closes=True)

    def recover(self) -> bool:
        """Find each queue's end, then write what is missing; tell whether a queue was made anew."""
        log, is_anew = self.files.log, False
        said = self.files.said
        if said.log_end > len(log) and self.rules["longer"] == "nothing":
            said = NOTHING
        for queue, mine in enumerate(self.files.entries):
            del mine[self.end_of(mine) :]
            fresh = [i for i in range(self.checkpointed, len(log)) if log[i].queue == queue]
            if self.rules["behind"] == "no":
                fresh = []
            has_gap = any(log[i].index > len(mine) + n for n, i in enumerate(fresh))
            if not has_gap:
                mine += fresh[len(mine) - log[fresh[0]].index :] if fresh else []
            if has_gap or (self.rules["end"] == "recorded" and len(mine) < said.ends[queue]):
                is_anew = True
                self.make_anew(queue, mine, said.ends[queue])
        return is_anew

    def end_of(self, mine: list[int]) -> int:
        """Where entries end that belong to the durable log; of those before them none is zeros."""
        sound = [i for i, offset in enumerate(mine) if 0 <= offset < self.checkpointed]
        return max(sound, default=-1) + 1

    def make_anew(self, queue: int, mine: list[int], recorded: int) -> None:
        kept = [
            i for i in range(self.start, len(self.files.log)) if self.files.log[i].queue == queue
        ]
        end = max([self.files.log[i].index + 1 for i in kept], default=0)
        if self.rules["anew"] == "recorded":
            end = max(end, recorded)
        mine[:] = [NONE] * end
        for i in kept:
            mine[self.files.log[i].index] = i
