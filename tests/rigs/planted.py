"""Faults, one for each rule of a validation: how it is planted, where it must be found."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np

import timerstore
from tests import naive
from tests.rigs.patient import TIMERS, Patient
from tests.small_store import small
from timerstore import ManualClock
from timerstore.timelog.bytes import format as fmt
from timerstore.validation.smallfiles import (
    COUNTS_FILE,
    CURSORS_FILE,
    FLUSH_TIMES_FILE,
    GROUPS_FILE,
    LEVELS_FILE,
    cursor_at,
)
from timerstore.wheel.timerwheel import PAGE_BYTES

LOG, UNITS, WHEEL = "commitlog", "timerlog", "timerwheel"
CONFIG = small(1 << 13, 20_000, 1_300, roll_window_slots=6, retention_ms=3_600_000)
SECOND = timedelta(seconds=1)


def make_store(path: Path) -> None:
    """Timers that fired, rolled, were cancelled, moved, failed, or are pending; closed."""
    clock = ManualClock()
    with timerstore.open(path, config=CONFIG, clock=clock) as store:
        delays = [(i % 16) * 1_000 for i in range(64)]
        ids = store.put_many([b"body %02d" % i for i in range(64)], delay_ms=delays, tag="t")
        store.cancel_many(ids[60:62])
        store.reschedule(ids[46], delay=30 * SECOND)
        store.put(b"other", key="k", delay=2 * SECOND, topic="second")
        for level in (1, 1, 2, 4, 4):
            id = store.put(b"level %d" % level, delay_level=level, topic="leveled")
        store.cancel(id)
        clock.advance(10 * SECOND)
        batch = store.pull("default", timeout=0, max_count=5)
        for delivery in list(batch)[:2]:
            delivery.nack(8 * SECOND)
        batch.ack()
        clock.advance(timedelta(milliseconds=200))


LEVELS = fmt.LEVEL_TOPIC.decode()
Place = tuple[str, int]


@dataclass(frozen=True)
class Fault:
    """`plant` damages a store and returns where the rule must find it.

    `related`: other rules that the same damage breaks. `golden`: it needs a broker's store.
    """

    plant: Callable[[Patient], Place]
    related: frozenset[str] = frozenset()
    golden: bool = False


FAULTS: dict[str, Fault] = {}
OF_LEVELS: dict[str, Fault] = {}
"""Faults of delay levels' messages, of rules that wheel timers have too."""


def fault(
    rule: str, *related: str, golden: bool = False, of_level: bool = False
) -> Callable[[Callable[[Patient], Place]], Callable[[Patient], Place]]:
    """Enter a fault under the rule that it breaks."""

    def enter(plant: Callable[[Patient], Place]) -> Callable[[Patient], Place]:
        (OF_LEVELS if of_level else FAULTS)[rule] = Fault(plant, frozenset(related), golden)
        return plant

    return enter


# --- files, slots


@fault("files")
def _(store: Patient) -> Place:
    (store.path / "timerlog" / "notes.txt").write_text("mine")
    return UNITS, 0


@fault("closed")
def _(store: Patient) -> Place:
    """A byte behind the blank of a segment."""
    at = store.log.start + store.log.segment_bytes - 3
    store.log.flip(at)
    return LOG, at


@fault("json")
def _(store: Patient) -> Place:
    """A file for brokers, which no opening reads."""
    (store.path / "config" / "topics.json").write_text('{"topicConfigTable"}')
    return "config/topics.json", 19


@fault("slot_place")
def _(store: Patient) -> Place:
    slot = store.slot_of(store.units[store.chains(ahead=False)[0][0]])
    return WHEEL, store.set_slot(store.index_of(slot), magic=1) + fmt.SLOT_TIME_AT


@fault("slot_last")
def _(store: Patient) -> Place:
    one, other = store.chains(ahead=False)[:2]
    index = store.index_of(store.slot_of(store.units[one[0]]))
    return WHEEL, store.set_slot(index, last=other[-1]) + fmt.SLOT_LAST_AT


@fault("slot_first")
def _(store: Patient) -> Place:
    chain = store.chains(ahead=True, at_least=2)[0]
    index = store.index_of(store.slot_of(store.units[chain[0]]))
    return WHEEL, store.set_slot(index, first=chain[1]) + fmt.SLOT_FIRST_AT


@fault("slot_count")
def _(store: Patient) -> Place:
    chain = store.chains(ahead=True)[0]
    index = store.index_of(store.slot_of(store.units[chain[0]]))
    return WHEEL, store.set_slot(index, count=77) + fmt.SLOT_COUNT_AT


@fault("chain")
def _(store: Patient) -> Place:
    one, other = store.chains(ahead=False, at_least=2)[:2]
    store.set_unit(other[1], prev_pos=one[0])
    return UNITS, other[1]


@fault("chain_shared", "unreached", "slot_count")
def _(store: Patient) -> Place:
    chain = store.chains(ahead=True, at_least=3)[0]
    store.set_unit(chain[2], prev_pos=chain[0])
    return UNITS, chain[2]


@fault("unreached")
def _(store: Patient) -> Place:
    """The last put never reached the wheel."""
    chain = store.chains(ahead=True, at_least=2)[0]
    slot = store.slot_of(store.units[chain[0]])
    less = -1 if store.units[chain[-1]]["magic"] & fmt.UNIT_DELETE else 1
    count = int(store.slots[store.index_of(slot)]["count"]) - less
    store.set_slot(store.index_of(slot), last=chain[-2], count=count)
    return UNITS, chain[-1]


@fault("wheel_sums")
def _(store: Patient) -> Place:
    """A slot that has passed, whose units nobody looks for any more, is gone."""
    slot = store.slot_of(store.units[store.chains(ahead=False)[0][0]])
    at = store.index_of(slot) * fmt.SLOT_BYTES
    with open(store.path / "timerwheel", "r+b") as file:
        file.seek(at)
        file.write(bytes(fmt.SLOT_BYTES))
    return WHEEL, at // PAGE_BYTES * PAGE_BYTES


# --- units


@fault("unit_sound", "enqueued")
def _(store: Patient) -> Place:
    chain = store.chains(ahead=False, at_least=3)[0]
    store.units_log.flip(chain[1] + fmt.UNIT_CRC_AT)
    return UNITS, chain[1]


@fault("unit_message", "enqueued")
def _(store: Patient) -> Place:
    chain = store.chains(ahead=False)[0]
    fired = next(m.offset for m in store.messages.values() if m.topic == "default")
    store.set_unit(chain[0], message_offset=fired)
    return UNITS, chain[0]


@fault("unit_size")
def _(store: Patient) -> Place:
    offset = store.chains(ahead=True)[0][0]
    store.set_unit(offset, message_size=int(store.units[offset]["message_size"]) + 1)
    return UNITS, offset


@fault("unit_topic")
def _(store: Patient) -> Place:
    offset = store.chains(ahead=True)[0][0]
    store.set_unit(offset, topic_hash=int(store.units[offset]["topic_hash"]) ^ 1)
    return UNITS, offset


@fault("unit_kind", "slot_count")
def _(store: Patient) -> Place:
    offset = store.chains(ahead=False)[0][0]
    store.set_unit(offset, magic=int(store.units[offset]["magic"]) ^ fmt.UNIT_DELETE)
    return UNITS, offset


@fault("unit_slot")
def _(store: Patient) -> Place:
    """A roll off its timer's grid, by a millisecond."""
    at = next(
        offset
        for chain in store.chains(ahead=True)
        for offset in chain
        if store.units[offset]["magic"] & fmt.UNIT_ROLL
    )
    store.set_unit(at, delta_ms=int(store.units[at]["delta_ms"]) + 1)
    return UNITS, at


# --- messages, timers


def _fired(store: Patient) -> list[naive.Message]:
    found = [m for m in store.messages.values() if m.topic == "default"]
    return sorted(found, key=lambda message: message.offset)


@fault("message_sound")
def _(store: Patient) -> Place:
    message = _fired(store)[3]
    store.log.flip(message.offset + 88)
    return LOG, message.offset


@fault("enqueued", "accounted", "pending_count")
def _(store: Patient) -> Place:
    """A unit was written for the wrong message: one has two that wait, the other none."""
    for chain in store.chains(ahead=True, at_least=2):
        units = [store.units[offset] for offset in chain]
        for offset, unit in zip(chain[1:], units[1:], strict=True):
            names = ["message_size", "topic_hash", "magic"]
            if unit["magic"] & fmt.UNIT_DELETE == 0 and unit[names] == units[0][names]:
                store.set_unit(offset, message_offset=int(units[0]["message_offset"]))
                return LOG, int(units[0]["message_offset"])
    raise AssertionError("no slot has two timers alike")


@fault("accounted", "pending_count")
def _(store: Patient) -> Place:
    """The read cursor went on, and nothing fired."""
    slot = store.slot_of(store.units[store.chains(ahead=True)[-1][0]]) + 1
    store.set_checkpoint(read_ms=slot * store.precision_ms, claimed_slot=slot)
    copied = {int(m.properties.get("TIMER_ORIGIN", -1)) for m in store.messages.values()}
    deleted = {m.properties.get("TIMER_DEL_UNIQKEY", "+")[-32:] for m in store.messages.values()}
    lost = [
        m.offset
        for m in store.messages.values()
        if m.topic == TIMERS
        and m.offset not in copied
        and "TIMER_DEL_UNIQKEY" not in m.properties
        and m.properties["UNIQ_KEY"] not in deleted
    ]
    return LOG, min(lost)


@fault("once")
def _(store: Patient) -> Place:
    message = _fired(store)[0]
    store.append(message)
    return LOG, int(message.properties["TIMER_ORIGIN"])


@fault("succession")
def _(store: Patient) -> Place:
    message = _fired(store)[0]
    origin = int(message.properties["TIMER_ORIGIN"]) + 1
    properties = message.properties | {"TIMER_ORIGIN": f"{origin:020d}"}
    return LOG, store.append(replace(message, properties=properties))


@fault("early")
def _(store: Patient) -> Place:
    message = _fired(store)[-1]
    due_ms = int(message.properties["TIMER_OUT_MS"])
    store.set_message(message.offset, stored_ms=due_ms - 1)
    return LOG, message.offset


@fault("cancelled")
def _(store: Patient) -> Place:
    """A timer that was cancelled is fired nevertheless."""
    named = [m.properties.get("TIMER_DEL_UNIQKEY") for m in store.messages.values()]
    key = next(name for name in named if name is not None).rpartition("+")[2]
    target = [m for m in store.messages.values() if m.properties.get("UNIQ_KEY") == key][-1]
    now_ms = int(target.properties["TIMER_OUT_MS"])
    copy = replace(naive.fired_copy(target, target.stored_ms, now_ms), stored_ms=now_ms)
    return LOG, store.append(copy)


@fault("reached_once")
def _(store: Patient) -> Place:
    """A store that was merely closed says that it was handed over."""
    store.set_checkpoint(handed_over=True)
    ahead = {int(u["message_offset"]) for u in _units_ahead(store)}
    origins = {int(m.properties.get("TIMER_ORIGIN", -1)) for m in store.messages.values()}
    return LOG, min(ahead & origins)


@fault("settled")
def _(store: Patient) -> Place:
    """Opening would begin to look for copies behind those of the slot that has begun."""
    ahead = {int(u["message_offset"]) for u in _units_ahead(store)}
    copies = [
        m.offset
        for m in store.messages.values()
        if int(m.properties.get("TIMER_ORIGIN", -1)) in ahead
    ]
    store.set_checkpoint(scan_from=store.log_end)
    return LOG, min(copies)


def _units_ahead(store: Patient) -> list[np.void]:
    return [unit for unit in store.units.values() if store.slot_of(unit) >= store.read_slot]


# --- delay levels


def _in_level(store: Patient, level: int) -> list[naive.Message]:
    found = [m for m in store.messages.values() if (m.topic, m.queue_id) == (LEVELS, level)]
    return sorted(found, key=lambda message: message.offset)


def _delivered(store: Patient) -> list[naive.Message]:
    found = [m for m in store.messages.values() if m.topic == "leveled"]
    return sorted(found, key=lambda message: message.offset)


@fault("level_accounted", "pending_count")
def _(store: Patient) -> Place:
    """The level's offset went on, and nothing was delivered."""
    store.set_level(3, 1)
    return LOG, _in_level(store, 3)[0].offset


@fault("once", of_level=True)
def _(store: Patient) -> Place:
    store.append(_delivered(store)[0])
    return LOG, _in_level(store, 0)[0].offset


@fault("early", of_level=True)
def _(store: Patient) -> Place:
    copy = _delivered(store)[0]
    store.set_message(copy.offset, stored_ms=int(copy.properties["TIMER_OUT_MS"]) - 1)
    return LOG, copy.offset


@fault("cancelled", "pending_count", of_level=True)
def _(store: Patient) -> Place:
    """A message that was cancelled is delivered nevertheless, as is the one before it."""
    store.set_level(3, 2)
    kept, cancelled = _in_level(store, 3)
    copy = _delivered(store)[0]
    for source in (kept, cancelled):
        mine = {"UNIQ_KEY": source.properties["UNIQ_KEY"], "TIMER_ORIGIN": f"{source.offset:020d}"}
        due_ms = int(source.properties["UNIQ_KEY"][:12], 16)
        mine["TIMER_OUT_MS"] = str(due_ms)
        offset = store.append(
            replace(copy, properties=copy.properties | mine, stored_ms=due_ms, body=source.body)
        )
        store.reread()
    return LOG, offset


@fault("settled", of_level=True)
def _(store: Patient) -> Place:
    """A level goes back to what it delivered, and opening begins to look behind that copy."""
    store.set_level(1, 0)
    store.set_checkpoint(scan_from=store.log_end)
    (source,) = _in_level(store, 1)
    copies = {int(m.properties["TIMER_ORIGIN"]): m.offset for m in _delivered(store)}
    return LOG, copies[source.offset]


# --- queues


@fault("entry", "entry_message")
def _(store: Patient) -> Place:
    size = int(store.entries("default")[4]["size"])
    return "consumequeue/default/0", store.set_entry("default", 4, size=size + 1)


@fault("entry_tags")
def _(store: Patient) -> Place:
    return "consumequeue/default/0", store.set_entry("default", 4, tags_code=1)


def _change_due(store: Patient) -> Place:
    queue = min(store.path.glob(f"consumequeue/{LEVELS}/*"))
    file = min(queue.iterdir())
    data = bytearray(file.read_bytes())
    data[fmt.ENTRY_BYTES - 1] ^= 1
    file.write_bytes(data)
    return f"consumequeue/{LEVELS}/{queue.name}", 0


fault("level_due", golden=True)(_change_due)
fault("level_due", of_level=True)(_change_due)


@fault("entry_message")
def _(store: Patient) -> Place:
    """An entry too many."""
    entries = store.entries("default")
    end = int((entries["size"] > 0).sum())
    last = entries[end - 1]
    at = store.set_entry("default", end, offset=int(last["offset"]), size=int(last["size"]))
    return "consumequeue/default/0", at


@fault("queue_order", "entry", "entry_message")
def _(store: Patient) -> Place:
    message = _fired(store)[4]
    store.set_message(message.offset, queue_offset=message.queue_offset + 1)
    return LOG, message.offset


# --- cursors


@fault("cursors")
def _(store: Patient) -> Place:
    store.set_checkpoint(claimed_slot=store.read_slot - 1)
    return CURSORS_FILE, cursor_at("claimed_slot")


@fault("cursor_copies")
def _(store: Patient) -> Place:
    file = store.path / CURSORS_FILE
    data = bytearray(file.read_bytes())
    data[fmt.CHECKPOINT_COPY_AT + 7] ^= 1
    file.write_bytes(data)
    return CURSORS_FILE, fmt.CHECKPOINT_COPY_AT


@fault("flush_times")
def _(store: Patient) -> Place:
    """RocketMQ's file says another end of the log than the cursors."""
    store.set_flushed(store.log_end - 1)
    return FLUSH_TIMES_FILE, 32


@fault("level_offsets")
def _(store: Patient) -> Place:
    store.set_level(0, 7)
    return LEVELS_FILE, 0


@fault("group_offsets")
def _(store: Patient) -> Place:
    def move(content: dict) -> None:
        content["offsetTable"]["default@default"]["0"] = 1_000

    store.change_json(GROUPS_FILE, move)
    return GROUPS_FILE, 0


@fault("pending_count")
def _(store: Patient) -> Place:
    def add(content: dict) -> None:
        content["timingCount"]["default"]["count"] += 1

    store.change_json(COUNTS_FILE, add)
    return COUNTS_FILE, 0
