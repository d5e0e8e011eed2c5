"""How a store is closed, or made fit for a RocketMQ broker before.

The commit log, the queues, the offsets of groups and levels are a broker's as they are. The timer
index is made anew (`services/broker/for_broker.py`). So the services stop wherever they are: what
was fired has no unit any more, what was not has one. The store is as it was until the new index is
checked; then it is closed, and the index put in its place.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from timerstore.calls.consuming.consuming import Consuming
from timerstore.core.core import Core
from timerstore.core.directory import remove_clock_mark
from timerstore.errors import StoreFullError, TimerStoreError
from timerstore.services.broker.for_broker import NewIndex, check_whole, make_index, use_index
from timerstore.services.calls.appending import append_all, compose_delete
from timerstore.services.durable.flush import remove_abort
from timerstore.services.engine.engine import Engine
from timerstore.services.world.clock import ManualClock, unlisten
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.files.jsonfile import write_json
from timerstore.timelog.files.oserrors import told_of
from timerstore.timelog.writing.compose import Staged, stage_messages

# --- what a broker wants to read besides


BROKER_SLOT_COUNT: Final = 604_800
"""A broker's wheel has so many slots, twice, and no other number."""
SKIPPED_BELOW_SLOTS: Final = BROKER_SLOT_COUNT - 60
"""A broker that opens begins to fire so many slots before now, at the earliest."""
_HOUR_MS: Final = 3_600_000
_RESERVED_HOURS: Final = 72
_DELAY_MAX_S: Final = 31_536_000
_RETRIES: Final = 16
CONFIG_FILE: Final = "config/broker.conf"


def check_wheel(engine: Engine) -> None:
    """Raise TimerStoreError if a broker would refuse the wheel."""
    count = engine.config.wheel_slot_count
    if count != BROKER_SLOT_COUNT:
        raise TimerStoreError(
            f"The wheel of this store has {count} slots, and a broker opens only wheels with "
            f"{BROKER_SLOT_COUNT}. Make a store with wheel_slot_count={BROKER_SLOT_COUNT}, move "
            "the pending timers into it (timerstore export, then import), and hand that store "
            "over."
        )


def write_broker_files(core: Core, index: NewIndex) -> int | None:
    """Write them; durable on return. Return until when a broker must open the store, in epoch ms.

    It skips what lies further back, also if that is a roll, whose timer is due much later. None if
    nothing waits.

    The commit log's files become as young as the handover: a broker removes them by their age even
    if timers wait in them, and the message of a timer that hops may wait for years in the same
    file.
    """
    engine, until_ms = core.engine, None
    if index.first_slot >= 0:
        until_ms = (index.first_slot + SKIPPED_BELOW_SLOTS) * engine.precision_ms
    for number in list(engine.commitlog.numbers):
        engine.disk.renew(engine.commitlog.path(number))
    version = {"counter": 1, "stateVersion": 0, "timestamp": core.clock.now_ms}
    table: dict[str, dict[str, Any]] = {}
    for row, topic in enumerate(engine.queues.topics):
        queues = int(engine.queues.table.queue_id[row]) + 1
        entry = table.setdefault(text(topic), {"readQueueNums": queues})
        entry["readQueueNums"] = max(entry["readQueueNums"], queues)
    for name, entry in table.items():
        entry |= {"order": False, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicName": name}
        entry |= {"topicSysFlag": 0, "writeQueueNums": entry["readQueueNums"]}
        # Else clients that speak gRPC may put no timers into it.
        entry["attributes"] = {"message.type": "MIXED"}
    content = {"dataVersion": version, "topicConfigTable": table}
    write_json(engine.disk, engine.path / "config" / "topics.json", content)
    retry = fmt.RETRY_PREFIX.decode()
    names = {group for _, group in core.offsets.snapshot()}
    names |= {name.removeprefix(retry) for name in table if name.startswith(retry)}
    groups = {name: _group(name) for name in sorted(names)}
    content = {"dataVersion": version, "subscriptionGroupTable": groups}
    write_json(engine.disk, engine.path / "config" / "subscriptionGroup.json", content)
    settings = _settings(core, index, until_ms).encode("ascii")
    engine.disk.replace(engine.path / CONFIG_FILE, settings)
    return until_ms


def _group(name: str) -> dict[str, Any]:
    """Return a consumer group as a broker notes one; it may read at once."""
    return {
        "groupName": name,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "consumeMessageOrderly": False,
        "retryQueueNums": 1,
        "retryMaxTimes": _RETRIES,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
        "groupSysFlag": 0,
        "consumeTimeoutMinute": 15,
        "attributes": {},
    }


def _settings(core: Core, index: NewIndex, until_ms: int | None) -> str:
    """Return a broker's settings for this store, as a Java properties file."""
    engine, config = core.engine, core.engine.config
    path = os.path.abspath(core.path)
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": path,
        "storePathCommitLog": os.path.join(path, "commitlog"),
        "mappedFileSizeCommitLog": config.commitlog_segment_bytes,
        "mappedFileSizeConsumeQueue": config.consumequeue_segment_bytes,
        "mappedFileSizeTimerLog": config.timerlog_segment_bytes,
        "timerWheelEnable": "true",
        "timerPrecisionMs": config.precision_ms,
        "timerRollWindowSlot": config.roll_window_slots,
        "timerMaxDelaySec": _DELAY_MAX_S,
        "recallMessageEnable": "true",
        "appendTopicForTimerDeleteKey": "true",  # from 5.5 on it is false by default
        "enableMixedMessageType": "true",
        "messageDelayLevel": config.delay_levels,
        "fileReservedTime": _reserved_hours(engine, index, core.clock.now_ms),
        "cleanFileForciblyEnable": "false",
    }
    lines = [
        "# Settings of a broker for this store, written by its handover.",
        "# brokerIP1 is the address that the broker tells its clients: this machine's own, for",
        "# clients on this machine alone. For others, write an address here that they can reach.",
        "# Do not change the sizes and timer settings: with other values timers are lost.",
        "# A broker removes files by their age, even if timers still wait in them. "
        "fileReservedTime",
        "# is long enough for what waits now; cleanFileForciblyEnable = false keeps it on a full "
        "disk.",
    ]
    if until_ms is not None:
        until = datetime.fromtimestamp(until_ms / 1_000, UTC).isoformat(timespec="seconds")
        lines.append(
            f"# Start the broker before {until}. If it starts later, it skips the first timers."
        )
    lines += [f"{name} = {_escaped(str(value))}" for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def _reserved_hours(engine: Engine, index: NewIndex, now_ms: int) -> int:
    """Return after how many hours a file may go: once nothing in it waits for its slot."""
    ahead_ms = engine.config.roll_window_slots * engine.precision_ms
    ahead_ms = max(ahead_ms, index.last_slot * engine.precision_ms - now_ms)
    return _RESERVED_HOURS + math.ceil(ahead_ms / _HOUR_MS)


def _escaped(value: str) -> str:
    """Return a value as Java reads it from a properties file, which is Latin-1."""
    units = value.encode("utf-16-be", "surrogatepass")
    found = []
    for i in range(0, len(units), 2):
        code = int.from_bytes(units[i : i + 2], "big")
        plain = 32 <= code < 127 and code != 92
        found.append(chr(code) if plain else f"\\u{code:04x}")
    return "".join(found)


# --- it is flushed and let go
#
# An exception may end each step, such as one that a signal handler raises. The next call goes on
# where it stopped.


LINK_PATIENCE_S: Final = 2.0
"""Closing waits until each timer has its unit, so that the next opening is short; so long for each
step."""


def close(
    core: Core, consuming: Consuming, *, flush: bool, last: Callable[[], None] | None = None
) -> None:
    """Close a store; see `TimerStore.close`. Without `flush` as a crash of the process would.

    `last`: called once all is durable, while the store's lock is still held.
    """
    if core.forked or (core.closed and core.ended):
        return
    if core.gate.is_inside() or consuming.is_held:
        raise TimerStoreError(
            "close() was called inside another call of the same thread, for example in a signal "
            "handler. Raise an exception in the signal handler instead, and call close() where "
            "you catch it."
        )
    with core.closing.guard():
        if core.ended:
            return
        core.closed = True
        core.engine.end_short_way()
        for each in list(core.at_close):  # a follower that another thread closes leaves it
            each()
        while core.gate.others_inside():
            time.sleep(0.0005)
        for group in consuming.known_groups():
            group.let_go()
        if isinstance(core.clock, ManualClock):
            unlisten(core.clock, core.clock_moved)
        core.upkeep.stop()  # first: cleaning appends copies, which are linked as all else
        if flush and core.engine.failure.error is None:
            core.runner.link_all(LINK_PATIENCE_S)
        core.runner.stop()
        try:
            if flush and core.engine.failure.error is None and not core.flushed:
                with told_of(core.path):
                    consuming.write()
                    core.flusher.flush(clean=True)
                    if last is not None:
                        last()
                    if core.flusher.last is not None and core.flusher.last.clean:
                        remove_abort(core.disk, core.path)
        except TimerStoreError:  # the disk's; a signal's is flushed by the next call
            core.flushed = True
            core.let_go()
            raise
        core.flushed = True
        core.let_go()
    if flush:
        core.engine.failure.check()


def handover(core: Core, consuming: Consuming) -> int | None:
    """Make the store fit for a broker and close it; see `TimerStore.handover`."""
    core.check_open()
    core.check_unlocked()
    engine = core.engine
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
    try:
        core.refuse("The store is being handed over to a broker. Put into the broker.")
        while core.gate.others_inside():  # those who put before it was refused
            time.sleep(0.0005)
        with core.gate.guard():
            core.upkeep.cleaner.stop()
            core.runner.stop()
            _check_levels(core)
            _append_last(core)
            core.check_open()
            index = make_index(engine, core.clock.now_ms)
            until_ms = write_broker_files(core, index)
        close(core, consuming, flush=True, last=lambda: _leave(core, index))
    except BaseException:
        if not core.closed:  # else it stays refused, for a put now would have no unit
            core.refuse(None)
            core.upkeep.cleaner.resume()
            core.runner.resume()
        raise
    return until_ms


def _check_levels(core: Core) -> None:
    """Refuse if a broker would deliver too much from the levels."""
    cancelled = core.engine.cancelled.set.level_count
    if cancelled:
        raise TimerStoreError(
            f"{cancelled} cancelled messages still wait in a delay level, and a broker would "
            "deliver them. Hand over after their time has passed."
        )


def _append_last(core: Core) -> None:
    """Append a delete of nothing as the timer queue's last entry, which has the last unit then."""
    engine, now_ms = core.engine, core.clock.now_ms
    due_ms = max(now_ms, engine.read_slot * engine.precision_ms)
    message = compose_delete(engine, b"timerstore_handover", b"0" * 32, due_ms, now_ms)
    stage = core.take_stage()
    count = stage_messages(stage, [Staged(message, 0, 0, -1, 0)])
    append_all(engine, stage, count, now_ms)
    core.free_stage(stage)


def _leave(core: Core, index: NewIndex) -> None:
    """Put the new index in its place, and remove what a broker makes for itself."""
    checkpoint = core.flusher.last
    assert checkpoint is not None
    if not checkpoint.clean:
        raise StoreFullError(f"{core.path} was closed, and there was no room to hand it over.")
    core.engine.keys.remove()
    remove_clock_mark(core.engine)
    use_index(core.engine, index, checkpoint)
