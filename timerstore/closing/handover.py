"""Handover: leaves a directory that a RocketMQ broker can go on with.

A broker knows a slot as read or not read, and matches a delete with its timer only inside one slot.
So the last slot from which anything was taken is finished and nothing later is taken; each
cancelled timer gets a delete unit in its own slot; the last unit of the timer log is made the last
entry of the timer topic's queue, from which a broker works out how far it came; units that
cleaning has superseded are cut out of their slots; a broker would fire them; and files that a
broker would remove too soon are made to stay.
"""

from __future__ import annotations

import time
from datetime import timedelta

import numpy as np

from timerstore.closing.broker_files import check_wheel, open_before_ms, write_broker_files
from timerstore.closing.close import close
from timerstore.consuming.consuming import Consuming
from timerstore.core.clockmark import remove_clock_mark
from timerstore.core.core import Core
from timerstore.errors import TimerStoreError
from timerstore.services.broker.broker_damage import check_whole
from timerstore.services.broker.broker_deletes import link_delete
from timerstore.services.broker.cut_chains import cut_chains, move_units, passed_slot_ms
from timerstore.services.broker.full_files import (
    NamedDelete,
    ends_file,
    link_again,
    misleading_units,
    name_units,
)
from timerstore.services.broker.reached import check_reached
from timerstore.services.calls.deletes import append_all, compose_delete
from timerstore.services.engine.engine import Engine
from timerstore.services.looking.log_units import live_units
from timerstore.services.looking.read_pending import map_alone, read_timers, reading_for_broker
from timerstore.services.running.provide import provide
from timerstore.services.running.steps import run
from timerstore.services.world.clock import ManualClock
from timerstore.services.world.rings import waiting_places
from timerstore.services.world.state import ENQUEUE_GET, ENQUEUE_PUT
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import decode_message
from timerstore.timelog.bytes.text import java_hash_of
from timerstore.timelog.writing.compose import Staged, stage_messages

_HANDOVER_TOPIC = "timerstore_handover"
_REAL_TOPIC, _DELETES = fmt.PROPERTY_REAL_TOPIC.decode(), fmt.PROPERTY_DELETES.decode()


def handover(core: Core, consuming: Consuming) -> int | None:
    """Make the store fit for a broker and close it; see `TimerStore.handover`."""
    core.check_open()
    core.check_unlocked()
    engine, world = core.engine, core.engine.world
    precision = engine.precision_ms
    check_wheel(engine)
    if engine.read_slot > core.clock.now_ms // precision + 1:
        raise TimerStoreError(
            f"The store has fired timers up to {engine.read_slot * precision} (epoch ms), but "
            "the clock was set back and is before that. Set the clock right, or wait until then."
        )
    if core.switches.find("firing", core.clock.now_ms):
        raise TimerStoreError('Firing is paused. Call resume("firing"), then hand over.')
    check_whole(engine)
    core.refuse("The store is being handed over to a broker. Put into the broker.")
    try:
        while core.gate.others_inside():  # those who put before it was refused
            time.sleep(0.0005)
        with core.gate.guard():
            _stop_levels(core)
            _finish_cleaning(core)
            _finish_slot(core)
            core.flusher.flush()  # F and the copies of what is cut off have to be durable before
            cut_chains(engine)
            core.flusher.flush()  # the wheel leads past what is moved now
            move_units(engine)
            named = _name_topics(core)
            last = _append_last(core)
            _keep_files(core, last)
            _place_deletes(core, last, named)
            until_ms = open_before_ms(engine)
            _link_last(core)
            check_reached(engine)
            core.check_open()
            write_broker_files(core, until_ms)
            engine.keys.remove()
            remove_clock_mark(engine)
            engine.handed_over = True
    except BaseException:
        world.callers.take_limit_ms = 1 << 62
        engine.levels.stop = 0
        core.cleaner.resume()
        core.runner.resume()
        core.refuse(None)
        raise
    core.refuse(None)
    close(core, consuming, flush=True)
    return until_ms


# --- the delay levels


def _stop_levels(core: Core) -> None:
    """Deliver nothing from the levels any more; refuse if a broker would deliver too much."""
    engine = core.engine
    with engine.locks.guard():
        cancelled = engine.cancelled.set.level_count
        engine.levels.stop = int(cancelled == 0)
    if cancelled:
        raise TimerStoreError(
            f"{cancelled} cancelled messages still wait in a delay level, and a broker would "
            "deliver them. Hand over after their time has passed."
        )


# --- finish what was begun


def _finish_cleaning(core: Core) -> None:
    """Copy nothing any more; fire what was left in place until F is past all that was copied."""
    core.cleaner.stop()
    while not core.cleaner.has_passed():
        core.check_open()
        _let_time_pass(core)


def _finish_slot(core: Core) -> None:
    """Fire until R is behind the last slot from which anything was taken, and up to now.

    A broker that opens skips what lies too far back.
    """
    engine, world = core.engine, core.engine.world
    precision = engine.precision_ms
    with engine.locks.guard():
        last = max(world.dequeue_put.frontier_ms, _latest_taken_ms(engine)) // precision
        # What hopped has a unit in the slot that it hopped from as well, until R is past that; what
        # earlier lives hopped is cut out of its chains.
        last = max(last, world.dequeue_get.claimed_slot - 1)
        last = max(last, core.clock.now_ms // precision - 1)
        world.callers.take_limit_ms = (last + 1) * precision - 1
    while True:
        with engine.locks.guard():
            linked = world.enqueue_put.linked_index == engine.queues.next_index(0)
            if engine.read_slot > last and linked:
                break
            if engine.read_slot <= last and core.clock.now_ms >= (last + 2) * precision:
                last += 1  # a broker's timer of this slot is due in the next one
                world.callers.take_limit_ms = (last + 1) * precision - 1
        core.check_open()
        _let_time_pass(core)
    core.runner.stop()


def _let_time_pass(core: Core) -> None:
    """Wait a little; on a manual clock until the next slot: to wait is to move it."""
    precision = core.engine.precision_ms
    if isinstance(core.clock, ManualClock):
        core.clock.advance(timedelta(milliseconds=precision - core.clock.now_ms % precision))
    else:
        time.sleep(0.005)


# --- deletes beside their timers


def _name_topics(core: Core) -> dict[tuple[int, int], NamedDelete]:
    """Append a delete that names its topic for each that does not; return them by their targets.

    A broker of 5.5 leaves the topic out by default, and each broker matches only one form.
    """
    engine, found = core.engine, dict[tuple[int, int], NamedDelete]()
    if not engine.cancelled.set.count:
        return found
    reading, earliest_ms = reading_for_broker(engine), _earliest_ms(core)
    for units in live_units(engine):
        deletes = units[units.magic & fmt.UNIT_DELETE != 0]
        columns = read_timers(engine, deletes.message, reading, locate=map_alone)
        targets = zip(columns.high.tolist(), columns.low.tolist(), strict=True)
        for who, offset, ms in zip(
            targets, deletes.message.tolist(), deletes.ms.tolist(), strict=True
        ):
            says = decode_message(engine.commitlog.view(offset), offset).properties
            topic, target = says[_REAL_TOPIC], says[_DELETES]
            if who not in found and not target.startswith(f"{topic}+"):
                found[who] = _append_delete(core, topic, target, max(earliest_ms, ms))
    return found


def _place_deletes(
    core: Core, last: NamedDelete, named: dict[tuple[int, int], NamedDelete]
) -> None:
    """Link a delete into the slot of each cancelled timer that a broker would still reach.

    None as the last unit of a file: they stand in no order. `named`: see `_name_topics`.
    """
    engine = core.engine
    if not engine.cancelled.set.count:
        return
    deletes = {who: (each.message, each.size) for who, each in named.items()}
    beside: set[tuple[int, int, int]] = set()
    timers: list[tuple[tuple[int, int], int, int]] = []
    reading = reading_for_broker(engine)
    for units in live_units(engine):
        columns = read_timers(engine, units.message, reading, locate=map_alone)
        times_ms = units.ms.tolist()
        of_what = np.stack((columns.high, columns.low, columns.topic_hash), axis=1)
        for i, (high, low, topic_hash) in enumerate(of_what.tolist()):
            who = (high, low)
            if units.magic[i] & fmt.UNIT_DELETE:
                if who in named:
                    continue
                message, size = units.message[i], units.size[i]
                deletes[who] = int(message), int(size)
                if not units.magic[i] & fmt.UNIT_ROLL:  # which a broker only rolls on
                    beside.add((*who, times_ms[i]))
            else:
                timers.append((who, times_ms[i], topic_hash))
    for who, unit_ms, topic_hash in timers:
        if who not in deletes or (*who, unit_ms) in beside:
            continue
        message, size = deletes[who]
        mine = NamedDelete(message, size, topic_hash)
        while ends_file(engine):
            link_delete(engine, passed_slot_ms(engine), last, core.clock.now_ms)
        link_delete(engine, unit_ms, mine, core.clock.now_ms)


# --- the last unit is the last entry


def _append_last(core: Core) -> NamedDelete:
    """Append a delete of nothing: once it is linked, the last unit is of the last entry."""
    return _append_delete(core, _HANDOVER_TOPIC, "0" * 32, _earliest_ms(core))


def _earliest_ms(core: Core) -> int:
    """Return when what is appended now can be due."""
    return max(core.clock.now_ms, core.engine.read_slot * core.engine.precision_ms)


def _append_delete(core: Core, topic: str, key: str, due_ms: int) -> NamedDelete:
    engine, now_ms = core.engine, core.clock.now_ms
    as_bytes, key_bytes = (each.encode("utf-8", "surrogateescape") for each in (topic, key))
    message = compose_delete(engine, as_bytes, key_bytes, due_ms, now_ms)
    stage = core.take_stage()
    count = stage_messages(stage, [Staged(message, 0, 0, -1, 0)])
    append_all(engine, stage, count, now_ms, together=True)
    core.free_stage(stage)
    entry = engine.queues.read(0, engine.queues.next_index(0) - 1, 1)[0]
    return NamedDelete(int(entry["offset"]), int(entry["size"]), java_hash_of(topic))


def _keep_files(core: Core, last: NamedDelete) -> None:
    """Have a broker keep the files of the timer log for as long as their units are needed."""
    engine = core.engine
    while True:
        dead, live = misleading_units(engine)
        if not len(dead) + len(live):
            return
        if len(live):
            link_again(engine, live)
            core.flusher.flush()  # from that the next opening knows which of both counts
            cut_chains(engine)
            core.flusher.flush()  # the wheel leads past what is renamed now
        name_units(engine, np.concatenate([dead, live]), last)


def _link_last(core: Core) -> None:
    """Link what was appended last."""
    engine, now_ms, world = core.engine, core.clock.now_ms, core.engine.world
    world.callers.take_limit_ms = engine.read_slot * engine.precision_ms - 1
    while world.enqueue_put.linked_index < engine.queues.next_index(0):
        run(engine.world, ENQUEUE_GET, ENQUEUE_PUT, now_ms, now_ms)
        service = engine.needing()
        if service >= 0:
            provide(engine, service)


def _latest_taken_ms(engine: Engine) -> int:
    """Return the latest time from which anything was taken that is not appended yet."""
    ring = engine.world.dequeue_ring
    at = waiting_places(ring.ends)
    is_delete = ring.info[at] & fmt.UNIT_DELETE != 0
    taken_ms = ring.bucket_ms[at][~is_delete]  # of a delete it is no time
    return int(taken_ms.max()) if len(taken_ms) else -1
