"""What a commit log says became of each timer: the log alone is read, and no index of it.

So what is wrong in an index shows as a difference. Behind it stands what a program was told, and
what compares both with an open store.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from timerstore.errors import InvalidArgumentError
from timerstore.jit.record import Words
from timerstore.services.world.clock import ManualClock
from timerstore.store.store import TimerStore
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


# --- what a program was told of its calls, compared with a log


class Account:
    """What a program was told of its calls, over all its lives.

    It is told in lines: a word, the thread, the number of the call, then ids or names.
    """

    def __init__(self) -> None:
        self.put: set[str] = set()
        self.cancelled: set[str] = set()
        self.late: set[str] = set()
        self.unsure: set[str] = set()
        """Their cancelling had begun, and nobody heard the answer."""
        self.got: set[str] = set()
        self.keys: set[tuple[str, str]] = set()
        """What was cancelled by key, if anything was there."""
        self.durability = "group"
        self._may_lose: list[dict[str, list[tuple[str, str]]]] = []
        """Of each thread of a life that ended in a power cut: what it did, by call."""

    def take(self, lines: Iterable[str], *, power: bool = False) -> None:
        """Enter the lines of a life, which ended in a power cut or not."""
        asked: Counter[str] = Counter()
        acts: dict[str, dict[str, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
        for line in lines:
            word, thread, call, *names = line.split()
            done = acts[thread][call]
            if word == "durability":
                self.durability = names[0]
            elif word == "put":
                self.put.update(names)
                done += [("put", id) for id in names]
            elif word == "cancelling":
                asked.update(names)
            elif word in ("cancelled", "moved"):
                gone = names if word == "cancelled" else names[:1]
                self.cancelled.update(gone)
                asked.subtract(gone)
                done += [("cancelled", id) for id in gone]
                if word == "moved":
                    self.put.add(names[1])
                    done.append(("put", names[1]))
            elif word == "late":
                self.late.update(names)
                asked.subtract(names)
            elif word == "got":
                self.got.update(names)
            elif word == "key":
                self.keys.add((names[0], bytes.fromhex(names[1]).decode()))
        self.unsure.update(+asked)
        self._may_lose += acts.values() if power else []

    def lose_power(self, ledger: Ledger) -> list[str]:
        """Forget what a power cut may take under "process": of each thread what came last.

        Returns what is wrong: something is there, and an earlier act of its thread is not.
        """
        may_lose, self._may_lose = self._may_lose, []
        if self.durability == "group":
            return []
        roots, found = ledger.by_id(), list[str]()
        for acts in may_lose:
            lost = ""
            for done in acts.values():
                there = [id for word, id in done if _is_there(roots.get(id), word)]
                if lost and there:
                    found.append(f"{there[0]} is there, and {lost}, which came before, is lost")
                for word, id in done:
                    if not _is_there(roots.get(id), word):
                        lost = lost or id
                        (self.put if word == "put" else self.cancelled).discard(id)
                        self.unsure.add(id)
        self.got.clear()  # they may come again
        self.late.clear()
        return found

    def faults(self, ledger: Ledger) -> list[str]:
        """Return what the program was told, and is not so."""
        roots = ledger.by_id()
        found = [f"{id} was put, and is lost" for id in sorted(self.put - roots.keys())]
        for id in self.cancelled & roots.keys():
            if not roots[id].deleted:
                found.append(f"{roots[id]} was cancelled, and is still to come")
        for id in self.got & roots.keys():
            if not roots[id].fired_ms:
                found.append(f"{roots[id]} was handed out, and its firing is lost")
        for id in self.late & roots.keys():
            if roots[id].pending:
                found.append(f"{roots[id]} was too late to cancel, and still waits")
        replaced = {root.replaces for root in roots.values() if root.replaces}
        for id in replaced & roots.keys():
            if not roots[id].deleted:
                found.append(f"{roots[id]} was rescheduled, and still waits")
        asked = self.cancelled | self.unsure | replaced
        for root in roots.values():
            if root.deleted and root.key not in asked:
                if (root.topic, root.user_key) not in self.keys:
                    found.append(f"{root} was cancelled, and nobody asked for that")
            # The ledger itself allows for a clock that goes back.
            if any(fired < root.due_ms for fired in root.fired_ms):
                found.append(f"{root} came early")
        return found

    def check(self, ledger: Ledger) -> None:
        """Raise AssertionError if there are faults."""
        check_none(self.faults(ledger))


def _is_there(root: Root | None, word: str) -> bool:
    """Tell whether a log knows of a put, or of a cancel."""
    return root is not None and (word == "put" or root.deleted)


# --- what is wrong with a store after a crash or after damage, beside its log and an account


def judge(
    path: str | os.PathLike[str],
    account: Account | None = None,
    *,
    config: Config | None = None,
    power: bool = False,
) -> Ledger:
    """Open a store that a crash has left, compare it with its log and an account, and close it.

    What was acknowledged is there: under "group" after anything, under "process" after a kill.
    After a power cut (`power`) that leaves the last acts of each thread, an account under "process"
    forgets what is lost. Nothing has fired twice, early, or after a cancel that returned True; what
    is due has fired; counts are those of the log; and a listing shows each pending timer once.
    Raises AssertionError, which names each fault; else returns what the log says.

    Its clock stands at the time of the system. The log must reach back to its beginning, so set
    `retention_ms` high enough. O(bytes of the log).
    """
    config, now_ms = config or Config(), time.time_ns() // 1_000_000
    clock = ManualClock(now_ms, force=True)
    with TimerStore(path, config=config, clock=clock) as store:
        ledger = Ledger(levels_ms=config.delay_levels_ms())
        if store.core.engine.commitlog.start:
            raise InvalidArgumentError(f"The log of {path} has lost its beginning to retention.")
        for message in read_log(store.path, store.core.engine.level_ms).values():
            ledger.take(message)
        faults = [*ledger.faults(), *store_faults(store, ledger)]
        faults += [f"{root} is due, and has not fired" for root in ledger.overdue(now_ms)]
        listed = Counter(timer.id for timer in store.pending())
        pending = Counter(root.key for root in ledger.roots.values() if root.pending)
        faults += [f"{id} is listed {listed[id]} times" for id in (listed - pending)]
        faults += [f"{id} is pending, and not listed" for id in (pending - listed)]
        if account is not None:
            faults += account.lose_power(ledger) if power else []
            faults += account.faults(ledger)
    check_none(faults)
    return ledger


def store_faults(store: Any, ledger: Ledger) -> list[str]:
    """Return where the counts and the listing of an open store are not those of its log."""
    stats, recount = store.stats(), ledger.pending_count()
    found = []
    if stats.collision_count:
        found.append("a slot of the ring was needed twice")
    if stats.unreadable_count:
        found.append(f"{stats.unreadable_count} messages cannot be read")
    if stats.pending_count != recount.total():
        found.append(f"{stats.pending_count} timers are counted, {recount.total()} are pending")
    for topic in recount:
        if store.count(topic) != recount[topic]:
            found.append(f"{store.count(topic)} are counted in {topic}, not {recount[topic]}")
    return found


def check_store(store: Any, ledger: Ledger) -> None:
    """Raise AssertionError if the counts of an open store are not those of its log."""
    check_none(store_faults(store, ledger))


def check_counters(store: Any, ledger: Ledger) -> None:
    """Raise AssertionError if a store's counters of topics are not those of its log."""
    roots = ledger.roots.values()
    put = Counter(root.topic for root in roots)
    fired = Counter(root.topic for root in roots if root.fired_ms)
    cancelled = Counter(root.topic for root in roots if root.deleted)
    topics, faults = store.stats().topics, []
    if {each.topic: each.put_count for each in topics} != put:
        faults.append(f"put: {topics}, not {put}")
    for each in topics:
        late_ms = [
            root.fired_ms[0] - root.due_ms
            for root in roots
            if root.topic == each.topic and root.fired_ms
        ]
        told = (each.fired_count, each.cancelled_count, each.lateness_max_ms)
        if told != (fired[each.topic], cancelled[each.topic], max(late_ms, default=0)):
            faults.append(f"fired, cancelled, late: {told} of {each.topic}")
    check_none(faults)


def check_damaged(store: TimerStore, before: Ledger, *, everything_due: bool = True) -> None:
    """Raise AssertionError if damage has cost an open store more than what `stats` names.

    A timer fires once, or one of its messages is named as damaged. What was fired before does not
    fire again, what was cancelled does not fire, unless the message that says so is named.
    `before`: the log before the damage. `everything_due`: the clock is past the due time of all
    timers but those that lie months ahead. O(bytes of the log).
    """
    messages, faults = read_log(store.path, store.core.engine.level_ms), list[str]()
    named = sorted(
        place["offset"] for place in store.stats().damage if place["file"] == "commitlog"
    )

    def is_named(offset: int) -> bool:
        """Whether it cannot be read, and the place named for it is the last one before it."""
        if offset in messages:
            return False
        return any(
            place <= offset and not any(place < each < offset for each in messages)
            for place in named
        )

    root_of: dict[int, Root | None] = dict(before.root_of)
    copies: dict[int, list[int]] = defaultdict(list)  # fired, by the root's offset
    offsets: dict[int, list[int]] = defaultdict(list)  # of all a root's messages
    for offset, root in before.root_of.items():
        if root is not None:
            offsets[root.offset].append(offset)
    for offset, message in messages.items():
        origin = message.properties.get("TIMER_ORIGIN")
        if origin is not None and int(origin) in root_of:
            root = root_of[offset] = root_of[int(origin)]
            if root is not None:
                offsets[root.offset].append(offset)
                if message.topic not in (TIMER_TOPIC, LEVEL_TOPIC):
                    copies[root.offset].append(offset)
    for root in before.roots.values():
        fired = copies[root.offset]
        lost = [each for each in offsets[root.offset] if is_named(each)]
        unread = [each for each in offsets[root.offset] if each not in messages]
        if len(fired) > 1:
            faults.append(f"{root} was fired at {fired}")
        if root.pending and everything_due and root.due_ms < store.core.clock.now_ms:
            if not fired and not lost:
                faults.append(f"{root} was lost without a word")
        if root.fired_ms and not fired and not unread:
            faults.append(f"{root} was fired, and is not there")
        if root.deleted and fired and all(each in messages for each in before.deletes[root.offset]):
            faults.append(f"{root} was cancelled, then fired")
    check_none(faults)
