"""Statistics: what a store tells about itself."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from timerstore.calls.consuming.consuming import Consuming
from timerstore.calls.pending.cancel import get
from timerstore.calls.pending.timers import Timer, read_timer
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.errors import CorruptStoreError
from timerstore.services.cleaning.retention import CLOCK
from timerstore.services.durable.flush import read_appended
from timerstore.services.looking.read_units import slot_units
from timerstore.services.world.state import waiting_places
from timerstore.services.world.world import bucket_lateness_ms
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.format import UNIT_BYTES
from timerstore.timelog.files.segmenttable import TABLE_LENGTH
from timerstore.values.amounts import html_text, moment
from timerstore.watching.groups import GroupStats, read_groups
from timerstore.watching.sections import NOTHING, as_text, sections
from timerstore.watching.services import (
    CopyStats,
    ServiceStats,
    StageStats,
    read_copies,
    read_services,
    read_stages,
    unlinked_age_ms,
)
from timerstore.watching.topics import TopicStats, read_topics

_LOOKED_AT_MAX: Final = 4_096
"""Units of one slot among which a timer is looked for."""
_TRIES_MAX: Final = 16


def kept_by(core: Core) -> str:
    """Return what keeps the log: a group, a topic, a level, or a pending timer, with its offset.

    If a timer keeps the oldest segment, what would keep the log without it comes second.
    """
    reach, engine = core.upkeep.cleaner.reach, core.engine
    floor, segment_bytes = engine.world.cleaning.floor, engine.commitlog.segment_bytes
    if not core.disk.writes:  # nobody cleans here, so nobody has looked
        reach.find(floor)
    number, others = floor // segment_bytes, reach.kept_by
    if reach.found < (number + 1) * segment_bytes:
        return others
    latest_slot = int(engine.world.latest_slot[number % TABLE_LENGTH])
    if 0 <= latest_slot < engine.read_slot:
        return others  # it goes with the next checkpoint
    # To name a timer that may just fire, all that is overdue would be searched again and again,
    # under the locks of the services: whoever looks at a store that is behind would hold it up.
    is_about_to_fire = latest_slot < engine.world.dequeue_get.claimed_slot
    found = None if is_about_to_fire else _keeper(core, floor, number, latest_slot)
    who = CLOCK if engine.set_back_ms else f"pending timers, from offset {floor:,} on"
    if found is not None:
        timer, offset = found
        due = moment(timer.due_ms)
        who = (
            f"timer {timer.id} of topic {timer.topic!r}, due {due:%Y-%m-%dT%H:%M:%SZ}, "
            f"at offset {offset:,}"
        )
    return who if others in (NOTHING, who) else f"{who}; then by {others}"


def _keeper(core: Core, floor: int, number: int, slot: int) -> tuple[Timer, int] | None:
    """Return a pending timer due in a slot whose message lies in a segment; None if none is.

    It waits in that slot, or in one that its hops come to. O(_LOOKED_AT_MAX) for each.
    """
    engine, settings = core.engine, core.engine.world.settings
    segment_bytes = engine.commitlog.segment_bytes
    hop = int(settings.hop_slots)
    top = int(engine.world.dequeue_get.claimed_slot + settings.window_slots)
    first = slot - max(0, -(-(slot - top + 1) // hop)) * hop
    chains = (slot_units(engine, each) for each in range(first, engine.read_slot - 1, -hop))
    for units in islice(chain.from_iterable(chains), _TRIES_MAX):
        messages = units.message
        mine = (messages >= floor) & (messages // segment_bytes == number)
        mine &= units.magic & fmt.UNIT_DELETE == 0
        for i in np.flatnonzero(mine)[:_TRIES_MAX]:
            try:
                offset = int(messages[i])
                id = read_timer(core, offset, int(units.ms[i])).id
                timer = get(core, id)  # with its own due time, which may be hops ahead
                if timer is not None:
                    return timer, offset
            except CorruptStoreError:
                continue  # the service that fires it names it
    return None


@dataclass(frozen=True, slots=True)
class LevelStats:
    """A look at one delay level.

    `offset` is the index of the first message that it has not delivered, `end` the one behind the
    last; `lag_count` lie between. `overdue_ms`: how long the first of them has been due.
    """

    level: int
    delay_ms: int
    offset: int
    end: int
    lag_count: int
    overdue_ms: int


@dataclass(frozen=True, slots=True)
class CleaningStats:
    """A look at cleaning.

    `floor`: before this offset of the commit log nothing is needed. `could_go_bytes`: what lies
    between it and what is needed for other reasons than pending timers. `kept_by`: what keeps the
    oldest segment, with its offset: a group, a topic that nobody reads, a delay level, or one of
    its pending timers. `pending_bytes`: of the messages of pending timers, about; None if the
    store was opened with timers in it, until cleaning has counted them.
    """

    floor: int
    copied_count: int
    copied_bytes: int
    segment_count: int
    removed_count: int
    pending_bytes: int | None
    could_go_bytes: int
    kept_by: str


@dataclass(frozen=True, slots=True)
class Stats:
    """A look at a store; counters are since it was opened, but those of topics.

    `waiting_for_space`: what is tried again until there is room, or None. `stopped_by`: what ended
    a background thread or made flushing impossible, or None; every other call raises that.
    `retention_stopped_by`: damage since which nothing is cleaned or removed, or None.
    """

    pending_count: int
    linked_count: int
    fired_count: int
    rolled_count: int
    put_bytes: int
    """Appended by calls: puts, deletes, what groups sent back; and what closes segments."""
    fired_bytes: int
    """Appended for timers that fired; `cleaning.copied_bytes`: for what cleaning moved."""
    rolled_bytes: int
    """Appended as timers hopped towards their time."""
    dropped_count: int
    unreadable_count: int
    cancelled_count: int
    collision_count: int
    read_ms: int
    claimed_ms: int
    queue_index: int
    queue_end: int
    unlinked_age_ms: int
    """How long ago the oldest put that has no unit yet was stored; 0 if all have one."""
    commitlog_start: int
    commitlog_end: int
    durable_end: int
    timerlog_end: int
    enqueue_queue_count: int
    dequeue_queue_count: int
    near_count: int
    lateness_p50_ms: int
    lateness_p99_ms: int
    lateness_max_ms: int
    sync_count: int
    checkpoint_count: int
    disk_bytes: int
    """The blocks of the files that grow, as `du` counts them, and not their lengths."""
    open_s: float
    """How long opening took; `uptime_s`: how long ago that was."""
    uptime_s: float
    damage: list[dict[str, Any]]
    """Places that cannot be read: file, offset, reason; `damage_count` of them."""
    damage_count: int
    scrub: dict[str, Any]
    """How far reading everything again has come: passes, file, offset."""
    recovery: dict[str, Any]
    levels: tuple[LevelStats, ...]
    services: tuple[ServiceStats, ...]
    stages: tuple[StageStats, ...]
    groups: tuple[GroupStats, ...]
    """One for each topic that a group reads, and for each that none does."""
    topics: tuple[TopicStats, ...]
    """One for each topic that a timer was ever put to, by name."""
    cleaning: CleaningStats
    copies: tuple[CopyStats, ...]
    """One for each destination that the store is followed into, or was."""
    waiting_for_space: str | None
    stopped_by: str | None
    retention_stopped_by: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """Show what a person looks for, in some forty lines of 100 columns at most."""
        return as_text(sections(self.to_dict()))

    def _repr_html_(self) -> str:
        return html_text(str(self))


def lateness_quantile_ms(histogram: np.ndarray[Any, np.dtype[np.int64]], share: float) -> int:
    """Return a quantile of a lateness histogram: the smallest lateness of its bucket."""
    total = int(histogram.sum())
    if total == 0:
        return 0
    bucket = int(np.searchsorted(np.cumsum(histogram), max(1, -(-total * share // 1))))
    return bucket_lateness_ms(bucket)


@inside
def read_stats(core: Core, consuming: Consuming) -> Stats:
    """Collect the statistics. O(queues + groups × queues of their topics)."""
    core.check_open(stopped=True)
    engine, world = core.engine, core.engine.world
    copied = world.dequeue_put.counts, world.deliver_levels.counts
    return Stats(
        pending_count=engine.pending_count(),
        linked_count=world.enqueue_put.linked_count,
        fired_count=sum(each.fired_count for each in copied),
        rolled_count=world.dequeue_get.hop_count,
        **read_bytes(core),
        dropped_count=sum(each.dropped_count for each in copied),
        unreadable_count=sum(each.unreadable_count for each in engine.services)
        + consuming.unreadable_count,
        cancelled_count=engine.cancelled.set.count,
        collision_count=world.enqueue_put.collision_count,
        read_ms=engine.read_slot * engine.precision_ms,
        claimed_ms=world.dequeue_get.claimed_slot * engine.precision_ms,
        queue_index=world.enqueue_put.linked_index,
        queue_end=engine.queues.next_index(0),
        unlinked_age_ms=unlinked_age_ms(core),
        commitlog_start=engine.commitlog.start,
        commitlog_end=engine.commitlog.end,
        durable_end=core.flusher.durable_end,
        timerlog_end=engine.timerlog.end,
        enqueue_queue_count=len(waiting_places(world.enqueue_ring.ends)),
        dequeue_queue_count=len(waiting_places(world.dequeue_ring.ends)),
        near_count=engine.near.count,
        lateness_p50_ms=lateness_quantile_ms(world.lateness, 0.5),
        lateness_p99_ms=lateness_quantile_ms(world.lateness, 0.99),
        lateness_max_ms=max(each.lateness_max_ms for each in copied),
        sync_count=core.flusher.sync_count,
        checkpoint_count=core.flusher.checkpoint_count,
        disk_bytes=engine.disk_bytes,
        open_s=core.open_s,
        uptime_s=time.monotonic() - core.opened_s,
        damage=engine.damage.to_list(),
        damage_count=engine.damage.count,
        scrub=core.upkeep.scrub.to_dict(),
        recovery=asdict(core.findings),
        levels=(levels := read_levels(core)),
        services=read_services(core, sum(each.lag_count for each in levels if each.overdue_ms)),
        stages=read_stages(core),
        waiting_for_space=_said(core.runner.waiting_for_space or core.flusher.waiting_for_space),
        stopped_by=_said(core.engine.failure.error),
        groups=read_groups(core, consuming),
        topics=read_topics(core),
        cleaning=read_cleaning(core),
        copies=read_copies(core),
        retention_stopped_by=_said(core.upkeep.retention.error or core.upkeep.cleaner.error),
    )


def read_bytes(core: Core) -> dict[str, int]:
    """Return how many bytes were appended since opening, by what for; cleaning's are not named."""
    read = np.zeros(4, np.int64)
    read_appended(core.engine.world, read)  # of one moment, so no value ever falls
    fired_bytes, hop_count, copied_bytes, end = read.tolist()
    put_bytes = end - core.opened_end - fired_bytes - copied_bytes
    rolled_bytes = hop_count * UNIT_BYTES  # of the timer log
    return {"put_bytes": put_bytes, "fired_bytes": fired_bytes, "rolled_bytes": rolled_bytes}


def _said(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"


def read_cleaning(core: Core) -> CleaningStats:
    """Collect what cleaning did, and what keeps the log."""
    words, cleaner = core.engine.world.cleaning, core.upkeep.cleaner
    if not core.disk.writes and cleaner.pending_bytes is None:  # it never cleans
        cleaner.learn()
    return CleaningStats(
        floor=words.floor,
        copied_count=words.copied_count,
        copied_bytes=words.copied_bytes,
        segment_count=cleaner.segment_count,
        removed_count=core.upkeep.retention.removed_count,
        pending_bytes=cleaner.pending_bytes,
        could_go_bytes=max(0, cleaner.reach.found - words.floor),
        kept_by=kept_by(core),
    )


def read_levels(core: Core) -> tuple[LevelStats, ...]:
    """Collect what each delay level does. O(levels)."""
    engine, levels, now_ms = core.engine, core.engine.levels, core.clock.now_ms
    found = []
    for i in range(levels.count):
        row = int(levels.row[i])
        offset = int(levels.offset[i])  # before the end, behind which it never is
        end = engine.queues.next_index(row) if row >= 0 else 0
        overdue_ms = 0
        if offset < end:
            entry = engine.queues.read(row, offset, 1)[0]
            overdue_ms = max(0, now_ms - int(entry["tags_code"]))
        delay_ms = int(levels.level_ms[i])
        found.append(LevelStats(i + 1, delay_ms, offset, end, end - offset, overdue_ms))
    return tuple(found)
