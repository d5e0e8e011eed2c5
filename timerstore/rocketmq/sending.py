"""Sending: one message, or many that are under way at the same time.

The id of a message is made before it is sent. So if no answer comes, its caller knows which timer
may be there all the same, and can cancel it.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from timerstore.errors import (
    ClusterError,
    InvalidArgumentError,
    MissingFileError,
    TimerStoreError,
    UnknownTimerError,
)
from timerstore.rocketmq.library import (
    asked,
    check_route,
    message_kind,
    route_of,
    takes_type,
    translated,
)
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.smallfile import read_small
from timerstore.values.check_arguments import check_topic
from timerstore.values.ids import TimerId, format_id, parse_id
from timerstore.values.write_file import write_durably

if TYPE_CHECKING:
    from timerstore.calls.pending.timers import Timer
    from timerstore.watching.any_store import AnyStore

UNDER_WAY: Final = 64
"""So many of `put_many` wait for their answers at once; more made it no faster."""
_ATTEMPTS: Final = 4
"""The client tries three times; then it should have answered."""


class Sending(NamedTuple):
    """What is sent, as a message without a time if `due_s` is None; then it is due at once."""

    id: str
    topic: str
    body: bytes
    due_s: int | None
    key: str | None = None
    tag: str | None = None
    properties: dict[str, str] = {}  # noqa: RUF012 - nobody changes it


def check_cluster_topic(topic: str, what: str = "topic") -> str:
    """Return the name of a topic or group, or refuse one that gRPC clients may not use."""
    check_topic(topic, what)
    if "|" in topic:
        raise InvalidArgumentError(
            f"{what} is {topic!r}. A cluster's clients take no |: rename it."
        )
    return topic


def check_key_and_tag(key: str | None, tag: str | None) -> None:
    """Refuse what a cluster would hand out changed."""
    if key is not None and key.split() != [key]:
        raise InvalidArgumentError(
            f"key is {key!r}. A cluster takes a key apart at each blank: pass one without."
        )
    if tag is not None and ("|" in tag or not tag.strip()):
        raise InvalidArgumentError(f"tag is {tag!r}. Pass one without | that is not blank.")


def check_properties(properties: dict[str, str]) -> None:
    """Refuse blank names and values, which the client does not send."""
    for name, value in properties.items():
        if not name.strip() or not value.strip():
            raise InvalidArgumentError(
                f"property {name!r} is {value!r}. A cluster takes none that is blank: leave it out."
            )


class Sender:
    """Sends through one producer; any thread may use it."""

    def __init__(self, producer: Any, timeout_s: float) -> None:
        """Send nothing yet. `timeout_s`: how long one attempt of the client may take."""
        self._producer, self._kind = producer, message_kind()
        self._wait_s = _ATTEMPTS * timeout_s

    def why_not(self, topic: str) -> str:
        """Return why a topic takes no timers, or nothing."""
        route = route_of(f"asking for {topic}", self._producer, topic)
        if route is None:
            return "the cluster has no such topic"
        if not takes_type(route, "DELAY"):
            return "its topic is for other messages: set its message.type to DELAY or MIXED"
        return ""

    def send(self, sending: Sending) -> None:
        """Send one message; on return its broker has it."""
        what = f"putting {sending.id}"
        check_route(what, self._producer, sending.topic)
        try:
            asked(what, lambda: self._producer.send(self._message(sending)))
        except ClusterError as e:
            e.unsure = () if e.busy else (sending.id,)
            raise

    def send_many(self, sendings: Iterable[Sending]) -> Iterator[tuple[Sending, Any]]:
        """Yield each message in its order, with None if its broker has it, or the error.

        Up to 64 are under way at once. After an error nothing more is sent: what was under way is
        yielded, then it ends.
        """
        waiting: deque[tuple[Sending, Future[Any]]] = deque()
        failed = False
        left = iter(sendings)
        while True:
            while not failed and len(waiting) < UNDER_WAY:
                sending = next(left, None)
                if sending is None:
                    break
                begun = self._begin(sending)
                failed = begun.done() and begun.exception() is not None
                waiting.append((sending, begun))
            if not waiting:
                return
            sending, future = waiting.popleft()
            error = _error_of(sending, future, self._wait_s)
            failed |= error is not None
            yield sending, error

    def _begin(self, sending: Sending) -> Future[Any]:
        try:
            check_route(f"putting {sending.id}", self._producer, sending.topic)
            begun: Future[Any] = self._producer.send_async(self._message(sending))
        except Exception as e:
            begun = Future()
            begun.set_exception(e)
        return begun

    def _message(self, sending: Sending) -> Any:
        message = self._kind(sending.id)
        message.topic, message.body = sending.topic, sending.body
        if sending.due_s is not None:
            message.delivery_timestamp = sending.due_s
        if sending.key is not None:
            message.keys = sending.key
        if sending.tag is not None:
            message.tag = sending.tag
        for name, value in sending.properties.items():
            message.add_property(name, value)
        return message


def _error_of(sending: Sending, future: Future[Any], wait_s: float) -> TimerStoreError | None:
    error: BaseException | None
    try:
        error = future.exception(wait_s)
    except TimeoutError as e:
        error = e
    if error is None or isinstance(error, TimerStoreError):  # the latter: it was not sent
        return error
    ours = translated(f"putting {sending.id}", error)
    if isinstance(ours, ClusterError) and not ours.busy:
        ours.unsure = (sending.id,)
    return ours


# --- ids of timers, with the handles by which a broker recalls them
#
# An id has the form of a store's ids (`timerstore/values/ids.py`): 32 hex digits, the first twelve
# of which are the due time. It is the message's `UNIQ_KEY`, so it is the same before and after a
# move. A client makes its own ids: it sets a bit of the offset that no log is long enough to reach,
# and the other bits are random.
#
# A broker finds a timer by `UNIQ_KEY` in the slot that the handle's timestamp leads to. It puts a
# timer that is due at the beginning of a slot into the slot before; a store puts it into the slot
# that begins then. So there are two timestamps for an id that a store gave: a store that was handed
# over has the timer where the first leads to, one that was moved where the second does. A recall
# that meets nothing does nothing.


_MADE_HERE: Final = 1 << 46
_SECOND_MS: Final = 1_000


def whole_seconds_ms(due_ms: int) -> int:
    """Return the first whole second at or after a time.

    >>> whole_seconds_ms(1_001), whole_seconds_ms(2_000)
    (2000, 2000)
    """
    return -(-due_ms // _SECOND_MS) * _SECOND_MS


def new_id(due_ms: int) -> str:
    """Return an id that nobody else makes: 78 of its bits are random."""
    offset = _MADE_HERE | int.from_bytes(os.urandom(6), "big") >> 2
    return format_id(due_ms, offset, int.from_bytes(os.urandom(4), "big"))


def known_id(id: str) -> TimerId:
    """Return the parts of an id, or refuse what no broker can recall."""
    parts = parse_id(id)
    if parts is None:
        raise UnknownTimerError(f"{id!r} is no id. Pass one that put returned.")
    if parts.offset & fmt.LEVEL_MARK:
        raise UnknownTimerError(
            f"{id} was put with a delay level, and a broker cannot recall that. Let it come."
        )
    return parts


def handles_of(topic: str, broker: str, id: TimerId) -> list[str]:
    """Return the handles by which a broker may know a timer."""
    due_ms = id.due_ms
    times_ms = [whole_seconds_ms(due_ms) - 1]
    if not id.offset & _MADE_HERE:
        times_ms.append(due_ms + 1)
    key = format_id(*id)
    texts = [f"v1 {topic} {broker} {time_ms} {key}" for time_ms in times_ms]
    return [base64.urlsafe_b64encode(text.encode()).decode() for text in texts]


# --- moving what is pending in a store to a cluster
#
# Each timer is sent under its own id, then cancelled in the store, 64 at a time. So the store
# itself says what has still to go, and a second run goes on where the first one ended. Before
# timers are sent their ids are written into a note beside the store. If the process is killed
# between the cluster's answer and the store's cancel, the next run sends those again: a cluster
# cannot be asked what it has. Then the note says which ones may come twice, 64 at most, each time
# with the same id.


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
