"""What the commit log alone says about timers: the oracle of the tests that attack a whole store.

It reads the files with the slow twins of `tests/naive.py`, and knows nothing of any index.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests import naive
from tests.models.archive import archive_of

TIMER_TOPIC = "rmq_sys_wheel_timer"
LEVEL_TOPIC = "SCHEDULE_TOPIC_XXXX"


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
    levels_ms: list[int] = field(default_factory=lambda: naive.parse_levels(naive.DEFAULT_LEVELS))

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

    def check(self) -> None:
        """Assert what holds of any log: nothing copied twice, early, or fired after its delete."""
        twice = {offset: n for offset, n in self.copied.items() if n > 1}
        assert not twice, f"messages that were copied more than once: {twice}"
        for root in self.roots.values():
            assert len(root.fired_ms) <= 1, f"{root} was fired twice"
            # A level's may be, where the clock went back; who knows the clock has to judge.
            early = not root.level and any(fired < root.due_ms for fired in root.fired_ms)
            assert not early, f"{root} was fired early"
            assert not (root.deleted and root.fired_ms), f"{root} was cancelled, then fired"


def read_ledger(path: Path, ledger: Ledger | None = None) -> Ledger:
    """Read a store's commit log, with what an `ArchivingDisk` kept; it must reach up to zeros.

    With a `ledger` that was read before, only what came since is read.
    """
    ledger = Ledger() if ledger is None else ledger
    log = _scan(path, ledger.end)
    assert log.damage is None, log.damage
    for message in log.messages:
        _take(ledger, message)
    ledger.end = log.end
    return ledger


def read_messages(path: Path) -> list[naive.Message]:
    """All messages of a store's commit log, up to the first that is not whole."""
    return _scan(path, 0).messages


def _scan(path: Path, start: int) -> naive.LogScan:
    folders = [each for each in (archive_of(path), path / "commitlog") if each.is_dir()]
    files = {int(file.name): file for each in folders for file in each.glob("0*")}
    first = max((each for each in files if each <= start), default=0)
    segments = {each: files[each].read_bytes() for each in sorted(files) if each >= first}
    return naive.scan_commit_log(segments, start)


def _take(ledger: Ledger, message: naive.Message) -> None:
    properties, is_timer = message.properties, message.topic == TIMER_TOPIC
    origin = properties.get("TIMER_ORIGIN")
    if origin is not None:
        ledger.copied[int(origin)] += 1
        root = ledger.root_of[int(origin)]
        ledger.root_of[message.offset] = root
        if root is not None and is_timer:
            root.rolls += 1
        elif root is not None:
            assert message.topic == root.topic and message.body == root.body
            root.fired_ms.append(message.stored_ms)
    elif is_timer and "TIMER_DEL_UNIQKEY" in properties:
        ledger.delete_count += 1
        ledger.root_of[message.offset] = None
        target = ledger.names[properties["TIMER_DEL_UNIQKEY"]]
        target.deleted = True
        ledger.deletes[target.offset].append(message.offset)
    elif is_timer or message.topic == LEVEL_TOPIC:
        level = 0 if is_timer else int(properties["DELAY"])
        due_ms = 0 if level else int(properties["TIMER_OUT_MS"])
        if level:
            assert message.queue_id == level - 1
            due_ms = message.stored_ms + ledger.levels_ms[level - 1]
        root = Root(
            key=properties["UNIQ_KEY"],
            topic=properties["REAL_TOPIC"],
            body=message.body,
            due_ms=due_ms,
            offset=message.offset,
            stored_ms=message.stored_ms,
            replaces=properties.get("TIMER_REPLACES"),
            level=level,
        )
        ledger.roots[message.offset] = ledger.root_of[message.offset] = root
        ledger.names[f"{root.topic}+{root.key}"] = root


def check_store(store: object, ledger: Ledger) -> None:
    """Assert that an open store's counts are those of its log, and that nothing is damaged."""
    stats = store.stats()  # type: ignore[attr-defined]
    assert stats.collision_count == 0, "a slot of the ring was needed twice"
    assert stats.unreadable_count == 0
    recount = ledger.pending_count()
    assert stats.pending_count == recount.total()
    for topic in recount:
        assert store.count(topic) == recount[topic]  # type: ignore[attr-defined]


def check_counters(store: object, ledger: Ledger) -> None:
    """Assert that a store's counters of topics are those of its log, whatever has ended it."""
    roots = ledger.roots.values()
    put = Counter(root.topic for root in roots)
    fired = Counter(root.topic for root in roots if root.fired_ms)
    cancelled = Counter(root.topic for root in roots if root.deleted)
    topics = store.stats().topics  # type: ignore[attr-defined]
    assert {each.topic: each.put_count for each in topics} == put
    for each in topics:
        assert (each.fired_count, each.cancelled_count) == (
            fired[each.topic],
            cancelled[each.topic],
        )
        late_ms = [
            root.fired_ms[0] - root.due_ms
            for root in roots
            if root.topic == each.topic and root.fired_ms
        ]
        assert each.lateness_max_ms == max(late_ms, default=0)
