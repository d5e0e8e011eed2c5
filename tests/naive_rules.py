"""Slow, obvious twins of the rules: when a timer is due, where it waits, what an entry stands for.

Times are in milliseconds; a slot is named by its number, time // precision.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.naive_index import QUEUE_BLANK, Entry, Unit
from tests.naive_message import Message

WRITE_TIME_BEHIND_MS_MAX = 2_000_000_000
UINT32_MAX = 0xFFFFFFFF
KEY_SEPARATOR = "+"
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


# ------------------------------------------------------------------------ identity


class UniqueKey(NamedTuple):
    """What a `UNIQ_KEY` of ours says: 48, 48 and 32 bits."""

    due_ms: int
    message_offset: int
    store_tag: int


def encode_unique_key(key: UniqueKey) -> str:
    """32 upper-case hex digits."""
    return f"{key.due_ms:012X}{key.message_offset:012X}{key.store_tag:08X}"


def decode_unique_key(text: str, store_tag: int) -> UniqueKey | None:
    """Ours are told by the store's tag; None is a producer's key."""
    if not re.fullmatch("[0-9A-F]{32}", text):
        return None
    key = UniqueKey(int(text[:12], 16), int(text[12:24], 16), int(text[24:], 16))
    return key if key.store_tag == store_tag else None


def fnv_1a(data: bytes, state: int) -> int:
    """FNV-1a over bytes, from a state on, modulo 2^64."""
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


def identity(topic: bytes, key: bytes, store_tag: int) -> tuple[int, int]:
    """What tells a timer from all others, as two signed words: a key of ours names the offset of
    the first put; any other timer is told by a hash of topic and key.
    """
    ours = decode_unique_key(key.decode("latin-1"), store_tag)
    if ours is not None:
        return -1, ours.message_offset
    high = fnv_1a(key, fnv_1a(topic, 0x4BF29CE484222325) ^ 0x2B)
    low = fnv_1a(topic, fnv_1a(key, 0x1B873593CC9E2D51) ^ 0x2B)
    return (0 if high == 2**64 - 1 else signed_64(high)), signed_64(low)


def target_identity(topic: bytes, named: bytes, store_tag: int) -> tuple[int, int]:
    """The identity of the timer that a delete names: real topic, `+`, unique key, or the key."""
    return identity(topic, named.removeprefix(topic + b"+"), store_tag)


def signed_64(value: int) -> int:
    """An unsigned 64-bit number as a signed one."""
    return value - 2**64 if value >= 2**63 else value


# ----------------------------------------------------------------------------- due


def broker_out_ms(deliver_ms: int, precision_ms: int) -> int:
    """`TIMER_OUT_MS` as a broker writes it: 1704 becomes 1000, and 2000 becomes 1000 too."""
    if deliver_ms % precision_ms == 0:
        return deliver_ms - precision_ms
    return deliver_ms // precision_ms * precision_ms


def due_ms(properties: Mapping[str, str], precision_ms: int, store_tag: int) -> int:
    """The instant at which a pending message may first be handed out.

    Ours is exact. A broker's was rounded down; what the producer asked for still stands beside
    it, unless the two do not belong together.
    """
    out_ms = int(properties["TIMER_OUT_MS"])
    if decode_unique_key(properties.get("UNIQ_KEY", ""), store_tag):
        return out_ms
    deliver_ms = int(properties.get("TIMER_DELIVER_MS", out_ms + precision_ms))
    if out_ms <= deliver_ms <= out_ms + precision_ms:
        return deliver_ms
    return out_ms + precision_ms


# ----------------------------------------------------------------------- placement


class Wheel(NamedTuple):
    """The sizes and cursors that placement looks at."""

    precision_ms: int
    slot_count: int
    roll_window: int
    read: int
    claimed: int = 0  # the claim cursor

    @property
    def hop(self) -> int:
        """The longest hop that leads ahead."""
        return self.roll_window - 1

    @property
    def top(self) -> int:
        """No unit may wait in this slot or a later one."""
        return self.read + 2 * self.slot_count


class Place(NamedTuple):
    """Where a unit goes: its slot, its time to the millisecond, and whether it rolls from there."""

    slot: int
    time_ms: int
    is_roll: bool


def place(out_ms: int, now_ms: int, wheel: Wheel) -> Place:
    """The slot of a timer whose `TIMER_OUT_MS` is `out_ms`."""
    own = out_ms // wheel.precision_ms
    base = max(now_ms // wheel.precision_ms, wheel.read, wheel.claimed - 1)
    limit = min(base + wheel.roll_window, wheel.top)
    if own < limit:
        if own < wheel.read:
            return Place(wheel.read, wheel.read * wheel.precision_ms, False)
        return Place(own, out_ms, False)
    hops = -(-(own - limit + 1) // wheel.hop)  # The smallest k with own − k · hop < limit.
    return Place(
        own - hops * wheel.hop, out_ms - hops * wheel.hop * wheel.precision_ms, is_roll=True
    )


def may_have_rolled(due_ms: int, put_ms: int, wheel: Wheel) -> bool:
    """Whether a timer was put further ahead than any slot of its own may be."""
    ahead = due_ms // wheel.precision_ms - put_ms // wheel.precision_ms
    return ahead >= wheel.roll_window or ahead >= wheel.slot_count


def grid_slots(due: int, wheel: Wheel, claimed: int) -> list[int]:
    """The slots in which the timer of this due slot can wait, nearest first."""
    slots = [slot for slot in range(due, claimed - 1, -wheel.hop) if slot < wheel.top]
    return slots[::-1]


def write_ms(slot: int, now_ms: int, precision_ms: int) -> int:
    """A unit's write time: now rounded down, moved to where the difference fits 31 bits."""
    slot_ms = slot * precision_ms
    floored_ms = now_ms // precision_ms * precision_ms
    return min(max(floored_ms, slot_ms - WRITE_TIME_BEHIND_MS_MAX), slot_ms)


def unit_extra(exact_due_ms: int, unit_time_ms: int, is_roll: bool) -> int:
    """The last four bytes of a unit of ours: the maximum means that the message must be read."""
    value = exact_due_ms // 1000 if is_roll else exact_due_ms - unit_time_ms
    return value if 0 <= value <= UINT32_MAX else UINT32_MAX


def due_of_unit(unit: Unit) -> tuple[int, int] | None:
    """The first and the last millisecond at which a timer may be due; None: it is not said."""
    by_broker = unit.crc == 0 and unit.extra == 0
    if unit.extra == 2**32 - 1 or by_broker:
        return None
    if unit.magic & 2:
        return unit.extra * 1_000, unit.extra * 1_000 + 999
    return unit.time_ms + unit.extra, unit.time_ms + unit.extra


def leads_to(unit: Unit, precision_ms: int, hop_ms: int) -> int | None:
    """The slot in which a unit's timer is due; None where the unit does not say it.

    A roll says in which second its timer is due. Its hops lead to the timer's `TIMER_OUT_MS`, which
    is at most one precision earlier: the last hop that is not past that second.
    """
    if not unit.is_roll:
        return unit.time_ms // precision_ms
    by_broker = (unit.crc, unit.extra) == (0, 0)
    if by_broker or unit.extra == UINT32_MAX or hop_ms < precision_ms + 1000:
        return None
    second_end_ms = unit.extra * 1000 + 999
    if unit.time_ms + hop_ms > second_end_ms:
        return None
    past_ms = (second_end_ms - unit.time_ms) % hop_ms
    return (second_end_ms - past_ms) // precision_ms


def broker_place(out_ms: int, write_time_ms: int, precision_ms: int, roll_window: int) -> Place:
    """RocketMQ's own placement, which depends on the write time."""
    window_ms = roll_window * precision_ms
    beyond_ms = out_ms - write_time_ms - window_ms
    if beyond_ms < 0:
        time_ms = out_ms
    elif beyond_ms < roll_window // 3 * precision_ms:
        time_ms = write_time_ms + roll_window // 2 * precision_ms
    else:
        time_ms = write_time_ms + window_ms
    return Place(time_ms // precision_ms, time_ms, beyond_ms >= 0)


def slot_index(slot: int, slot_count: int) -> int:
    """Where a slot lies in the wheel, which has twice the slot count."""
    return slot % (2 * slot_count)


def rejection_probability(count: int, limit: int) -> float:
    """Congestion: 0 up to the limit, 1 from twice the limit, linear between."""
    if count <= limit:
        return 0.0
    return min(1.0, (count - limit) / limit)


# -------------------------------------------------------------------------- chains


def walk_chain(units: Mapping[int, Unit], last_offset: int) -> Iterator[int]:
    """Offsets of a slot's units, newest first."""
    offset = last_offset
    while offset != -1:
        yield offset
        assert units[offset].prev_pos < offset
        offset = units[offset].prev_pos


def slot_net_count(units: Iterable[Unit]) -> int:
    """A slot's own count: a delete takes one away."""
    return sum(-1 if unit.is_delete else 1 for unit in units)


def link(units: Mapping[int, Unit], precision_ms: int, before: int) -> dict[int, list[int]]:
    """Each slot's units, oldest first, of all that stand before an offset."""
    chains: dict[int, list[int]] = {}
    for offset in sorted(offset for offset in units if offset < before):
        chains.setdefault(units[offset].time_ms // precision_ms, []).append(offset)
    return chains


def deletes(delete: Mapping[str, str], target: Mapping[str, str]) -> bool:
    """Whether a delete's properties name this target: with its real topic in front, or plainly."""
    named, key = delete["TIMER_DEL_UNIQKEY"], target["UNIQ_KEY"]
    return named in (target["REAL_TOPIC"] + KEY_SEPARATOR + key, key)


# -------------------------------------------------------------------- delay levels


def parse_levels(text: str) -> list[int]:
    """`1s 5m 2h 1d` as milliseconds."""
    unit_ms = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return [int(word[:-1]) * unit_ms[word[-1]] for word in text.split()]


LEVEL_SLACK_MS = 1_000


def level_is_due(due_ms: int, delay_ms: int, now_ms: int) -> bool:
    """Whether a level's message is due; a clock that went back must not keep it for longer."""
    return due_ms <= now_ms or due_ms > now_ms + delay_ms + LEVEL_SLACK_MS


# ----------------------------------------------------------------------- auditing


def judge_entry(
    entry: Entry, index: int, messages: Mapping[int, Message], topic: str, queue_id: int, stop: int
) -> str:
    """What an entry of a queue stands for; `messages`: those of the log, which starts at 0."""
    if entry == Entry(0, 0, 0):
        return "none"
    if (entry.message_offset, entry.message_bytes) == QUEUE_BLANK[:2]:
        return "blank"
    if entry.message_offset >= stop:
        return "behind"
    message = messages.get(entry.message_offset)
    if message is None or message.size_bytes != entry.message_bytes:
        return "wrong"
    named = message.topic, message.queue_id, message.queue_offset
    return "good" if named == (topic, queue_id, index) else "wrong"


def is_roll_in_place(
    due_ms: int, unit_ms: int, write_time_ms: int, precision_ms: int, window: int, *, ours: bool
) -> bool:
    """Whether a roll waits where placing it puts one."""
    if unit_ms >= due_ms:
        return False
    if not ours:
        return broker_place(due_ms, write_time_ms, precision_ms, window)[1:] == (unit_ms, True)
    hop_ms = (window - 1) * precision_ms
    return any(due_ms - hops * hop_ms == unit_ms for hops in range(1, 1 + due_ms // hop_ms))
