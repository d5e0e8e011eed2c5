"""Slow, obvious twins of the services, each from what it takes to what it hands on.

A twin is told what stands in the log, which segments can be read, how much room there is. Like all
of `tests/naive.py` it imports nothing of timerstore.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tests import naive

RING = 4_096
COLD = 256  # entries of ring C before which what was put aside waits while pages are missing
SPAN = 8
KEPT = 2 * SPAN  # the place of deletes that are kept
PLACES = KEPT + 1  # of slots, of slots that were put aside, and that one
LEAD = 1
LEVEL_MARK = 1 << 47
TIMER, DELETE, UNREADABLE = 0, 1, 2  # kinds of entries between the two enqueue services
PLAIN, ROLL, MARKS_DELETE, HOP = 1, 2, 4, 8  # a unit's magic
NO_NEED = ("", 0)
FAR = 1 << 62
OVERDUE = -1  # the bucket of what was overdue when its slot had passed


class Enqueued(NamedTuple):
    """What enqueue-get hands on for one entry of the timer topic's queue."""

    out_ms: int
    due_ms: int
    message: int
    size: int
    topic_hash: int
    kind: int
    high: int = 0
    low: int = 0


class Late(NamedTuple):
    """A unit that was linked into a slot that was claimed before."""

    slot: int
    magic: int
    message: int
    size: int
    due_ms: int


class Taken(NamedTuple):
    """What dequeue-get hands on: a timer or a roll with its bucket, a delete with its slot."""

    message: int
    size: int
    place: int  # its slot's
    magic: int
    at: int


@dataclass
class Log:
    """What a service can read of the commit log."""

    tag: int
    precision_ms: int
    segment_bytes: int
    messages: dict[int, naive.Message] = field(default_factory=dict)  # whole ones, by offset
    spoilt: set[int] = field(default_factory=set)  # of these, whose CRC does not hold
    unmapped: set[int] = field(default_factory=set)  # segments
    end: int = 0

    def take(self, message: naive.Message) -> None:
        """Know of a message that was put."""
        self.messages[message.offset] = message
        self.end = message.offset + message.size_bytes

    def is_unmapped(self, offset: int) -> bool:
        """Whether the segment with this offset must be mapped before it can be read."""
        return 0 <= offset < self.end and offset // self.segment_bytes in self.unmapped

    def is_sound(self, offset: int, size: int, *, verify: bool) -> bool:
        """Whether a pending message with its real topic stands here, of this size."""
        message = self.messages.get(offset)
        if message is None or message.size_bytes != size or (verify and offset in self.spoilt):
            return False
        return "REAL_TOPIC" in message.properties

    def due_ms(self, offset: int) -> int:
        """When a pending timer may first be handed out."""
        return naive.due_ms(self.messages[offset].properties, self.precision_ms, self.tag)

    def identity(self, offset: int) -> tuple[int, int]:
        """Which timer it is, or which one a delete takes back."""
        properties = self.messages[offset].properties
        topic = properties["REAL_TOPIC"].encode()
        if "TIMER_DEL_UNIQKEY" in properties:
            named = properties["TIMER_DEL_UNIQKEY"].encode()
            return naive.target_identity(topic, named, self.tag)
        return naive.identity(topic, properties.get("UNIQ_KEY", "").encode(), self.tag)


# --------------------------------------------------------------------- enqueue-get


@dataclass
class EnqueueGet:
    """From the timer topic's queue to ring A."""

    log: Log
    entries: list[naive.Entry]
    unmapped: set[int]  # segments of the queue
    segment_entries: int
    room: int = RING
    recovering: bool = False
    batch: int = 512
    got: int = 0
    pass_index: int = -1
    need: tuple[str, int] = NO_NEED
    out: list[Enqueued] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)

    def step(self) -> int:
        """Read a batch, up to whatever must be made or looked at first."""
        if self.lost:
            self.need = "lost", 0
            return 0
        begin = self.got
        while self.got - begin < min(self.room, self.batch) and self.got < len(self.entries):
            if self.got // self.segment_entries in self.unmapped:
                self.need = "timer queue read", self.got * naive.ENTRY_BYTES
                break
            entry = self.entries[self.got]
            if self.log.is_unmapped(entry.message_offset):
                self.need = "commitlog read", entry.message_offset
                break
            if self._is_its_message(entry):
                self.out.append(self._read(entry))
            elif self.pass_index in (self.got, -2 - self.got) and not self.lost:
                if self.pass_index == self.got:  # else the message is not lost, but its entry
                    self.lost.append(entry.message_offset)
                self.out.append(
                    Enqueued(0, 0, entry.message_offset, entry.message_bytes, 0, UNREADABLE)
                )
            else:
                self.need = "bad entry", self.got
                break
            self.got += 1
        self.room -= self.got - begin
        return self.got - begin

    def _is_its_message(self, entry: naive.Entry) -> bool:
        offset = entry.message_offset
        if not self.log.is_sound(offset, entry.message_bytes, verify=self.recovering):
            return False
        message = self.log.messages[offset]
        own = (message.topic, message.queue_id, message.queue_offset, message.offset)
        if own != (naive.TIMER_TOPIC, 0, self.got, offset):
            return False
        return naive.number(message.properties.get("TIMER_OUT_MS")) >= 0

    def _read(self, entry: naive.Entry) -> Enqueued:
        offset = entry.message_offset
        properties = self.log.messages[offset].properties
        is_delete = "TIMER_DEL_UNIQKEY" in properties
        return Enqueued(
            int(properties["TIMER_OUT_MS"]),
            self.log.due_ms(offset),
            offset,
            entry.message_bytes,
            naive.java_hash(properties["REAL_TOPIC"]),
            DELETE if is_delete else TIMER,
            *(self.log.identity(offset) if is_delete else (0, 0)),
        )


# --------------------------------------------------------------------- enqueue-put


@dataclass
class EnqueuePut:
    """From ring A to the timer log, the wheel, and ring B."""

    wheel: naive.Wheel
    claimed: int
    segment_bytes: int
    late_room: int = RING
    front: int = 0  # where the front begins, if slots before `aside_stop` were put aside
    aside_stop: int = 0
    aside_claimed: int = 0
    straggler: int = -1
    recovering: bool = False
    batch: int = 512
    done: set[int] = field(default_factory=set)  # sources that an earlier life copied
    cancelled: set[tuple[int, int]] = field(default_factory=set)
    cancelled_room: int = FAR
    segments: set[int] = field(default_factory=set)  # of the timer log: what is mapped
    units: dict[int, naive.Unit] = field(default_factory=dict)
    slots: dict[int, naive.Slot] = field(default_factory=dict)
    late: list[Late] = field(default_factory=list)
    late_count: Counter[int] = field(default_factory=Counter)  # by the slot's place
    latest_slot: dict[int, int] = field(default_factory=dict)  # by commit log segment
    end: int = 0
    linked: int = 0
    need: tuple[str, int] = NO_NEED

    def step(self, waiting: list[Enqueued], now_ms: int, commitlog_segment_bytes: int) -> int:
        """Link what waits; return how much of it."""
        done = 0
        for each in waiting[: self.batch]:
            if each.kind != UNREADABLE and not self._link(each, now_ms, commitlog_segment_bytes):
                break
            self.linked += 1
            done += 1
        return done

    def _link(self, entry: Enqueued, now_ms: int, commitlog_segment_bytes: int) -> bool:
        if entry.kind == DELETE and self.recovering:
            if not (entry.high == -1 and entry.low >= LEVEL_MARK):
                if len(self.cancelled) + 1 > self.cancelled_room:
                    self.need = "cancelled room", 0
                    return False
                self.cancelled.add((entry.high, entry.low))
        if self.late_room == 0:
            return False
        offset = naive.next_unit_offset(self.segment_bytes, self.end)
        if offset // self.segment_bytes not in self.segments:
            self.need = "timerlog segment", offset
            return False
        place = naive.place(entry.out_ms, now_ms, self.wheel._replace(claimed=self.claimed))
        if entry.message in self.done:
            read_ms = self.wheel.read * self.wheel.precision_ms
            is_own = entry.out_ms // self.wheel.precision_ms == self.wheel.read
            place = naive.Place(self.wheel.read, entry.out_ms if is_own else read_ms, False)
        before = self.slots.get(place.slot)
        magic = PLAIN | ROLL * place.is_roll | MARKS_DELETE * (entry.kind == DELETE)
        written_ms = naive.write_ms(place.slot, now_ms, self.wheel.precision_ms)
        unit = naive.Unit(
            naive.UNIT_BYTES,
            before.last_offset if before else -1,
            magic,
            written_ms,
            place.time_ms - written_ms,
            entry.message,
            entry.size,
            entry.topic_hash,
            extra=naive.unit_extra(entry.due_ms, place.time_ms, place.is_roll),
        )
        self.units[offset] = naive.seal_unit(unit, offset)
        change = -1 if entry.kind == DELETE else 1
        first, count = (before.first_offset, before.net_count) if before else (offset, 0)
        self.slots[place.slot] = naive.Slot(place.slot, first, offset, count + change)
        self.end = offset + naive.UNIT_BYTES
        segment = entry.message // commitlog_segment_bytes
        leads_to = max(place.slot, entry.out_ms // self.wheel.precision_ms)
        self.latest_slot[segment] = max(self.latest_slot.get(segment, -1), leads_to)
        if entry.message not in self.done:
            self._hand_on_late(Late(place.slot, magic, entry.message, entry.size, entry.due_ms))
        return True

    def _hand_on_late(self, late: Late) -> None:
        place = late.slot % SPAN
        if late.slot < self.aside_stop:
            place += SPAN
            if late.slot >= self.aside_claimed:
                return
        elif late.slot < self.front:
            self.straggler = self.front
            place = self.front % SPAN
        elif late.slot >= self.claimed:
            return
        self.late.append(late)
        self.late_count[place] += 1
        self.late_room -= 1


# --------------------------------------------------------------------- dequeue-get


class Waiting(NamedTuple):
    """What the near wheel holds of a timer or a roll."""

    due_ms: int
    message: int
    size: int
    slot: int
    magic: int


@dataclass
class Claims:
    """How far dequeue-get came in one range of slots, and what it holds of it."""

    claimed: int
    walked: int  # slots before it were walked whole
    offset: int = -1  # the unit at which a claim goes on
    buckets: dict[int, list[Waiting]] = field(default_factory=dict)
    deletes: dict[int, list[int]] = field(default_factory=dict)  # by slot
    waiting: Counter[int] = field(default_factory=Counter)  # in buckets, by slot


@dataclass
class DequeueGet:
    """From the wheel's chains and ring B to ring C, over the near wheel."""

    log: Log
    segment_bytes: int  # of the timer log
    sizes: naive.Wheel
    read: int  # R
    front: int  # where the front begins: at R, with nothing put aside
    first: int = 0  # work that is done for what was put aside before all else
    units: dict[int, naive.Unit] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)  # of each slot's chain
    unmapped: set[int] = field(default_factory=set)  # segments of the timer log
    damaged: set[int] = field(default_factory=set)  # units
    done: set[int] = field(default_factory=set)
    room: int = RING
    is_cold: bool = False  # pages were missing lately
    kept: list[int] = field(default_factory=list)  # deletes
    kept_slot: int = 0
    straggler: int = -1
    checkpointed: int = 0  # the durable R
    end: int = 0  # of the timer log
    first_hop: dict[int, int] = field(default_factory=dict)  # by the place that was hopped from
    chained: Counter[int] = field(default_factory=Counter)  # by the slot's place
    out: list[Taken] = field(default_factory=list)
    need: tuple[str, int] = NO_NEED

    def __post_init__(self) -> None:
        self.aside_stop = self.front  # slots in [R, this) were put aside
        self.ranges = [Claims(self.front, self.front), Claims(self.read, self.read)]

    def is_aside(self) -> bool:
        """Whether R is still in what was put aside."""
        return self.read < self.aside_stop

    def step(self, late: list[Late], now_ms: int) -> int:
        """Take late arrivals, claim, take what is due, hand deletes on; return the work done."""
        done = self._jump(now_ms // self.log.precision_ms) + len(late)
        for each in late:
            slot, aside = self._near_slot(each.slot)
            self._insert(
                *(slot, aside, each.magic, each.message, each.size, each.due_ms, now_ms),
                in_front=False,
            )
        waits = self.is_aside()
        order = (1, 0) if self.first > 0 else (0, 1)
        for aside in order if waits else (0,):
            before, work = self.room, self._claim(aside, now_ms)
            if aside or not waits or self.first <= 0 or self._is_handed_on():
                self._take(aside, now_ms)
                work += self._hand_on_deletes(aside, now_ms, keep=waits and not aside)
            if aside:
                self._hand_on_kept()
            work += before - self.room
            self.first -= work * aside
            done += work
        return done

    def _jump(self, now_slot: int) -> int:
        """Pass the slots without units if all that is claimed was passed; 1 if there are any."""
        mine = self.ranges[0]
        if self.is_aside() or mine.claimed != self.read:
            return 0
        stop = min(now_slot, self.checkpointed + self.sizes.slot_count)
        to = min([stop, *(slot for slot in self.last if slot >= self.read)])
        if to <= self.read:
            return 0
        self.read = self.front = mine.claimed = mine.walked = to
        return 1

    def _is_handed_on(self) -> bool:
        aside = self.ranges[1]
        return aside.walked >= self.aside_stop and not aside.waiting.total()

    def _near_slot(self, slot: int) -> tuple[int, int]:
        if slot < self.aside_stop:
            return slot, 1
        if slot < self.front:
            self.straggler = self.front
        return max(slot, self.front), 0

    def _insert(
        self,
        slot: int,
        aside: int,
        magic: int,
        message: int,
        size: int,
        due_ms: int,
        now_ms: int,
        *,
        in_front: bool,
    ) -> None:
        mine = self.ranges[aside]
        if magic & (MARKS_DELETE | ROLL) == MARKS_DELETE:
            mine.deletes.setdefault(slot, []).append(message)
            return
        precision = self.log.precision_ms
        at = due_ms = min(due_ms, (slot + 2) * precision)  # its own slot, or one later
        if due_ms < slot * precision and due_ms <= now_ms:
            at = OVERDUE
        entry = Waiting(due_ms, message, size, slot, magic)
        bucket = mine.buckets.setdefault(at, [])
        bucket.insert(0 if in_front else len(bucket), entry)
        mine.waiting[slot] += 1

    def _claim(self, aside: int, now_ms: int) -> int:
        mine, base = self.ranges[aside], self.read if aside else self.front
        limit = max(now_ms // self.log.precision_ms, base) + LEAD
        if aside:
            limit = self.aside_stop - 1
        work = 0
        while True:
            if mine.offset < 0:
                if mine.claimed > limit or mine.claimed >= base + SPAN:
                    return work
                mine.offset = self.last.get(mine.claimed, -1)
                mine.claimed += 1
            elif not self._claim_unit(mine.claimed - 1, aside, mine.offset, now_ms):
                return work
            else:
                mine.offset = self.units[mine.offset].prev_pos
            work += 1
            if mine.offset < 0:
                mine.walked = mine.claimed

    def _claim_unit(self, slot: int, aside: int, offset: int, now_ms: int) -> bool:
        if offset // self.segment_bytes in self.unmapped:
            self.need = "timerlog segment", offset
            return False
        if offset in self.damaged:
            self.need = "damaged timerlog", offset
            return False
        unit = self.units[offset]
        if unit.is_roll:
            return unit.message_offset in self.done or self._hop(slot, aside, unit, now_ms)
        due_ms = unit.time_ms + unit.extra
        is_brokers = (unit.crc, unit.extra) == (0, 0)
        if is_brokers or unit.extra == naive.UINT32_MAX:
            if self.log.is_unmapped(unit.message_offset):
                self.need = "commitlog read", unit.message_offset
                return False
            due_ms = unit.time_ms
            message = self.log.messages.get(unit.message_offset)
            if message is not None and "TIMER_OUT_MS" in message.properties:
                due_ms = self.log.due_ms(unit.message_offset)
        if unit.message_offset not in self.done:
            size = unit.message_bytes
            self._insert(
                *(slot, aside, unit.magic, unit.message_offset, size, due_ms, now_ms),
                in_front=True,
            )
            self.chained[slot % SPAN + SPAN * aside] += 1
        return True

    def _hop(self, slot: int, aside: int, unit: naive.Unit, now_ms: int) -> bool:
        """Link one more unit of a roll's message, nearer to its due time."""
        precision, message = self.sizes.precision_ms, unit.message_offset
        lead = naive.leads_to(unit, precision, self.sizes.hop * precision)
        if lead is None:
            if self.log.is_unmapped(message):
                self.need = "commitlog read", message
                return False
            out_ms, due_ms = 0, self._due_ms(message, 0)
            if message in self.log.messages:
                out_ms = naive.number(self.log.messages[message].properties["TIMER_OUT_MS"])
        else:
            out_ms = unit.time_ms + (lead - slot) * precision
            due_ms = out_ms if out_ms % precision else None  # it may be a broker's timer
        claimed = self.ranges[0].claimed
        wheel = self.sizes._replace(read=self.read, checkpointed_read=self.read, claimed=claimed)
        place = naive.place(out_ms, now_ms, wheel)
        magic, size = unit.magic & MARKS_DELETE | PLAIN, unit.message_bytes
        if place.slot <= slot:  # it leads nowhere: it is taken from where it waits
            self._insert(*(slot, aside, magic, message, size, due_ms or 0, now_ms), in_front=False)
            self.chained[slot % SPAN + SPAN * aside] += 1
            return True
        to, to_aside = self._near_slot(place.slot)
        is_late = to < self.ranges[to_aside].claimed or to > place.slot
        if is_late and due_ms is None:
            if self.log.is_unmapped(message):
                self.need = "commitlog read", message
                return False
            due_ms = self._due_ms(message, out_ms)
        offset = naive.next_unit_offset(self.segment_bytes, self.end)
        written_ms = naive.write_ms(place.slot, now_ms, precision)
        extra = naive.UINT32_MAX
        if place.is_roll and lead is not None:
            extra = unit.extra
        elif due_ms is not None:
            extra = naive.unit_extra(due_ms, place.time_ms, place.is_roll)
        hop = naive.Unit(
            *(52, self.last.get(place.slot, -1), magic | ROLL * place.is_roll | HOP, written_ms),
            *(place.time_ms - written_ms, message, size, unit.topic_hash),
            extra=extra,
        )
        self.units[offset] = naive.seal_unit(hop, offset)
        self.last[place.slot], self.end = offset, offset + naive.UNIT_BYTES
        self.first_hop.setdefault(slot % SPAN + SPAN * aside, offset)
        if is_late:
            late = to, to_aside, magic, message, size, due_ms or 0, now_ms
            self._insert(*late, in_front=False)
            self.chained[to % SPAN + SPAN * to_aside] += 1
        return True

    def _due_ms(self, message: int, otherwise_ms: int) -> int:
        found = self.log.messages.get(message)
        if found is None or "TIMER_OUT_MS" not in found.properties:
            return otherwise_ms
        return self.log.due_ms(message)

    def _take(self, aside: int, now_ms: int) -> None:
        mine = self.ranges[aside]
        limit, is_half = now_ms, mine.offset >= 0
        left = RING - COLD if aside and self.is_cold else 0
        if is_half:  # an earlier one of the slot may still be to come
            limit = min(limit, (mine.claimed - 1) * self.log.precision_ms - 1)
        for at in sorted(mine.buckets):
            for entry in list(mine.buckets[at]):
                due = at <= limit
                if at == OVERDUE:
                    due = entry.due_ms <= now_ms and not is_half
                if due and self.room > left:
                    mine.buckets[at].remove(entry)
                    mine.waiting[entry.slot] -= 1
                    place = entry.slot % SPAN + SPAN * aside
                    self._hand_on(
                        Taken(entry.message, entry.size, place, entry.magic, entry.due_ms)
                    )
        mine.buckets = {at: bucket for at, bucket in mine.buckets.items() if bucket}

    def _hand_on_deletes(self, aside: int, now_ms: int, *, keep: bool) -> int:
        """Hand on, or keep, the deletes of slots that are emptied; return how many were kept."""
        mine, kept = self.ranges[aside], 0
        for slot in range(self.read if aside else self.front, mine.walked):
            if now_ms // self.log.precision_ms <= slot or mine.waiting[slot]:
                break
            waiting, place = mine.deletes.get(slot, []), slot % SPAN + SPAN * aside
            if keep and waiting:
                self.chained[place] -= len(waiting)
                self.chained[KEPT] += len(waiting)
                kept += len(waiting)
                self.kept, self.kept_slot = self.kept + waiting, max(self.kept_slot, slot)
                del mine.deletes[slot]
                continue
            while waiting and self.room > 0:
                self._hand_on(Taken(waiting.pop(), 0, place, MARKS_DELETE, slot))
        return kept

    def _hand_on_kept(self) -> None:
        mine, last = self.ranges[1], self.aside_stop - 1
        if self.front <= max(self.kept_slot, self.straggler):
            return
        if self.read == last and mine.walked == self.aside_stop:
            if not mine.waiting[last] and not mine.deletes.get(last):
                while self.kept and self.room > 0:
                    self._hand_on(Taken(self.kept.pop(), 0, KEPT, MARKS_DELETE, self.kept_slot))

    def _hand_on(self, taken: Taken) -> None:
        self.out.append(taken)
        self.room -= 1

    def may_pass(self, aside: int) -> bool:
        """Whether all that the first slot of a range held was handed on."""
        mine, slot = self.ranges[aside], self.read if aside else self.front
        if mine.walked <= slot or mine.waiting[slot] or mine.deletes.get(slot):
            return False
        return not (aside and slot + 1 == self.aside_stop) or not (
            self.kept or self.front <= self.straggler
        )

    def passes(self, aside: int) -> None:
        """Pass it."""
        was_aside = self.is_aside()
        self.front += not aside
        if not was_aside or (aside and self.read + 1 == self.aside_stop):
            self.read = self.front
        else:
            self.read += aside
