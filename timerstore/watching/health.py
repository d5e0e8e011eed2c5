"""Health: what keeps a store from its work, what waits for somebody, since when, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Literal

from timerstore.calls.consuming.consuming import Consuming
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.core.switches import Pause
from timerstore.errors import FlushFailedError
from timerstore.services.engine.engine import Engine
from timerstore.values.amounts import (
    Moment,
    html_table,
    moment,
    shown_bytes,
    shown_span,
    shown_time,
)
from timerstore.watching.groups import NOBODY, GroupStats, read_groups, read_neglected, read_silent
from timerstore.watching.services import read_copies

State = Literal[
    "running", "paused", "behind", "waiting for space", "damaged", "flush failed", "stopped"
]
BEHIND_MS: Final = 5_000
"""So far behind the clock is more than a slot that is being fired."""
COPY_BEHIND_MS: Final = 60_000
"""A copy that lags so long, and thirty of its intervals, is warned of."""
PLACES_SHOWN: Final = 20

_REOPEN = "Look in the program's log for the cause, then close the store and open it again."
_FLUSH = (
    "Check the disk (dmesg, its mount options), then close the store and open it again. What was "
    "acknowledged before is durable."
)
_SPACE = "Make room on the disk, or raise max_bytes. The store then goes on by itself."
_DAMAGE = (
    "Keep a copy of the folder and run `timerstore verify` on it. Damaged messages are skipped; "
    "all others fire."
)
_REBUILD = "Close the store and open it again: that makes damaged indexes anew."
_REMOVED = (
    "Files are not removed from the disk any more. Run `timerstore verify`, then close the store "
    "and open it again."
)
_BEHIND = (
    "The store catches up by itself. If it does not, look at the busy shares of the services in "
    "`timerstore info`, and at the disk."
)
_TURNS = "They come by themselves, in their turn. A consumer with another rate changes that."
_KEYS = "Calls by a key finish that first, and then find what they look for. Nothing is to be done."
_LETTERS = (
    "`timerstore dead PATH GROUP` says why they failed; `timerstore dead retry` puts them back, "
    "`timerstore dead drop` drops them. They stay on the disk until then."
)
_CONSUMER = (
    "Look in the program's log for the cause, then close the consumer and start another one. Its "
    "messages wait until then."
)
_UNREAD = (
    "Let a group consume this topic, or put to another one: perhaps the topic is misspelt. "
    "Messages that fired in it stay on the disk."
)
_COPY = (
    "Check the address, the network and the credentials, and whether `timerstore follow` runs; "
    "it then goes on by itself. If nothing should follow any more, run `timerstore follow PATH "
    "DEST --forget`."
)
_CLOCK = (
    "Check the clock. Timers fire by it, and nothing is lost, but no file is removed until it has "
    "caught up. If that takes too long, export what is pending into a new store."
)
_SILENT = (
    "Start a consumer of this group. If it will not come again, `timerstore forget-group PATH "
    "GROUP`, or store.forget_group, lets its messages go."
)


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that is not as it should be, or was switched off.

    `since_ms`: UTC epoch milliseconds, None if nobody noted it. `cure`: what to do.
    """

    state: State
    since_ms: int | None
    what: str
    cure: str

    since = Moment[datetime | None]("Since when, in UTC.")


@dataclass(frozen=True, slots=True)
class HealthWarning:
    """Messages that wait for somebody, though the store does its work: `count` of a `topic`.

    `kind`: "dead letters", which `group` gave up, or "nobody reads", a topic that no group ever
    read; then `group` is None. `since_ms`: when the oldest was fired, None if it cannot be read.
    Or "group is silent": a group has not asked for messages for `Tuning.group_silence_ms`;
    `since_ms`: since when, None if that is not known.
    Or "consumer stopped": an error ended a consumer of `group` in the process that has the store
    open; `count` messages of `topic` wait, `since_ms` says since when it has stopped.
    Or "copy is behind": `topic` is then the destination of a copy elsewhere, `count` the bytes
    that it lacks, `since_ms` since when it does.
    Or "clock set back": nothing is removed until the clock has caught up; `count` is by how many
    milliseconds it is behind, `topic` is empty, `since_ms` None.
    """

    kind: Literal[
        "dead letters",
        "nobody reads",
        "group is silent",
        "copy is behind",
        "consumer stopped",
        "clock set back",
    ]
    topic: str
    group: str | None
    count: int
    since_ms: int | None
    what: str
    cure: str

    since = Moment[datetime | None]("Since when, in UTC.")


@dataclass(frozen=True, slots=True)
class Health:
    """How a store is: its worst state, and each condition, the worst first.

    `ok`: it does its work, or was told not to. `now_ms`: the store's clock when it was asked.
    `warnings` change neither: the store runs, but messages wait for somebody.
    """

    state: State
    ok: bool
    now_ms: int
    opened_ms: int
    conditions: tuple[Condition, ...]
    warnings: tuple[HealthWarning, ...] = ()

    now = Moment[datetime]("The time of the store's clock when it was asked, in UTC.")
    opened = Moment[datetime]("When the store was opened, in UTC.")

    def to_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        return asdict(self)

    def _repr_html_(self) -> str:
        """Show in a notebook what is wrong, since when, and what to do."""
        rows: list[tuple[str, str]] = [(each.state, _told(each)) for each in self.conditions]
        rows += [(each.kind, _told(each)) for each in self.warnings]
        return html_table(f"Health: {self.state}", rows or [("", "Nothing is wrong.")])


def _told(found: Condition | HealthWarning) -> str:
    since = "" if found.since_ms is None else f" Since {shown_time(found.since_ms)}."
    return f"{found.what}{since} {found.cure}"


_RANK: Final[dict[State, int]] = {
    "running": 0,
    "paused": 1,
    "behind": 2,
    "damaged": 3,
    "waiting for space": 4,
    "flush failed": 5,
    "stopped": 6,
}
_FINE: Final = ("running", "paused", "behind")


@inside
def read_health(core: Core, consuming: Consuming) -> Health:
    """Look; see `TimerStore.health`. O(pauses + topics)."""
    core.check_open(stopped=True)
    now_ms = core.clock.now_ms
    found = [
        *_stopped(core),
        *_waiting(core),
        *_damaged(core),
        *(_paused(each) for each in core.switches.list(now_ms)),
        *_behind(core, now_ms),
        *_made_anew(core),
        *_in_turn(core, consuming),
    ]
    found.sort(key=lambda each: -_RANK[each.state])
    state: State = found[0].state if found else "running"
    warnings: tuple[HealthWarning, ...] = ()
    if core.engine.failure.error is None:
        neglected = (_warned(each) for each in read_neglected(core, consuming))
        warnings = (*_behind_copies(core, now_ms), *_consumers_stopped(core, consuming), *neglected)
        warnings += tuple(_set_back(core))
        silence_ms = core.engine.config.group_silence_ms
        if silence_ms is not None:
            warnings += tuple(map(_silent, read_silent(core, consuming, silence_ms)))
    return Health(state, state in _FINE, now_ms, core.opened_ms, tuple(found), warnings)


def _behind_copies(core: Core, now_ms: int) -> Iterator[HealthWarning]:
    """Yield a warning for each copy that is behind for long, or fails."""
    for copy in read_copies(core):
        if copy.error is None and copy.lag_ms <= max(COPY_BEHIND_MS, 30 * copy.every_ms):
            continue
        what = f"The copy in {copy.dest} lacks {shown_bytes(copy.lag_bytes)}"
        what += f", put in the last {copy.lag_ms / 1_000:,.0f} s" if copy.lag_ms else ""
        if copy.error is not None:
            what += f"; {copy.error}"
        elif copy.ended:
            what += "; its follower has ended"
        told = what if what.endswith(".") else f"{what}.", _COPY.replace("DEST", copy.dest)
        since_ms = now_ms - copy.lag_ms if copy.lag_ms else copy.failing_since_ms
        yield HealthWarning("copy is behind", copy.dest, None, copy.lag_bytes, since_ms, *told)


def _set_back(core: Core) -> Iterator[HealthWarning]:
    """Yield a warning if the clock was set back by more than a clock is set by now and then."""
    behind_ms = core.engine.set_back_ms
    if behind_ms > BEHIND_MS:
        what = f"The clock was set back: it is {shown_span(behind_ms)} behind what it was."
        yield HealthWarning("clock set back", "", None, behind_ms, None, what, _CLOCK)


def _warned(row: GroupStats) -> HealthWarning:
    count, since_ms = row.lag_count, row.oldest_fired_ms
    messages = f"{count:,} message" if count == 1 else f"{count:,} messages"
    if row.group == NOBODY:
        what = f"{messages} fired in topic {row.topic!r}, which no group has ever read."
        return HealthWarning("nobody reads", row.topic, None, count, since_ms, what, _UNREAD)
    what = f"Group {row.group!r} gave up {messages}, which nobody has put back or dropped."
    cure = _LETTERS.replace("GROUP", row.group)
    return HealthWarning("dead letters", row.topic, row.group, count, since_ms, what, cure)


def _silent(row: GroupStats) -> HealthWarning:
    since = "since the store was opened" if row.read_ms is None else f"since {row.read:%Y-%m-%d}"
    what = (
        f"Group {row.group!r} has not asked for messages of topic {row.topic!r} {since}, and "
        f"{row.lag_count:,} wait for it, which stay on the disk."
    )
    cure = _SILENT.replace("GROUP", row.group)
    place, since_ms = (row.topic, row.group, row.lag_count), row.read_ms
    return HealthWarning("group is silent", *place, since_ms, what, cure)


def _consumers_stopped(core: Core, consuming: Consuming) -> list[HealthWarning]:
    """Return a warning for each topic that a consumer read until an error stopped it."""
    found = list[HealthWarning]()
    for failure, (group, topics) in list(consuming.consumers.items()):
        error, since_ms = failure.error, failure.since_ms
        if error is None:
            continue
        for row in read_groups(core, consuming, [(topic, group) for topic in topics]):
            what = f"A consumer of group {group!r} has stopped reading topic {row.topic!r}: "
            what += f"{type(error).__name__}: {error}"
            said = row.topic, group, row.lag_count, since_ms, what, _CONSUMER
            found.append(HealthWarning("consumer stopped", *said))
    return found


def _stopped(core: Core) -> list[Condition]:
    error, since_ms = core.engine.failure.error, core.engine.failure.since_ms
    if error is None:
        return []
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, FlushFailedError):
        return [Condition("flush failed", since_ms, what, _FLUSH)]
    return [Condition("stopped", since_ms, what, _REOPEN)]


def _waiting(core: Core) -> list[Condition]:
    error = core.runner.waiting_for_space or core.flusher.waiting_for_space
    if error is None:
        return []
    since = core.runner.waiting_since_ms, core.flusher.waiting_since_ms
    since_ms = min(filter(None, since), default=None)  # there may be room again just now
    return [Condition("waiting for space", since_ms, str(error), _SPACE)]


def _damaged(core: Core) -> list[Condition]:
    engine, found = core.engine, list[Condition]()
    if engine.damage.count:
        found.append(
            Condition("damaged", engine.damage.since_ms, _places(engine), _DAMAGE),
        )
    if engine.wanted.indexes:
        names = ", ".join(sorted(engine.wanted.indexes))
        what = f"Damage was found in an index ({names}), so some timers may not fire."
        found.append(Condition("damaged", engine.damage.since_ms, what, _REBUILD))
    error = core.upkeep.retention.error or core.upkeep.cleaner.error
    if error is not None:
        found.append(Condition("damaged", None, str(error), _REMOVED))
    return found


def _places(engine: Engine) -> str:
    damage = engine.damage
    shown = damage.to_list()[:PLACES_SHOWN]
    text = "; ".join(f"{each['file']} at {each['offset']}: {each['reason']}" for each in shown)
    more = damage.count - len(shown)
    return f"{text}; and {more:,} more" if more else text


def _paused(pause: Pause) -> Condition:
    what = pause.what.capitalize()
    if pause.what == "consuming":
        what += " of all groups" if pause.group is None else f" of group {pause.group!r}"
    what += " is paused"
    if pause.until_ms is not None:
        what += f" until {moment(pause.until_ms).isoformat(timespec='seconds')}"
    command = f"timerstore resume PATH {pause.what}"
    if pause.group is not None:
        command += f" --group {pause.group}"
    return Condition("paused", pause.since_ms, what + ".", f"`{command}`, or store.resume().")


def _behind(core: Core, now_ms: int) -> list[Condition]:
    """Tell if timers are fired late, unless firing is paused or the store is only looked at."""
    late_ms = now_ms - (core.engine.read_slot + 1) * core.engine.precision_ms
    if late_ms <= BEHIND_MS or not core.disk.writes:
        return []
    if core.switches.find("firing", now_ms):
        return []
    what = f"Some timers that were due {late_ms / 1000:,.1f} s ago have not fired."
    return [Condition("behind", now_ms - late_ms, what, _BEHIND)]


def _made_anew(core: Core) -> list[Condition]:
    """Tell how much is left of the key index, if it is being made anew."""
    left = core.engine.keys.left_count
    if not left:
        return []
    what = f"The key index is being made anew: {left:,} messages are still to be read for it."
    return [Condition("running", core.opened_ms, what, _KEYS)]


def _in_turn(core: Core, consuming: Consuming) -> list[Condition]:
    """Tell which groups have messages that wait for their turn, because a consumer has a rate."""
    pairs = [(each.topic, each.name) for each in consuming.known_groups() if each.turns is not None]
    found = list[Condition]()
    for row in read_groups(core, consuming, pairs):
        if row.turn_wait_count:
            what = f"Group {row.group!r} is handed messages of topic {row.topic!r} at {row.rate} "
            what += f"at most: {row.turn_wait_count:,} wait for their turn."
            found.append(Condition("running", row.oldest_fired_ms, what, _TURNS))
    return found
