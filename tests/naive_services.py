"""Slow, obvious twins of the services, each from what it takes to what it hands on.

A twin is told what stands in the log, which segments can be read, how much room there is. Like all
of `tests/naive.py` it imports nothing of timerstore.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tests import naive

RING = 4_096
COLD = 256  # entries of the dequeue ring before which what was owed waits while pages are missing
SPAN = 8  # slots that are walked into a ring before its first are emptied
PLACES = 64  # of claimed slots: half the wheel
LEAD = 1
FRONT, OWED = 0, 1
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

    @property
    def info(self) -> int:
        """All but the message and where it was taken from, as the dequeue ring has it."""
        return self.size << 32 | self.place << 8 | self.magic


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
    """From the timer topic's queue to the enqueue ring."""

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
            elif self.pass_index == self.got and not self.lost:
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
    """From the enqueue ring to the timer log, the wheel, and the late ring."""

    wheel: naive.Wheel
    claimed: int
    segment_bytes: int
    late_room: int = RING
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
        if late.slot < self.claimed:
            self.late.append(late)
            self.late_count[late.slot % PLACES] += 1
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
class DequeueGet:
    """From the wheel's chains and the late ring to the dequeue ring, over the near wheel."""

    log: Log
    segment_bytes: int  # of the timer log
    sizes: naive.Wheel
    read: int  # the read cursor
    first_max: int = 0  # work that is done for what is owed before all else
    units: dict[int, naive.Unit] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)  # of each slot's chain
    unmapped: set[int] = field(default_factory=set)  # segments of the timer log
    damaged: set[int] = field(default_factory=set)  # units
    done: set[int] = field(default_factory=set)
    room: int = RING
    is_cold: bool = False  # pages were missing lately
    end: int = 0  # of the timer log
    first_hop: dict[int, int] = field(default_factory=dict)  # by the slot that was hopped from
    chained: Counter[int] = field(default_factory=Counter)  # by the slot's place
    out: list[Taken] = field(default_factory=list)
    need: tuple[str, int] = NO_NEED

    def __post_init__(self) -> None:
        self.claimed = self.owed_slot = self.walked = self.read
        self.walks = False  # whether the front goes on with the slot before the claim cursor
        self.owed: dict[int, int] = {}  # by slot: the unit at which its claim goes on
        self.first = self.first_max
        self.emptied = [self.read * self.log.precision_ms] * 2
        self.buckets: list[dict[int, list[Waiting]]] = [{}, {}]
        self.deletes: dict[int, list[int]] = {}  # by slot
        self.waiting: Counter[int] = Counter()  # in buckets, by slot

    def step(self, late: list[Late], now_ms: int) -> int:
        """Take late arrivals, claim, take what is due, hand deletes on; return the work done."""
        now_slot, before = now_ms // self.log.precision_ms, self.room
        done = self._jump(now_slot) + len(late)
        last = min(max(now_slot, self.read) + LEAD, self.read + PLACES - 1)
        stop, waits = self.read + SPAN, self.owed_slot < self._owed_stop() or self.room < RING
        used = any(self.claimed <= slot < stop for slot in self.last)
        if not waits and not any(self.buckets) and not used and last >= stop:
            last = stop - 1  # the read cursor comes there, and jumps
        owed_to = min(self._owed_stop(), self._ring_stop(OWED))
        ready = self._ready(max(self.claimed, now_slot), last)
        for each in late:
            self._insert(
                *(each.slot, FRONT, each.magic, each.message, each.size, each.due_ms, now_ms),
                is_overdue=now_slot > each.slot,
            )
        work = self._claim(last, now_ms, ready) + self._claim_owed(owed_to, now_ms)
        if self.owed_slot >= self._owed_stop() and not self.buckets[OWED]:
            self.first = self.first_max
        goes_first = not self.is_cold and self.first > 0 and self._is_owed_next(now_ms)
        for ring in (OWED, FRONT) if goes_first else (FRONT, OWED):
            if ring == OWED or not (goes_first and self._is_owed_next(now_ms)):
                self._take(ring, now_ms)
        if goes_first:
            self.first -= work + before - self.room
        self._hand_on_deletes(now_slot)
        emptied = owed_to <= self.owed_slot < min(self._owed_stop(), self._ring_stop(OWED))
        return done + work + before - self.room + emptied

    def _jump(self, now_slot: int) -> int:
        """Pass the slots without units if all that is claimed was passed; 1 if there are any."""
        if self.claimed != self.read:
            return 0
        to = min([now_slot, *(slot for slot in self.last if slot >= self.read)])
        if to <= self.read:
            return 0
        self.read = self.claimed = self.owed_slot = self.walked = to
        self.emptied = [max(ms, to * self.log.precision_ms) for ms in self.emptied]
        return 1

    def _owed_stop(self) -> int:
        return self.claimed - self.walks

    def _ring_stop(self, ring: int) -> int:
        return self.emptied[ring] // self.log.precision_ms + SPAN

    def _is_owed_next(self, now_ms: int) -> bool:
        until_ms = min(now_ms, self.emptied[FRONT]) if self.buckets[FRONT] else now_ms
        if self.owed_slot < min(self._owed_stop(), now_ms // self.log.precision_ms):
            if self.owed_slot * self.log.precision_ms <= until_ms:
                return True
        held = self.buckets[OWED]
        return bool(held) and (self.emptied[OWED] <= until_ms or OVERDUE in held)

    def _ready(self, first: int, last: int) -> int:
        """How many units the front may walk: up to one that is not in memory, if any lately was."""
        count = 0
        slots = [self.claimed - 1, *range(self.claimed, last + 1)]
        for slot in slots if self.walks else range(first, last + 1):
            offset = self.owed[slot] if slot < self.claimed else self.last.get(slot, -1)
            while offset >= 0 and self.is_cold:
                if offset // self.segment_bytes in self.unmapped:
                    return FAR
                unit = self.units[offset]
                if not unit.is_roll and self.log.is_unmapped(unit.message_offset):
                    return count
                count, offset = count + 1, unit.prev_pos
        return FAR

    def _insert(
        self,
        slot: int,
        ring: int,
        magic: int,
        message: int,
        size: int,
        due_ms: int,
        now_ms: int,
        *,
        is_overdue: bool = False,
        in_front: bool = False,
    ) -> None:
        if magic & (MARKS_DELETE | ROLL) == MARKS_DELETE:
            self.deletes.setdefault(slot, []).append(message)
            return
        precision = self.log.precision_ms
        if due_ms <= now_ms and (is_overdue or due_ms < slot * precision):
            at = OVERDUE
        else:
            at = due_ms = min(due_ms, (slot + 2) * precision)  # its own slot, or one later
            self.emptied[ring] = min(self.emptied[ring], due_ms)
        bucket = self.buckets[ring].setdefault(at, [])
        entry = Waiting(due_ms, message, size, slot, magic)
        bucket.insert(0 if in_front else len(bucket), entry)
        self.waiting[slot] += 1

    def _claim(self, last: int, now_ms: int, ready: int) -> int:
        precision, work = self.log.precision_ms, 0
        while True:
            slot = self.claimed
            if not self.walks:
                if slot > last:
                    return work
                if not self.buckets[FRONT]:
                    self.emptied[FRONT] = max(self.emptied[FRONT], slot * precision)
                self.owed[slot] = self.last.get(slot, -1)
                is_timely = now_ms // precision <= slot < self._ring_stop(FRONT)
                self.walks = is_timely and self.owed[slot] >= 0
                self.claimed, work = slot + 1, work + 1
                continue
            walked = self._walk(slot - 1, FRONT, now_ms, ready)
            ready, work = ready - walked, work + walked
            if self.owed[slot - 1] >= 0 and not (ready <= 0 and self.is_cold):
                return work
            self.walks = False

    def _claim_owed(self, stop: int, now_ms: int) -> int:
        work = 0
        while self.owed_slot < self._owed_stop():
            if self.owed[self.owed_slot] >= 0:
                if self.owed_slot >= stop:
                    break
                work += self._walk(self.owed_slot, OWED, now_ms, FAR)
                if self.owed[self.owed_slot] >= 0:
                    break
            self.owed_slot += 1
        self.walked = self.owed_slot
        return work

    def _walk(self, slot: int, ring: int, now_ms: int, most: int) -> int:
        done = 0
        while done < most and self.owed[slot] >= 0:
            offset = self.owed[slot]
            if not self._claim_unit(slot, ring, offset, now_ms):
                break
            self.owed[slot] = self.units[offset].prev_pos
            done += 1
        return done

    def _claim_unit(self, slot: int, ring: int, offset: int, now_ms: int) -> bool:
        if offset // self.segment_bytes in self.unmapped:
            self.need = "timerlog segment", offset
            return False
        if offset in self.damaged:
            self.need = "damaged timerlog", offset
            return False
        unit = self.units[offset]
        if unit.is_roll:
            return unit.message_offset in self.done or self._hop(slot, unit, now_ms)
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
                *(slot, ring, unit.magic, unit.message_offset, size, due_ms, now_ms),
                in_front=True,
            )
            self.chained[slot % PLACES] += 1
        return True

    def _hop(self, slot: int, unit: naive.Unit, now_ms: int) -> bool:
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
        wheel = self.sizes._replace(read=self.read, claimed=self.claimed)
        place = naive.place(out_ms, now_ms, wheel)
        magic, size = unit.magic & MARKS_DELETE | PLAIN, unit.message_bytes
        if place.slot <= slot:  # it leads nowhere: it is taken from where it waits
            self._insert(slot, OWED, magic, message, size, due_ms or 0, now_ms)
            self.chained[slot % PLACES] += 1
            return True
        is_late = place.slot < self.claimed
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
        self.first_hop.setdefault(slot, offset)
        if is_late:
            self._insert(place.slot, OWED, magic, message, size, due_ms or 0, now_ms)
            self.chained[place.slot % PLACES] += 1
        return True

    def _due_ms(self, message: int, otherwise_ms: int) -> int:
        found = self.log.messages.get(message)
        if found is None or "TIMER_OUT_MS" not in found.properties:
            return otherwise_ms
        return self.log.due_ms(message)

    def _take(self, ring: int, now_ms: int) -> None:
        precision, held = self.log.precision_ms, self.buckets[ring]
        slot, waits = self.owed_slot, self.owed_slot < self._owed_stop()
        if ring == FRONT:
            slot, waits = self.claimed - 1, self.walks
        limit = now_ms
        if waits:  # an earlier one of the slot may still be to come
            limit = min(limit, slot * precision - 1)
        left = RING - COLD if ring == OWED and self.is_cold else 0
        if held and self.room <= left:
            return
        for at in sorted(held):
            for entry in list(held[at]):
                is_due = entry.due_ms <= now_ms and not waits if at == OVERDUE else at <= limit
                if not is_due:  # the clock was set back: another of the bucket may be due
                    continue
                self._take_out(ring, at, entry)
                if self.room <= left:
                    self.emptied[ring] = max(self.emptied[ring], at)
                    return
        self.emptied[ring] = max(self.emptied[ring], limit + 1)

    def _take_out(self, ring: int, at: int, entry: Waiting) -> None:
        bucket = self.buckets[ring][at]
        bucket.remove(entry)
        if not bucket:
            del self.buckets[ring][at]
        self.waiting[entry.slot] -= 1
        place = entry.slot % PLACES
        self._hand_on(Taken(entry.message, entry.size, place, entry.magic, entry.due_ms))

    def _hand_on_deletes(self, now_slot: int) -> None:
        """Hand on the deletes of slots that are emptied, as all before them are."""
        for slot in range(self.read, min(self.walked, now_slot)):
            if self.waiting[slot]:
                break
            deletes = self.deletes.get(slot, [])
            while deletes and self.room > 0:
                self._hand_on(Taken(deletes.pop(), 0, slot % PLACES, MARKS_DELETE, slot))

    def _hand_on(self, taken: Taken) -> None:
        self.out.append(taken)
        self.room -= 1

    def may_pass(self, now_ms: int) -> bool:
        """Whether the read cursor's slot has ended, and all that it held was handed on."""
        slot = self.read
        is_over = self.walked > slot and now_ms // self.log.precision_ms > slot
        return is_over and not self.waiting[slot] and not self.deletes.get(slot)
