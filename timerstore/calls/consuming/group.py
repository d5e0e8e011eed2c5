"""Consuming: what groups hand out, of all queues of a topic, of their own retry queue.

Until it is acknowledged it is *in flight*; a queue's smallest index that is not done is committed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from math import inf
from sys import getrefcount
from typing import Any, Final, TypeVar

import numpy as np

from timerstore.calls.consuming.cursors import (
    NOT_ITS_MESSAGE,
    GroupRetries,
    QueueCursor,
    RetryCursor,
)
from timerstore.calls.consuming.delivery import BATCH_BYTES_MAX, ID_BYTES_USUAL
from timerstore.calls.consuming.groupreader import UNSHARED_REFERENCES, PutAcks, Reader
from timerstore.calls.consuming.grouptally import GroupTally
from timerstore.calls.consuming.pull import (
    PULL_DAMAGED,
    PULL_EXPIRED,
    PULL_NO_ROOM,
    PULL_SOUND,
    PULL_STRAY,
    PULL_WILD,
    READY_COUNT,
    READY_EXPIRES_MS,
    READY_QUEUE,
    READY_SEGMENT,
    READY_START,
    Columns,
    Puller,
    columns_bytes,
)
from timerstore.calls.consuming.ready import (
    ANY_SPAN,
    NEEDS_ENTRIES,
    NOBODY,
    NOT_DURABLE,
    READY_ID_BYTES,
    READY_PULLERS_MAX,
    READY_QUEUES_MAX,
)
from timerstore.calls.consuming.run import Run
from timerstore.calls.consuming.turns import NEVER, Found, Rate, Room, Turns
from timerstore.calls.putting.putting import Putting
from timerstore.core.gate import inside
from timerstore.core.offsets import Ranges
from timerstore.core.waiting import Waiter
from timerstore.errors import CorruptStoreError, InvalidArgumentError
from timerstore.jit.mapping import lend
from timerstore.jit.record import Bytes
from timerstore.services.damage.pass_by import is_damaged, leave_entries
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.files.blocks import Pinned, forget_in_child
from timerstore.timelog.files.disk import MappedFile

_D = TypeVar("_D")
_DENSE_FACTOR: Final = 16
"""If the messages of a run lie in so many times their bytes, all of that is read in one go."""
_NOTHING_PINNED: Final = 0, 0, Pinned()
_ROUNDS_MAX: Final = 100
"""At a rate, after so many runs of which all had expired, who pulls looks whether it is to stop."""
_ROOM_BYTES: Final = 16 << 10
"""What most runs need: four pages. Of what takes more, all is asked for before it is read."""


class Group(Reader):
    """A group's reading of one topic, shared by all its iterators and pulls."""

    def __init__(
        self,
        retries: GroupRetries,
        putting: Putting,
        put_acks: PutAcks,
        tally: GroupTally,
        topic: str,
    ) -> None:
        """Begin at the offsets that were committed, or at the earliest message."""
        super().__init__(retries, putting, put_acks, tally, topic)
        self.cursors: dict[int, QueueCursor] = {}
        self._order: list[QueueCursor] = []  # the same, in the order in which they take turns
        self._queues: dict[int, tuple[Bytes, int]] = {}  # by row: topic and queue id
        self._turn = 0
        self._pullers: deque[Puller] = deque()  # which nobody uses, in the order of their turns
        self._ready_pullers: list[Puller] = []  # that may take the ready way, by number
        self.waiting: set[Waiter] = set()
        """Of those who wait for messages."""
        self.is_forgotten = False
        self.owner: Room | None = None  # an ordered consumer's, which is the only reader
        self.turns: Turns | None = None
        """What waits for its turn, once somebody has pulled at a rate."""
        self._topic_bytes = self.ready.topic.tobytes()
        self._ready_cursors: list[QueueCursor] = []
        self._retry: RetryCursor | None = None
        self._maps: dict[int, MappedFile] = {}  # of `_ready_cursors`, by place
        self._pinned = _NOTHING_PINNED
        self._nothing: Run | None = None
        forget_in_child(self._forget_maps)

    # --- handing out

    def pull(
        self,
        count_max: int,
        room: Room | None = None,
        bytes_max: int | None = None,
        until_s: float = inf,
    ) -> Run | None:
        """Hand out what is there, up to `count_max`; None if nothing is.

        `room` tells, under the lock, how many a queue may give that has any. `bytes_max`: of the
        messages, unless one alone has more; None: a batch's limit. `until_s`: see `pull_long`.
        """
        if room is None:
            run = self.pull_ready(count_max)
            if not isinstance(run, bool):
                return run
        return self.pull_long(count_max, room, bytes_max=bytes_max, until_s=until_s)

    def pull_long(
        self,
        count_max: int,
        room: Room | None = None,
        rate: Rate | None = None,
        bytes_max: int | None = None,
        until_s: float = inf,
    ) -> Run | None:
        """Do what `pull` does by the long way; at a `rate`, if that is given.

        At `until_s`, of the monotonic clock, it ends although all that it met had expired.
        """
        is_bounded = rate is not None and self.hand_clock is None  # that one stands still meanwhile
        for _ in repeat(None, _ROUNDS_MAX) if is_bounded else repeat(None):
            run = self._pull_round(count_max, room, rate, bytes_max)
            if run is not None and len(run):
                return run
            if run is None or time.monotonic() >= until_s:
                break
        else:
            if self.turns is not None:
                self.turns.next_ns = 0  # who pulls comes again at once, unless it is to stop
        return None

    @inside
    def _pull_round(
        self, count_max: int, room: Room | None, rate: Rate | None, bytes_max: int | None
    ) -> Run | None:
        """Hand out a run; an empty one if all of it was passed by."""
        core = self.core
        core.check_open()
        if self.is_forgotten:
            raise InvalidArgumentError(
                f"The group {self.name!r} was forgotten (forget_group) while it read the topic "
                f"{self.topic!r}. Call again: it begins as a new group."
            )
        now_ms = self.tally.counts.read_ms = core.clock.now_ms
        if self.owner not in (None, room):
            raise InvalidArgumentError(
                f"An ordered consumer of the group {self.name!r} reads this topic, and must be "
                "the only one. Close it first, or use another group."
            )
        if self._put_off:
            self.take_back_put_off()
        if self.turns is not None:
            self.turns.next_ns = NEVER
        if core.switches.pauses:
            if core.switches.find("consuming", now_ms, self.name):
                return None
            core.obey_switches()  # it may be over
        if rate is None:
            found = self._hand_out(count_max, room)
        else:
            found = self._hand_out_in_turn(count_max, room, rate)
        if found is None:
            return None
        cursor, start, stop, keys = found
        try:
            run = self._read(cursor, start, stop, bytes_max or BATCH_BYTES_MAX)
        except CorruptStoreError:
            raise  # it would be found again and again; what comes behind it goes on
        except BaseException:  # a signal's, say: nobody got them
            with self.lock.guard():
                cursor.take_back(self.topic, start, stop)
            raise
        if len(run) < stop - start and self.turns is not None and self.turns.rate == rate:
            with self.lock.guard():
                self.turns.give_back(start, keys, run.indexes.tolist())
        if taken := len(run):
            self.pace.took(taken, count_max, time.monotonic())
        return run

    def pull_ready(
        self, count_max: int, waiter: Waiter | None = None, span_max: int = ANY_SPAN
    ) -> Run | bool | None:
        """Hand out what is there in one kernel; None if nothing is, False: go the long way.

        True: all that is there is not durable yet, or damaged. Unless something is handed out, a
        `waiter` is armed. `span_max`: see `_pull_ready`. What is handed out is less than
        READY_BYTES.
        """
        if self._put_off:
            self.take_back_put_off()
        retry, count, clock = self._retry, 0, self.hand_clock
        try:
            puller = self._pullers.popleft()
        except IndexError:
            puller = self._new_puller()
            self._pullers.append(self._new_puller())
        told = puller.told
        if puller.number < 0 or (retry is not None and retry.routed.get(self.topic)):
            self._pullers.append(puller)
            if waiter is not None:
                waiter.arm()
            return False
        if getrefcount(puller.kept[0]) != UNSHARED_REFERENCES:
            puller.renew_block()
        try:
            place, now_ms = NOBODY if waiter is None else waiter.place, 0
            if clock is not None:
                now_ms = clock.now_ms
            count = self.ready_calls.pull(puller.number, count_max, span_max, place, now_ms)
            if count == NEEDS_ENTRIES:
                with self.gate.guard():  # closing waits for it: nothing is mapped behind it
                    self.core.check_open()
                    self._map_entries(told[READY_QUEUE], told[READY_SEGMENT])
                count = self.ready_calls.pull(puller.number, count_max, span_max, place, now_ms)
            if count <= 0:
                return None if count == 0 else count == NOT_DURABLE
            low, high, _, i, start, pulled_us, _, _, expires_ms = told.tolist()
            first, last, pins = self._pinned
            if low < first or high > last:
                with self.gate.guard():
                    self.core.check_open()
                    pins = self._pin(low, high)
            columns = Columns(puller.kept[0], count, READY_ID_BYTES * count)
            given = start, count, pins, pulled_us, expires_ms
            run = Run(self, self._ready_cursors[i], columns, *given)
        except BaseException as e:  # a signal's, say: nobody got them
            if told[READY_COUNT]:
                start, cursor = told[READY_START], self._ready_cursors[told[READY_QUEUE]]
                cursor.take_back(self.topic, start, start + told[READY_COUNT])
            if isinstance(e, CorruptStoreError):  # a segment went meanwhile
                return False
            raise
        finally:
            told[READY_COUNT] = 0
            if count > 0:
                self._pullers.append(puller)
            else:
                self._pullers.appendleft(puller)
        return run

    def _map_entries(self, i: int, number: int) -> None:
        """Have the ready way find a segment of a queue."""
        ready, row = self.ready, self._ready_cursors[i].row
        file = self.core.engine.queues.existing(row, number)
        with self.lock.guard():
            ready.segments[i] = -1
            self._maps[i] = file
            lend(ready.lent, i, file.view)
            ready.segments[i] = number

    def _pin(self, low: int, high: int) -> Pinned:
        """Keep the segments in which messages with offsets in [low, high) begin."""
        commitlog = self.core.engine.commitlog
        length, pins = commitlog.segment_bytes, commitlog.pin(low, high)
        first = low // length * length
        self._pinned = first, first + length * len(pins), pins
        return pins

    def let_go(self) -> None:
        """Keep no maps for the next pull: their files may be removed."""
        self.core.check_process()
        with self.lock.guard():
            self._forget_maps()

    def _forget_maps(self) -> None:
        """Do so under the lock, or in a forked child."""
        self.ready.segments[:] = -1
        self._maps.clear()
        self._pinned = _NOTHING_PINNED

    def _know_ready(self, retry: RetryCursor | None) -> None:
        """Tell the ready way which queues there are."""
        ready = self.ready
        mine = [each for each in self._order if each is not retry]
        ready.queue_count = 0
        self._ready_cursors, self._retry = mine, retry
        if len(mine) > READY_QUEUES_MAX:
            ready.ended = 1
            return
        ready.segments[:] = -1
        for i, each in enumerate(mine):
            ready.rows[i], each.ready_place = each.row, i
            lend(ready.windows, i, each.window.block)  # type: ignore[attr-defined]
        if retry is not None:
            lend(ready.windows, READY_QUEUES_MAX, retry.window.block)  # type: ignore[attr-defined]
            ready.retry_row = retry.row
        ready.queue_count = len(mine)

    def _hand_out(self, count_max: int, room: Room | None) -> Found | None:
        """Return the next run of any queue."""
        with self.lock.guard():
            self._find_queues()
            cursors = self._order
            for i in range(len(cursors)):
                cursor = cursors[(self._turn + i) % len(cursors)]
                visible_end, count = self._visible_end(cursor), count_max
                if not cursor.has_more(self.topic, visible_end):
                    continue
                if room is not None:
                    count = room(cursor, visible_end, count_max)
                    if count <= 0:
                        continue
                if isinstance(cursor, RetryCursor):
                    start, stop = cursor.hand_out_of(self.topic, visible_end, count)
                else:
                    start, stop = cursor.hand_out(visible_end, count)
                if stop > start:
                    self._turn = (self._turn + i + 1) % len(cursors)
                    return cursor, start, stop, ()
        return None

    # --- handing out in turn

    def turn_ms(self) -> float:
        """Return how long it is to the next turn that is waited for; infinity if none is."""
        turns = self.turns
        return inf if turns is None else turns.left_ms()

    def may_hide(self, rate: Rate) -> bool:
        """Tell whether what is not durable yet may have a turn, if nothing else has one."""
        return bool(rate.by) or self.turn_ms() == inf

    def _hand_out_in_turn(self, count_max: int, room: Room | None, rate: Rate) -> Found | None:
        """Return the next run whose turns are free, as `_hand_out`, and take these."""
        with self.lock.guard():
            self._find_queues()
            turns = self.turns
            if turns is None or turns.rate != rate:
                turns = self.turns = Turns(self.core, self.topic, rate, self.tally.full_ns)
            self._turn += 1
            at = self._turn % max(1, len(self._order))
            cursors = self._order[at:] + self._order[:at]
            try:
                return turns.hand_out(cursors, self._visible_end, count_max, room)
            except BaseException:
                self.turns = None  # what it had begun is not known
                raise

    def _find_queues(self) -> None:
        """Find what there is to read, if there are more queues than when it was looked."""
        queues = self.core.engine.queues
        known_count = queues.known_count  # a row, once given, stays
        if known_count == self.ready.known_count:
            return
        rows, retries = queues.rows(self._topic_bytes), self.retries.cursor()
        for row in rows:
            if row not in self.cursors:
                self.cursors[row] = self._cursor(row, self.topic)
        if retries is not None:
            self.cursors[retries.row] = retries
        for row in self.cursors:
            topic = np.frombuffer(queues.topics[row], np.uint8)
            self._queues[row] = topic, int(queues.table.queue_id[row])
        self._order = list(self.cursors.values())
        self._know_ready(retries)
        self.ready.known_count = known_count

    def _cursor(self, row: int, topic: str) -> QueueCursor:
        queues = self.core.engine.queues
        queue_id = int(queues.table.queue_id[row])
        committed = self.core.offsets.get(topic, self.name, queue_id)
        first = queues.first_kept(row, self.core.engine.commitlog.start)
        cursor = QueueCursor(row, max(first, min(committed, queues.next_index(row))))
        cursor.pass_done(self.core.offsets.get_ahead(topic, self.name, queue_id))
        return cursor

    def _visible_end(self, cursor: QueueCursor) -> int:
        """Return the index behind the last entry that may be handed out.

        Under "group" durability that is what is durable.
        """
        queues, row = self.core.engine.queues, cursor.row
        end = queues.seen_index(row)
        if not self.ready.hides or end <= cursor.next:
            return end
        durable_end = self.core.flusher.durable_end
        first = max(cursor.next, queues.first_index(row))
        while first < end:  # from behind: the first entry that is not durable is one of the last
            start = max(first, (end - 1) // queues.segment_entries * queues.segment_entries)
            entries, at, kept = queues.run(row, start, end - start)
            with self._puller() as puller:
                end = start + puller.durable_count(entries, at, end - start, durable_end)
            del kept
            if end > start:
                break
        if end <= first < queues.next_index(row):
            entry = queues.read(row, first, 1)[0]
            if int(entry["offset"]) + int(entry["size"]) > self.core.engine.commitlog.end:
                return first + 1  # it is damaged, and will never be durable
        return max(first, end)

    def _read(self, cursor: QueueCursor, start: int, stop: int, bytes_max: int) -> Run:
        """Read entries [start, stop) into a run, from the first that is kept on."""
        try:
            return self._read_kept(cursor, start, stop, bytes_max)
        except CorruptStoreError:
            # Retention may have removed them just before it knew of this group.
            engine = self.core.engine
            first = engine.queues.first_kept(cursor.row, engine.commitlog.start)
            if first <= start:
                raise
        with self.lock.guard():
            cursor.settle(start, min(first, stop))
        return self._read(cursor, first, stop, bytes_max) if first < stop else self.empty()

    def _read_kept(self, cursor: QueueCursor, start: int, stop: int, bytes_max: int) -> Run:
        """Read entries [start, stop) into a run; what cannot be read is held, or settled."""
        engine, count = self.core.engine, stop - start
        queues, commitlog = engine.queues, engine.commitlog
        entries, at, kept = queues.run(cursor.row, start, count)
        topic, queue_id = self._queues[cursor.row]
        room, id_room, pins = _ROOM_BYTES, ID_BYTES_USUAL * count, Pinned()
        while True:
            block = np.empty(columns_bytes(count, id_room, room), np.uint8)
            columns = Columns(block, count, id_room)
            with self._puller() as puller, commitlog.reading():
                now_ms = self.core.clock.now_ms
                sound = puller.pull(entries, at, start, topic, queue_id, columns, now_ms)
                expires_ms = puller.told[READY_EXPIRES_MS]
                low, high, needed = puller.found()
                if low < high:
                    pins = commitlog.pin(low, high)
            if sound >= 0:
                break
            if needed > bytes_max and count > 1:
                count //= 2
            elif sound == PULL_NO_ROOM:
                if needed <= room:
                    id_room = needed
                room = needed
                if high - low <= _DENSE_FACTOR * needed:
                    commitlog.read_ahead(low, high)
        if start + count < stop:
            with self.lock.guard():
                cursor.take_back(self.topic, start + count, stop)
        del kept
        if sound < count:
            self._pass_by_unsound(cursor, start, columns.verdicts, pins)
            if sound == 0:
                return self.empty()
        pulled_us = round(self.core.steady_ms() * 1000)
        return Run(self, cursor, columns, start, sound, pins, pulled_us, expires_ms)

    @contextmanager
    def _puller(self) -> Iterator[Puller]:
        """Take a puller while the block runs, however it ends: few may take the ready way."""
        try:
            puller = self._pullers.popleft()
        except IndexError:
            puller = self._new_puller()
        try:
            yield puller
        finally:
            self._pullers.appendleft(puller)

    def _new_puller(self) -> Puller:
        self.core.check_process()
        engine = self.core.engine
        with engine.commitlog.reading() as table:  # its own: a pull borrows it in its turn
            puller = Puller(table, engine.store_tag, engine.precision_ms)
        with self.lock.guard():
            number = len(self._ready_pullers)
            if number < READY_PULLERS_MAX:
                lend(self.ready.pullers, number, puller.place.block)  # type: ignore[attr-defined]
                self._ready_pullers.append(puller)
                puller.number = number
        return puller

    def _pass_by_unsound(
        self, cursor: QueueCursor, start: int, verdicts: Bytes, pins: list[Any]
    ) -> None:
        """Settle what could not be read of a run that begins at `start`, and count it.

        An entry that is damaged is held until the next opening makes it anew.
        """
        engine, count = self.core.engine, len(verdicts)
        indexes, verdicts = np.arange(start, start + count), verdicts.copy()
        self.expire(cursor, indexes[verdicts == PULL_EXPIRED], pins)
        unsound = indexes[(verdicts != PULL_SOUND) & (verdicts != PULL_EXPIRED)].tolist()
        if held := [index for index in unsound if is_damaged(engine, cursor.row, index)]:
            verdicts[np.array(held) - start] = PULL_SOUND
            with self.lock.guard():
                for index in held:
                    cursor.hold(index)
            leave_entries(engine, cursor.row, held)
        damaged = verdicts == PULL_DAMAGED
        self.pass_by(cursor, indexes[verdicts == PULL_WILD], "it does not point to a message")
        self.pass_by(cursor, indexes[verdicts == PULL_STRAY], NOT_ITS_MESSAGE)
        self.pass_by(cursor, indexes[damaged], None)
        offsets = engine.queues.read(cursor.row, start, count)["offset"]
        for offset in offsets[damaged].tolist():
            engine.damage.note("commitlog", offset, "the message is damaged")

    def belong_to(self, room: Room) -> int | None:
        """Let an ordered consumer be the only reader; else return how many messages others hold."""
        self.core.check_process()
        self.take_back_put_off(at_once=True)
        with self.lock.guard():
            self._find_queues()
            self.ready.owned = 1
            handed_out = sum(
                cursor.in_flight_count
                for cursor in self.cursors.values()
                if not isinstance(cursor, RetryCursor)
            )
            if self.owner is not None or handed_out:
                self.ready.owned = self.owner is not None
                return handed_out
            self.owner = room
            return None

    def belong_to_all(self) -> None:
        """Let anybody read again. Under the lock."""
        self.core.check_process()
        self.owner = None
        self.ready.owned = 0

    def empty(self) -> Run:
        """Return a run of nothing."""
        if self._nothing is None:
            columns = Columns(np.zeros(columns_bytes(0, 0, 0), np.uint8), 0, 0)
            self._nothing = Run(self, QueueCursor(-1, 0), columns, 0, 0, [], 0)
        return self._nothing

    def has_hidden(self) -> bool:
        """Tell whether something was fired for the group that is not durable yet."""
        self.core.check_process()
        with self.lock.guard():
            self._find_queues()
            queues = self.core.engine.queues
            return any(
                queues.next_index(row) > self._visible_end(cursor)
                for row, cursor in self.cursors.items()
            )

    @inside
    def make_visible(self) -> bool:
        """Under "group" durability, make durable what was fired for who waits; tell if any was."""
        self.core.check_open()
        hides = self.core.is_group and self.has_hidden()
        if hides:
            self.core.flusher.sync_log()
        return hides

    @inside
    def make_durable(self) -> None:
        """Make all that was fired durable."""
        self.core.check_open()
        self.core.flusher.sync_log()

    # --- how far it has come

    def done_ahead(self) -> dict[tuple[str, int], Ranges]:
        """Return what is done behind the committed index of each queue, by (topic, queue id)."""
        self.core.check_process()
        return self._by_queue(QueueCursor.done_ranges)

    def committed(self) -> dict[tuple[str, int], int]:
        """Return the committed index of each queue, by (topic, queue id)."""
        self.core.check_process()
        return self._by_queue(lambda cursor: cursor.committed)

    def _by_queue(self, of: Callable[[QueueCursor], _D]) -> dict[tuple[str, int], _D]:
        queues = self.core.engine.queues
        with self.lock.guard():
            return {
                (text(queues.topics[row]), int(queues.table.queue_id[row])): of(cursor)
                for row, cursor in self.cursors.items()
            }

    def reading(self) -> list[tuple[str, str, dict[str, int]]]:
        """Return what the group needs next: its topics, with an index by queue id."""
        needed: dict[str, dict[str, int]] = {self.topic: {}}
        for (topic, queue_id), index in self.committed().items():
            needed.setdefault(topic, {})[str(queue_id)] = index
        return [(topic, self.name, indexes) for topic, indexes in needed.items()]
