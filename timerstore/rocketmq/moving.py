"""Moving what is pending in a store to a cluster.

Each timer is sent under its own id, then cancelled in the store, 64 at a time. So the store itself
says what has still to go, and a second run goes on where the first one ended. Before timers are
sent their ids are written into a note beside the store. If the process is killed between the
cluster's answer and the store's cancel, the next run sends those again: a cluster cannot be asked
what it has. Then the note says which ones may come twice, 64 at most, each time with the same id.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from timerstore.calls.pending.timers import Timer
from timerstore.errors import ClusterError, InvalidArgumentError, MissingFileError, TimerStoreError
from timerstore.rocketmq.sending import (
    UNDER_WAY,
    Sender,
    Sending,
    check_cluster_topic,
    check_key_and_tag,
    check_properties,
    whole_seconds_ms,
)
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.smallfile import read_small
from timerstore.values.write_file import write_durably
from timerstore.watching.any_store import AnyStore

BODY_BYTES_MAX: Final = 4 << 20
PROPERTIES_BYTES_MAX: Final = 16_384
"""A proxy takes no more, unless it is set otherwise."""
_BUSY_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""If a cluster is busy, and takes nothing meanwhile, it is asked again after these waits."""


@dataclass
class Row:
    """Timers of one topic that go, or that stay for one reason (`why`, "" if they go)."""

    topic: str
    why: str
    count: int = 0
    first_due_ms: int = 0
    last_due_ms: int = 0
    example: str = ""


@dataclass
class Moved:
    """What a run did. `stays`: what the cluster refused, with its reason, by id."""

    count: int = 0
    stays: dict[str, str] = field(default_factory=dict)


class Judge:
    """Says what cannot go."""

    def __init__(self, target: Sender, now_ms: int, delay_max_ms: int) -> None:
        """`delay_max_ms`: how far ahead the cluster takes timers."""
        self._target, self._end_ms = target, now_ms + delay_max_ms
        self._told: dict[str, str] = {}

    def why_not(self, timer: Timer) -> str:
        """Return why a timer cannot go, or nothing."""
        topic = timer.topic
        if topic.startswith(fmt.RETRY_PREFIX.decode()):
            return "it waits for a retry of its group: let it come"
        for why, check in (
            ("the name of its topic has a |", lambda: check_cluster_topic(topic)),
            ("its key has a blank", lambda: check_key_and_tag(timer.key, None)),
            ("its tag has a |, or is blank", lambda: check_key_and_tag(None, timer.tag)),
            ("one of its properties is blank", lambda: check_properties(timer.properties)),
        ):
            try:
                check()
            except InvalidArgumentError:
                return why
        if len(timer.body) > BODY_BYTES_MAX:
            return "its body is larger than 4 MiB"
        described = sum(len((n + v).encode()) for n, v in _properties(timer).items())
        if described >= PROPERTIES_BYTES_MAX:
            return "its properties take 16,384 bytes or more"
        if whole_seconds_ms(timer.due_ms) > self._end_ms:
            return "it is due further ahead than --max-delay says"
        if topic not in self._told:
            self._told[topic] = self._target.why_not(topic)
        return self._told[topic]

    def table(self, timers: Iterable[Timer]) -> list[Row]:
        """Return a row for each topic and reason."""
        rows: dict[tuple[str, str], Row] = {}
        for timer in timers:
            why = self.why_not(timer)
            row = rows.setdefault((timer.topic, why), Row(timer.topic, why))
            row.first_due_ms = min(row.first_due_ms or timer.due_ms, timer.due_ms)
            row.last_due_ms = max(row.last_due_ms, timer.due_ms)
            row.example = row.example or timer.id
            row.count += 1
        return [rows[name] for name in sorted(rows)]


def note_of(path: Path) -> Path:
    """Return where the note of a store's move is."""
    return path.with_name(path.name + ".move")


def doubted_of(store: AnyStore, path: Path) -> list[str]:
    """Return the ids of timers that are pending, and that an earlier run may have sent."""
    return [id for id in read_note(path) if store.get(id) is not None]


def read_note(path: Path) -> list[str]:
    """Return the ids that were under way when an earlier run ended."""
    note = note_of(path)
    try:
        ids = json.loads(read_small(note))
    except MissingFileError:
        return []
    except ValueError as e:
        raise InvalidArgumentError(
            f"{note} cannot be read ({e}). It names timers that may be in the cluster twice; "
            "remove it, and all that is pending is sent."
        ) from e
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise InvalidArgumentError(f"{note} is no list of ids. Remove it.")
    return ids


def move_pending(
    store: AnyStore,
    target: Sender,
    judge: Judge,
    path: Path,
    *,
    topic: str | None = None,
    update: Callable[[int], None] = lambda count: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Moved:
    """Send what is pending and can go, and cancel it in the store.

    The store must not fire meanwhile: pass a `StillStore`. Durable on return: what was cancelled.
    If the cluster is busy, what it refused is sent again after a wait. Raises ClusterError if it
    takes nothing for a minute, or does not answer; then what it has is cancelled, but for what it
    did not say.
    """
    moved, doubted = Moved(), doubted_of(store, path)
    left = (timer for timer in store.pending(topic=topic) if not judge.why_not(timer))
    while chunk := list(islice(left, UNDER_WAY)):
        named = dict.fromkeys([*doubted, *(timer.id for timer in chunk)])
        write_durably(note_of(path), json.dumps(list(named)))
        failure: TimerStoreError | None = None
        waiting = [_sending(timer) for timer in chunk]
        waits_s = iter(_BUSY_S)
        while waiting and failure is None:
            sent: list[str] = []
            done, busy = 0, list[Sending]()
            for sending, error in target.send_many(waiting):
                done += 1
                if error is None:
                    sent.append(sending.id)
                elif isinstance(error, InvalidArgumentError):
                    moved.stays[sending.id] = str(error)
                elif isinstance(error, ClusterError) and error.busy:
                    busy.append(sending)
                    why = error
                else:
                    failure = failure or error
            if sent:
                store.cancel_many(sent)
                doubted = [id for id in doubted if id not in sent]
                waits_s = iter(_BUSY_S)
            moved.count += len(sent)
            update(moved.count)
            waiting = [*busy, *waiting[done:]]
            if busy and failure is None:
                wait_s = next(waits_s, None)
                if wait_s is None:
                    failure = why
                else:
                    sleep(wait_s)
        if failure is not None:
            raise failure
    if doubted:  # of another topic
        write_durably(note_of(path), json.dumps(doubted))
    else:
        note_of(path).unlink(missing_ok=True)
    return moved


def _sending(timer: Timer) -> Sending:
    """Return what is sent, with its time also if that has passed: its topic may be for timers."""
    due_s = whole_seconds_ms(timer.due_ms) // 1_000
    given = (timer.key, timer.tag, _properties(timer))
    return Sending(timer.id, timer.topic, timer.body, due_s, *given)


def _properties(timer: Timer) -> dict[str, str]:
    """Return what is sent beside a body: after when it is not to be handed out, too."""
    if timer.expires_ms is None:
        return timer.properties
    return {**timer.properties, fmt.PROPERTY_EXPIRES.decode(): str(timer.expires_ms)}
