"""The calls that consume; they find a group's reading, or wait for it to have something.

A group begins where it is told to; one that will not read again is forgotten.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from math import inf
from sys import modules
from typing import Final, Literal
from weakref import WeakSet

from timerstore.calls.consuming.cursors import GroupRetries, HandedState
from timerstore.calls.consuming.delivery import CONSUME_BYTES, CONSUME_COUNT, Delivery, dead_topic
from timerstore.calls.consuming.group import Group
from timerstore.calls.consuming.groupreader import Keys, PutAcks
from timerstore.calls.consuming.grouptally import (
    TALLY_FILE,
    AllHeldBack,
    GroupTally,
    HeldBack,
    TallyFile,
    cut_held,
)
from timerstore.calls.consuming.ready import FAST_PER_S, PER_S
from timerstore.calls.consuming.run import Run
from timerstore.calls.consuming.turns import Rate
from timerstore.calls.putting.putting import Putting
from timerstore.core.core import Core
from timerstore.core.gate import inside
from timerstore.core.offsets import CommittedIndexes, Ranges, gaps
from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    StoreClosedError,
    StoreFullError,
)
from timerstore.jit.guards import Guard, Lock, RLock
from timerstore.services.world.background import Failure
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import decode_message
from timerstore.timelog.bytes.format import RETRY_PREFIX
from timerstore.values.blocked_loop import ASYNCIO, note_blocking
from timerstore.values.check_arguments import check_due_ms, check_group, check_topic_to_consume
from timerstore.values.kinds import check_int, check_timeout

# --- where a new group begins, and a group that will not read again


Start = Literal["earliest", "latest"] | int


def check_start(start: Start) -> Start:
    """Return a place to start, or refuse it."""
    if not isinstance(start, str):
        return check_due_ms(start, "start")
    if start not in ("earliest", "latest"):
        raise InvalidArgumentError(
            f'start is {start!r}. Use "earliest", "latest", or epoch milliseconds.'
        )
    return start


@inside
def begin_groups(consuming: Consuming, pairs: list[tuple[str, str]], start: Start) -> None:
    """Give each (topic, group) that never read its topic a first offset; durable on return.

    A queue that comes into being later is read from its beginning: all in it came after this.
    """
    core = consuming.core
    core.check_open()
    consuming.write_offsets()  # those that read just now are not new
    for topic, group in pairs:
        if core.offsets.is_new(topic, group):
            core.offsets.set(topic, group, 0, 0)
            for row in core.engine.queues.rows(topic.encode()):
                queue_id = int(core.engine.queues.table.queue_id[row])
                core.offsets.set(topic, group, queue_id, first_index(core, row, start))
    core.offsets.write()


def first_index(core: Core, row: int, start: Start) -> int:
    """Return the index in a queue that a new group reads first. O(log entries) for a time."""
    queues = core.engine.queues
    low, high = queues.first_kept(row, core.engine.commitlog.start), queues.next_index(row)
    if start == "earliest":
        return low
    if start == "latest":
        return high

    def stored_ms(index: int) -> int:
        return _stored_ms(core, int(queues.read(row, index, 1)[0]["offset"]))

    return low + bisect_left(range(low, high), start, key=stored_ms)


def _stored_ms(core: Core, offset: int) -> int:
    """Return when a message was stored; one that cannot be read is taken for a late one."""
    try:
        view = core.engine.commitlog.view(offset)
        return decode_message(view, offset).stored_ms
    except CorruptStoreError:
        return 1 << 62


# --- a group that will not read again
#
# What it committed goes out of `config/consumerOffset.json`, which a broker then reads as if the
# group had never read. Its retry queue and that of its dead letters may have messages that only it
# would ever read: of those the offsets go to the end instead, so that nothing keeps them.


@inside
def forget_group(consuming: Consuming, group: str, topic: str | None = None) -> int:
    """Forget what a group read, of one topic or of all; see `TimerStore.forget_group`."""
    core = consuming.core
    core.check_writable()
    check_group(group)
    if topic is not None:
        check_topic_to_consume(topic)
    consuming.write_offsets()  # what a put has acknowledged is known to the file from now on
    own = fmt.RETRY_PREFIX.decode() + group, dead_topic(group)
    with consuming.changing_offsets():
        known = {pair for pair in consuming.known_pairs() if pair[1] == group}
        wanted = {pair for pair in known if topic in (None, pair[0])}
        for pair in sorted(wanted):
            _check_idle(consuming, *pair)
        if topic is None and (count := _letter_count(consuming, group)):
            raise InvalidArgumentError(
                f"The group {group!r} has {count:,} dead letters. Put them back "
                "(retry_dead_letters) or drop them (drop_dead_letters) first."
            )
        if wanted and topic is None:
            wanted |= {(each, group) for each in own}
        for pair in wanted:
            consuming.forget(*pair)
            if pair[0] in own:
                _pass_all(consuming, *pair)
        if topic is None and group in core.switches.groups():
            core.switches.clear("consuming", group)
        core.offsets.write()
    consuming.write_tallies(at_once=True)
    return sum(each not in own for each, _ in wanted)


def _check_idle(consuming: Consuming, topic: str, group: str) -> None:
    """Refuse to forget a group that reads a topic at the moment."""
    if not consuming.is_read(topic, group):
        return
    raise InvalidArgumentError(
        f"The group {group!r} reads the topic {topic!r} at the moment. Close its consumers, and "
        "acknowledge or give back what was pulled; then forget it."
    )


def _letter_count(consuming: Consuming, group: str) -> int:
    topic, queues, count = dead_topic(group), consuming.core.engine.queues, 0
    for row in queues.rows(topic.encode()):
        first, done = consuming.not_done(topic, group, row)
        first = max(first, queues.first_kept(row, consuming.core.engine.commitlog.start))
        count += sum(stop - start for start, stop in gaps(first, queues.next_index(row), done))
    return count


def _pass_all(consuming: Consuming, topic: str, group: str) -> None:
    """Have nothing of a queue needed that nobody else reads."""
    offsets, queues = consuming.core.offsets, consuming.core.engine.queues
    for row in queues.rows(topic.encode()):
        if queues.next_index(row) > queues.first_kept(row, consuming.core.engine.commitlog.start):
            queue_id = int(queues.table.queue_id[row])
            offsets.set(topic, group, queue_id, queues.next_index(row))


# --- the calls


PULL_COUNT_MAX: Final = 1 << 16
"""Messages in one batch."""
_EXPIRED_S: Final = 1.0
"""A pull that meets only what has expired ends after so long, unless its `timeout` is longer."""
_POLL_S: Final = 0.05
"""A waiting consumer looks up at least this often."""


class Consuming:
    """Groups that read an open store, each once."""

    def __init__(self, core: Core, putting: Putting, keys: Keys) -> None:
        self.core, self.gate, self.putting = core, core.gate, putting
        self._groups: dict[tuple[str, str], Group] = {}
        self._retries: dict[str, GroupRetries] = {}
        self._tally_file = TallyFile(core.disk, core.path / "config" / TALLY_FILE)
        self.tallies, self._held_back = self._tally_file.read()
        # Before anything fires, as offsets are.
        if cut_held(self._held_back, core.engine.queues):
            self.write_tallies(at_once=True)
        self._put_acks = PutAcks(core, keys)
        self._put_acks.apply()
        self._lock = Lock()
        self._offsets_lock = RLock()  # a signal's handler may acknowledge, too
        self._readers: dict[tuple[str, str], WeakSet[object]] = {}
        self.consumers: dict[Failure, tuple[str, list[str]]] = {}
        """By what has stopped it, if anything did: the group and topics of each consumer."""

    def group(self, topic: str, name: str) -> Group:
        """Return the group's reading of a topic, the same for all who ask."""
        if self.core.forked:
            self.core.check_process()
        check_topic_to_consume(topic)
        check_group(name)
        with self._lock.guard():
            found = self._groups.get((topic, name))
            if found is None:
                retries = self.retries(name)
                tally = self.tallies.setdefault((topic, name), GroupTally())
                shared = retries, self.putting, self._put_acks
                found = Group(*shared, tally, topic)
                self._groups[topic, name] = found
            return found

    # --- who reads

    def begin_reading(self, topic: str, group: str, who: object) -> None:
        """Say that somebody reads, so that the group is not forgotten; until `end_reading`."""
        readers = self._readers.get((topic, group))
        if readers is None:
            with self._lock.guard():
                readers = self._readers.setdefault((topic, group), WeakSet())
        readers.add(who)

    def end_reading(self, topic: str, group: str, who: object) -> None:
        """Say that somebody reads no more. Twice does nothing."""
        readers = self._readers.get((topic, group))
        if readers is not None:
            readers.discard(who)

    @contextmanager
    def waiting(self, topics: Sequence[str], group: str) -> Iterator[None]:
        """Say that somebody waits for messages, while the block runs."""
        who = _Waiting()
        try:
            for topic in topics:
                self.begin_reading(topic, group, who)
            yield
        finally:
            for topic in topics:
                self.end_reading(topic, group, who)

    def is_read(self, topic: str, name: str) -> bool:
        """Tell whether a group reads a topic just now, or has not settled what it pulled."""
        if self._readers.get((topic, name)):
            return True
        reader = self._groups.get((topic, name))
        if reader is None or reader.waiting:
            return reader is not None
        with reader.lock.guard():
            return any(each.in_flight_count for each in reader.cursors.values())

    def begin_consumer(self, group: str, topics: list[str], failure: Failure) -> None:
        """Note a consumer that begins; those of its group that have stopped have a successor."""
        for other, (name, _) in list(self.consumers.items()):
            if name == group and other.error is not None:
                self.consumers.pop(other, None)
        self.consumers[failure] = group, topics

    def retries(self, name: str) -> GroupRetries:
        """Return what all groups of one name share."""
        return self._retries.setdefault(name, GroupRetries(self.core, name))

    def consume(self, topic: str, group: str, timeout: float | None) -> Iterator[Delivery]:
        """Yield messages; see `TimerStore.consume`."""
        self.core.check_open()
        return self._iterate(self.group(topic, group), check_timeout(timeout))

    def pull(self, topic: str, group: str, max_count: int, timeout: float | None) -> Run:
        """Return a batch; see `TimerStore.pull`."""
        if self.core.closed:
            self.core.check_open()
        if type(max_count) is not int or not 1 <= max_count <= PULL_COUNT_MAX:
            max_count = check_int(max_count, "max_count", 1, PULL_COUNT_MAX)
        if timeout is not None and not (type(timeout) is float and timeout == timeout):
            timeout = check_timeout(timeout)
        is_text = type(topic) is type(group) is str
        reader = self._groups.get((topic, group)) if is_text else None
        if reader is None:
            reader = self.group(topic, group)
        run = self._wait_for_run(reader, max_count, timeout, None)
        return reader.empty() if run is None else run

    def pull_some(self, topic: str, group: str, max_count: int, bytes_max: int) -> Run | None:
        """Return what is there, for another process; for `bytes_max` see `Group.pull`."""
        self.core.check_open()
        count = check_int(max_count, "max_count", 1, PULL_COUNT_MAX)
        return self._wait_for_run(self.group(topic, group), count, 0, bytes_max)

    def pull_in_turn(
        self, rate: Rate, topic: str, group: str, max_count: int, bytes_max: int | None = None
    ) -> Run:
        """Return a batch of what has its turn now, for another process's consumer."""
        count = check_int(max_count, "max_count", 1, PULL_COUNT_MAX)
        reader = self.group(topic, group)
        run = reader.pull_long(count, None, rate, bytes_max)
        if run is None and reader.may_hide(rate) and reader.make_visible():
            run = reader.pull_long(count, None, rate, bytes_max)
        return reader.empty() if run is None else run

    def _iterate(self, group: Group, timeout: float | None) -> Iterator[Delivery]:
        """Yield deliveries; end after `timeout` seconds of nothing."""
        core = self.core
        while True:
            try:
                run = self._wait_for_run(group, CONSUME_COUNT, timeout, CONSUME_BYTES)
            except StoreClosedError:
                return
            if run is None:
                return
            with closing(run.each(lambda: core.clock.now_ms, lambda: core.closed)) as deliveries:
                for delivery in deliveries:
                    if core.forked:
                        core.check_process()
                    yield delivery

    def _wait_for_run(
        self, group: Group, count_max: int, timeout: float | None, bytes_max: int | None
    ) -> Run | None:
        """Return what a group can hand out, waiting for it; None when the time is over."""
        core, deadline, clock = self.core, None, group.hand_clock
        if clock is not None:
            core.play_now()
            group.make_visible()
        elif timeout != 0 and group.pace.known[PER_S] >= FAST_PER_S:
            if wait_s := group.pace.wait_s(count_max, time.monotonic()):
                time.sleep(wait_s if timeout is None else min(wait_s, timeout))
        waiter, synced, waiters, until_s = None, False, core.waiters, inf
        if timeout is not None and clock is None:
            until_s = time.monotonic() + max(timeout, _EXPIRED_S)
        if timeout is None or (timeout != 0 and clock is None):
            try:
                waiter = waiters.free.pop()
            except IndexError:
                waiter = waiters.another()
        try:
            if waiter is not None:
                group.waiting.add(waiter)
            while True:
                run = group.pull_ready(count_max, waiter)
                if run is None:
                    synced = False
                elif not isinstance(run, bool):
                    return run
                elif run and not synced:
                    group.make_durable()
                    synced = True
                    continue
                else:
                    run = group.pull_long(count_max, bytes_max=bytes_max, until_s=until_s)
                    if run is not None:
                        return run
                    synced = not synced and core.is_group and group.make_visible()
                    if synced:
                        continue
                if waiter is None:
                    return None
                wait_s = _POLL_S
                if timeout is not None:
                    now_s = time.monotonic()
                    if deadline is None:
                        deadline = now_s + timeout
                    wait_s = min(wait_s, deadline - now_s)
                    if wait_s <= 0:
                        return None
                if ASYNCIO in modules:
                    note_blocking()
                waiter.sleep(int(wait_s * 1e9))
        finally:
            if waiter is not None:
                group.waiting.discard(waiter)
                waiters.take_back(waiter)

    # --- how far they have come

    def write_offsets(self) -> None:
        """Make durable how far all groups have come.

        It reads first which records are settled, then what is ahead, then what is committed: an
        entry that moves in between is in the later one. Then the log must be durable as far as they
        say; only then does anybody know of them who may write the file. All of it only grows, so
        several may do this at once (`tests/models/ack_model.py`).
        """
        offsets = self.core.offsets
        with self._offsets_lock.guard():  # else what is forgotten meanwhile would come back
            groups = list(self._groups.values())
            covered = self._put_acks.covered()
            ahead = [(group.name, group.done_ahead()) for group in groups]
            committed = [(group.name, group.committed()) for group in groups]
            self._put_acks.wait_durable()
            for name, known in ahead:
                for (topic, queue_id), ranges in known.items():
                    offsets.add_ahead(topic, name, queue_id, ranges)
            for name, indexes in committed:
                for (topic, queue_id), index in indexes.items():
                    offsets.set(topic, name, queue_id, index)
            for group in groups:
                group.let_go()
            if covered is not None:
                self._put_acks.cover(covered)
        offsets.write()

    def write(self) -> None:
        """Make durable how far groups have come; what they did, if there is room."""
        self.write_offsets()
        with suppress(StoreFullError):
            self.write_tallies()

    def changing_offsets(self) -> Guard:
        """Keep all others from saying how far groups have come, while the block runs."""
        return self._offsets_lock.guard()

    def known_pairs(self) -> set[tuple[str, str]]:
        """Return each (topic, group) that has committed anything, or reads."""
        return {*self.core.offsets.snapshot(), *self._groups, *self.tallies}

    def forget(self, topic: str, name: str) -> None:
        """Forget what a group did with a topic; who has its reading still gets an error."""
        with self._lock.guard():
            reader = self._groups.pop((topic, name), None)
            if reader is not None:
                reader.is_forgotten = True
                reader.ready.ended = 1
            if topic == RETRY_PREFIX.decode() + name:
                self._retries.pop(name, None)
            for known in (self.tallies, self._held_back, self._readers):
                known.pop((topic, name), None)
            self.core.offsets.forget(topic, name)

    def write_tallies(self, *, at_once: bool = False) -> None:
        """Write what groups did: from time to time, `at_once`, or as the store closes."""
        at_once |= self.core.closed or self.core.clock.manual
        if at_once or self._tally_file.is_due:
            now_ms = self.core.clock.now_ms
            self._tally_file.write(dict(self.tallies), self._all_held_back(), now_ms)

    def not_done(self, topic: str, name: str, row: int) -> tuple[int, Ranges]:
        """Return the first index of a queue that a group has not done, and what behind it is."""
        reader = self._groups.get((topic, name))
        if reader is not None:
            with reader.lock.guard():
                cursor = reader.cursors.get(row)
                if cursor is not None:
                    return cursor.committed, cursor.done_ranges()
        queue_id = int(self.core.engine.queues.table.queue_id[row])
        offsets = self.core.offsets
        return offsets.get(topic, name, queue_id), offsets.get_ahead(topic, name, queue_id)

    def state_of(self, topic: str, name: str, row: int, index: int) -> HandedState:
        """Tell what a group did with an entry of a queue. O(entries in flight)."""
        for reader in self.known_groups():
            if reader.name == name and (cursor := reader.cursors.get(row)) is not None:
                with reader.lock.guard():
                    return cursor.state_of(index)
        first, done = self.not_done(topic, name, row)
        is_done = index < first or any(start <= index < stop for start, stop in done)
        return "done" if is_done else "waiting"

    def held_back(self, topic: str, name: str) -> HeldBack:
        """Return what an ordered consumer holds back; it is his to change, under the group's lock.

        It is kept over a restart.
        """
        return self._held_back.setdefault((topic, name), {})

    def _all_held_back(self) -> AllHeldBack:
        found: AllHeldBack = {}
        for (topic, name), places in list(self._held_back.items()):
            found[topic, name] = {
                (queue_id, i): each
                for (queue_id, i), each in list(places.items())
                if i >= self.core.offsets.get(topic, name, queue_id)
            }
        return found

    def known_groups(self) -> list[Group]:
        """Return the groups that read since the store was opened."""
        return list(self._groups.values())

    def group_names(self) -> set[str]:
        """Return the names of all groups that read, or ever committed anything."""
        return self.core.offsets.group_names() | {group.name for group in self.known_groups()}

    def committed_indexes(self) -> CommittedIndexes:
        """Return what all groups have consumed."""
        reading = [each for group in list(self._groups.values()) for each in group.reading()]
        return self.core.offsets.committed(reading)

    @property
    def unreadable_count(self) -> int:
        """How many entries were passed by since the store was opened."""
        groups, retries = list(self._groups.values()), list(self._retries.values())
        count = sum(each.unreadable_count for each in groups)
        return count + sum(each.unreadable_count for each in retries)

    @property
    def is_held(self) -> bool:
        """Whether the calling thread is inside an acknowledgement, which passes no gate."""
        return any(each.is_held for each in list(self._retries.values()))


class _Waiting:
    """Somebody who waits for messages."""
