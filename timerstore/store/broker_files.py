"""The files that a broker wants besides the store's own: its topics, its groups, its settings."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from typing import Any, Final

from timerstore.core.core import Core
from timerstore.errors import TimerStoreError
from timerstore.services.broker.for_broker import NewIndex
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.files.jsonfile import write_json

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
