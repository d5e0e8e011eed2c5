"""What is wrong with a store after a crash or after damage, beside its log and an account."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from typing import Any

from timerstore.errors import InvalidArgumentError
from timerstore.services.world.clock import ManualClock
from timerstore.store.store import TimerStore
from timerstore.testing.account import Account
from timerstore.testing.ledger import (
    LEVEL_TOPIC,
    TIMER_TOPIC,
    Ledger,
    Root,
    check_none,
    read_log,
)
from timerstore.values.config import Config


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
