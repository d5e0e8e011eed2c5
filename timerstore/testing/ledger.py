"""What a commit log says became of each timer: the log alone is read, and no index of it.

So what is wrong in an index shows as a difference.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from timerstore.jit.record import Words
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message, decode_message
from timerstore.timelog.reading.reader import StoreReader
from timerstore.values.config import Config

TIMER_TOPIC: Final = fmt.TIMER_TOPIC.decode()
LEVEL_TOPIC: Final = fmt.LEVEL_TOPIC.decode()


def check_none(faults: list[str]) -> None:
    """Raise AssertionError if there are faults; it names the first twenty of them."""
    if faults:
        more = f"\nand {len(faults) - 20} more" if len(faults) > 20 else ""
        raise AssertionError("\n".join(faults[:20]) + more)


@dataclass
class Root:
    """A timer as it was first put, and what became of it."""

    key: str
    topic: str
    body: bytes
    due_ms: int
    offset: int
    stored_ms: int
    replaces: str | None
    level: int = 0
    fired_ms: list[int] = field(default_factory=list)
    rolls: int = 0
    deleted: bool = False
    user_key: str | None = None

    @property
    def pending(self) -> bool:
        """Neither fired nor cancelled."""
        return not self.fired_ms and not self.deleted


@dataclass
class Ledger:
    """All timers of a log, by the offset of their first put.

    `root_of`: by the offset of any of its messages, None for a delete's; `names`: by topic + key;
    `deletes`: the offsets of a root's deletes, by its own.
    """

    roots: dict[int, Root] = field(default_factory=dict)
    delete_count: int = 0
    copied: Counter[int] = field(default_factory=Counter)
    end: int = 0
    root_of: dict[int, Root | None] = field(default_factory=dict)
    names: dict[str, Root] = field(default_factory=dict)
    deletes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    levels_ms: list[int] = field(default_factory=Config().delay_levels_ms)

    def take(self, message: Message) -> None:
        """Enter the next message of the log."""
        properties, is_timer = message.properties, message.topic == TIMER_TOPIC
        origin = properties.get("TIMER_ORIGIN")
        if origin is not None:
            self.copied[int(origin)] += 1
            root = self.root_of[int(origin)]
            self.root_of[message.offset] = root
            if root is not None and is_timer:
                root.rolls += 1
            elif root is not None:
                if (message.topic, message.body) != (root.topic, root.body):
                    check_none([f"{root} was fired as {message}"])
                root.fired_ms.append(message.stored_ms)
        elif is_timer and "TIMER_DEL_UNIQKEY" in properties:
            self.delete_count += 1
            self.root_of[message.offset] = None
            target = self.names[properties["TIMER_DEL_UNIQKEY"]]
            target.deleted = True
            self.deletes[target.offset].append(message.offset)
        elif is_timer or message.topic == LEVEL_TOPIC:
            level = 0 if is_timer else int(properties["DELAY"])
            due_ms = 0 if level else int(properties["TIMER_OUT_MS"])
            if level:
                if message.queue_id != level - 1:
                    check_none([f"{message} is of level {level}, in another queue"])
                due_ms = message.stored_ms + self.levels_ms[level - 1]
            root = Root(
                key=properties["UNIQ_KEY"],
                topic=properties["REAL_TOPIC"],
                body=message.body,
                due_ms=due_ms,
                offset=message.offset,
                stored_ms=message.stored_ms,
                replaces=properties.get("TIMER_REPLACES"),
                level=level,
                user_key=properties.get("KEYS"),
            )
            self.roots[message.offset] = self.root_of[message.offset] = root
            self.names[f"{root.topic}+{root.key}"] = root

    def by_id(self) -> dict[str, Root]:
        """Return each timer by its id; what was sent back has the id of its first message."""
        return {root.key: root for root in reversed(self.roots.values())}

    def pending_count(self) -> Counter[str]:
        """How many timers are pending, by topic: counted again from the log."""
        return Counter(root.topic for root in self.roots.values() if root.pending)

    def overdue(self, now_ms: int) -> list[Root]:
        """Return what should have fired by now.

        A level's message waits for those before it, cancelled or not, of which one may be stored
        later: whoever puts reads the clock before it waits for its turn to append.
        """
        blocked: set[int] = set()
        found = []
        for root in self.roots.values():
            if not root.fired_ms and root.due_ms > now_ms:
                blocked.add(root.level)
            elif root.pending and (not root.level or root.level not in blocked):
                found.append(root)
        return found

    def faults(self) -> list[str]:
        """Return what holds of no log: what was copied twice, early, or fired after its delete."""
        found = [
            f"the message at {at} was copied {n} times" for at, n in self.copied.items() if n > 1
        ]
        for root in self.roots.values():
            if len(root.fired_ms) > 1:
                found.append(f"{root} was fired twice")
            # A level's may be, where the clock went back; who knows the clock has to judge.
            if not root.level and any(fired < root.due_ms for fired in root.fired_ms):
                found.append(f"{root} was fired early")
            if root.deleted and root.fired_ms:
                found.append(f"{root} was cancelled, then fired")
        return found

    def check(self) -> None:
        """Raise AssertionError if there are faults."""
        check_none(self.faults())


def read_log(path: Path, levels_ms: Words) -> dict[int, Message]:
    """Return all messages of a commit log that can be read, by offset."""
    reader, found = StoreReader(path, levels_ms), dict[int, Message]()
    log = reader.commitlog
    offset, stop = log.start, log.used_end()
    while 0 <= offset < stop:
        scanned = reader.scan(offset)
        for rows in scanned:
            for at in rows.offset.tolist():
                found[at] = decode_message(log.view(at), at)
        offset = max(scanned.end, offset)
        if offset < stop:
            offset = reader.next_message(offset, stop)
    return found
