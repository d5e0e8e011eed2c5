"""What may become of timers whose store was damaged: the oracle of the tests that damage one.

A timer fires once, or one of its messages is named as damaged. What was fired before does not fire
again, what was cancelled does not fire, unless the message that says so is named.
"""

from collections import defaultdict
from pathlib import Path

from tests.models.ledger import LEVEL_TOPIC, TIMER_TOPIC, Ledger, Root
from timerstore import TimerStore
from timerstore.timelog.bytes.decode import Message, decode_message
from timerstore.timelog.reading.reader import StoreReader


def read_past_damage(path: Path, levels_ms: object) -> dict[int, Message]:
    """All messages that can be read, by offset."""
    reader = StoreReader(path, levels_ms)  # type: ignore[arg-type]
    log, found = reader.commitlog, {}
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


def check_damaged(store: TimerStore, before: Ledger, *, everything_due: bool = True) -> None:
    """Assert the above of an open store; `before`: the log as it was before the damage.

    `everything_due`: the clock is past the due time of all timers but those that lie months ahead.
    """
    messages = read_past_damage(store.path, store.core.engine.level_ms)
    named = sorted(
        place["offset"] for place in store.stats().damage if place["file"] == "commitlog"
    )

    def is_named(offset: int) -> bool:
        """It cannot be read, and the place that is named for it is the last one before it."""
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
        assert len(fired) <= 1, f"{root} was fired at {fired}"
        if root.pending and everything_due and root.due_ms < store.core.clock.now_ms:
            assert fired or lost, f"{root} was lost without a word"
        if root.fired_ms:
            unread = [each for each in offsets[root.offset] if each not in messages]
            assert fired or unread, f"{root} was fired, and is not there"
        if root.deleted and fired:
            unread = [each for each in before.deletes[root.offset] if each not in messages]
            assert unread, f"{root} was cancelled, then fired"
