"""What RocketMQ wrote, read by the twins: every message, entry, unit, slot, cursor.

Each file is also written again from what was read or derived, and compared whole: so every
byte is accounted for, zeros included.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests import naive

SLOT_COUNT = 604_800
ROLL_WINDOW = {"pending": 172_800, "fired": 20, "crashed": 20}
LEVELS_MS = naive.parse_levels(naive.DEFAULT_LEVELS)
COPY_NAMES = {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"}


@dataclass
class GoldenStore:
    """A golden store and its list, read once for all tests."""

    name: str
    path: Path
    lines: list[dict[str, Any]]

    def segments(self, folder: str) -> dict[int, bytes]:
        """A folder's segments by start offset."""
        return {int(file.name): file.read_bytes() for file in (self.path / folder).iterdir()}

    def listed(self, *kinds: str) -> list[dict[str, Any]]:
        """The list's lines of these kinds."""
        return [line for line in self.lines if line["kind"] in kinds]

    @cached_property
    def state(self) -> dict[str, Any]:
        """The list's line about the cursors."""
        (state,) = self.listed("state")
        return state

    @cached_property
    def put(self) -> dict[int, dict[str, Any]]:
        """What was put, by commit log offset."""
        lines = self.listed("timer", "delete", "level", "plain")
        return {line["commit_log_offset"]: line for line in lines}

    @cached_property
    def log(self) -> naive.LogScan:
        """The commit log."""
        return naive.scan_commit_log(self.segments("commitlog"))

    @cached_property
    def queues(self) -> dict[tuple[str, int], list[naive.Message]]:
        """Messages of each queue, in the order of the log."""
        queues: dict[tuple[str, int], list[naive.Message]] = {}
        for message in self.log.messages:
            queues.setdefault((message.topic, message.queue_id), []).append(message)
        return queues

    @cached_property
    def timer_queue(self) -> list[naive.Message]:
        """Messages of the timer topic, by index."""
        return self.queues[naive.TIMER_TOPIC, 0]

    @cached_property
    def copies(self) -> list[tuple[naive.Message, naive.Message]]:
        """Messages that the timer store appended, each with the message it copied."""
        timers = {timer_key(message): message for message in self.timer_queue}
        pairs = []
        for message in self.log.messages:
            if message.offset not in self.put:
                topic, key, rolls = timer_key(message)
                is_roll = message.topic == naive.TIMER_TOPIC
                pairs.append((message, timers[topic, key, rolls - is_roll]))
        return pairs

    @cached_property
    def timer_log(self) -> naive.TimerLogScan:
        """The timer log."""
        return naive.scan_timer_log(self.segments("timerlog"))

    @cached_property
    def wheel(self) -> bytes:
        """All bytes of the wheel."""
        return (self.path / "timerwheel").read_bytes()

    @cached_property
    def slots(self) -> dict[int, naive.Slot]:
        """The used slots, by number."""
        return {slot.number: slot for slot in naive.used_slots(self.wheel).values()}


def timer_key(message: naive.Message) -> tuple[str, str, int]:
    """What tells one timer, and one copy of it, from all others."""
    properties = message.properties
    rolls = int(properties.get("TIMER_ROLL_TIMES", "0"))
    return properties["REAL_TOPIC"], properties["UNIQ_KEY"], rolls


@pytest.fixture(scope="module", params=["pending", "fired", "crashed"])
def store(
    request: pytest.FixtureRequest,
    golden_unpacked: Callable[[str], Path],
    golden_list: Callable[[str], list[dict[str, Any]]],
) -> GoldenStore:
    name = request.param
    return GoldenStore(name, golden_unpacked(name), golden_list(name))


def joined(segments: dict[int, bytes]) -> bytes:
    """Segments in order, which must follow each other without a gap."""
    data = b""
    for begin in sorted(segments):
        assert begin == len(data)
        data += segments[begin]
    return data


def padded(parts: Iterable[bytes], size: int) -> bytes:
    """The parts one after another, then zeros."""
    return b"".join(parts).ljust(size, b"\0")


def test_no_file_is_unknown(store: GoldenStore) -> None:
    files = {str(file.relative_to(store.path)) for file in store.path.rglob("*") if file.is_file()}
    segments = {f for f in files if f.startswith(("commitlog/", "timerlog/", "consumequeue/"))}
    expected = {"abort.bak", "checkpoint", "lock", "timerwheel"}
    expected |= {"config/timercheck", "config/timermetrics", "config/timermetrics.bak"}
    expected |= {"abort"} if store.name == "crashed" else {"compaction/position-checkpoint"}
    assert files - segments == expected
    queue_folders = {tuple(Path(f).parts[1:3]) for f in segments if f.startswith("consumequeue/")}
    assert queue_folders == {(topic, str(queue)) for topic, queue in store.queues}


def test_commit_log_is_its_messages(store: GoldenStore) -> None:
    log = store.log
    assert log.damage is None
    assert log.end == store.state["commit_log_max"]
    parts = {message.offset: naive.encode_message(message) for message in log.messages}
    parts |= {at: naive.blank_message(remaining) for at, remaining in log.blanks}
    data = joined(store.segments("commitlog"))
    assert padded((parts[at] for at in sorted(parts)), len(data)) == data
    assert len(log.blanks) == 1
    for message in log.messages:
        assert (message.flag, message.system_flag, message.magic) == (0, 0, naive.MESSAGE_MAGIC)
        assert message.born_host == message.store_host == ("127.0.0.1", 10911)
        assert (message.reconsume_times, message.prepared_offset) == (0, 0)
    assert {message.has_crc for message in log.messages} == {store.name != "crashed"}


def test_what_was_put_is_there(store: GoldenStore) -> None:
    messages = {message.offset: message for message in store.log.messages}
    assert store.put.keys() <= messages.keys()
    for offset, line in store.put.items():
        message = messages[offset]
        assert message.topic == line["stored_topic"]
        assert message.queue_id == line["queue"]
        assert message.queue_offset == line["queue_offset"]
        assert message.size_bytes == line["bytes"]
        assert message.body.hex() == line["body_hex"]
        assert message.properties == line["properties"]
        assert message.properties["UNIQ_KEY"] == line["unique_key"]
        assert message.born_ms <= message.stored_ms <= line["put_ms"]


def test_copies_are_what_they_were_copied_from(store: GoldenStore) -> None:
    written = {unit.message_offset: unit.write_ms for unit in store.timer_log.units.values()}
    for copy, source in store.copies:
        is_roll = copy.topic == naive.TIMER_TOPIC
        assert (copy.body, copy.born_ms) == (source.body, source.born_ms)
        unchanged = {k: v for k, v in copy.properties.items() if k not in COPY_NAMES}
        assert unchanged == {k: v for k, v in source.properties.items() if k not in COPY_NAMES}
        assert int(copy.properties["TIMER_ENQUEUE_MS"]) == written[source.offset]
        assert int(copy.properties["TIMER_DEQUEUE_MS"]) <= copy.stored_ms
        assert ("TIMER_ROLL_TIMES" in copy.properties) >= is_roll
        if not is_roll:
            assert copy.topic == source.properties["REAL_TOPIC"]
            assert copy.queue_id == int(source.properties["REAL_QID"])
            due_ms = naive.due_ms(source.properties, store.state["precision_ms"], store_tag=0)
            assert due_ms == int(source.properties["TIMER_DELIVER_MS"])
            assert copy.stored_ms >= due_ms


def test_fired_as_counted(store: GoldenStore) -> None:
    counts = {line["topic"]: line["count"] for line in store.listed("fired")}
    real = {
        topic: len(messages) for (topic, _), messages in store.queues.items() if topic in counts
    }
    assert real == counts
    fired = Counter(timer_key(m)[:2] for m, _ in store.copies if m.topic != naive.TIMER_TOPIC)
    assert set(fired.values()) <= {1}


def test_out_ms_is_rounded_as_a_broker_does(store: GoldenStore) -> None:
    for line in store.listed("timer", "delete"):
        if line["stored_topic"] == naive.TIMER_TOPIC:
            out_ms = naive.broker_out_ms(line["due_ms"], store.state["precision_ms"])
            assert int(line["properties"]["TIMER_OUT_MS"]) == out_ms
        else:
            assert line["due_ms"] <= line["put_ms"]


def test_consume_queues_follow_from_the_log(store: GoldenStore) -> None:
    for (topic, queue_id), messages in store.queues.items():
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        entries = [
            naive.Entry(m.offset, m.size_bytes, naive.tags_code(m, LEVELS_MS)) for m in messages
        ]
        segments = store.segments(f"consumequeue/{topic}/{queue_id}")
        assert naive.scan_queue(segments) == dict(enumerate(entries))
        data = joined(segments)
        assert padded(map(naive.encode_entry, entries), len(data)) == data


def test_timer_log_follows_from_the_timer_queue(store: GoldenStore) -> None:
    precision_ms = store.state["precision_ms"]
    units, blanks, end, damage = store.timer_log
    assert damage is None
    assert len(units) == len(store.timer_queue) == store.state["queue_offset"]
    last: dict[int, int] = {}
    parts = {at: naive.blank_unit(remaining) for at, remaining in blanks}
    for message, (offset, unit) in zip(store.timer_queue, units.items(), strict=True):
        out_ms = int(message.properties["TIMER_OUT_MS"])
        assert unit.write_ms % precision_ms == 0
        place = naive.broker_place(out_ms, unit.write_ms, precision_ms, ROLL_WINDOW[store.name])
        is_delete = "TIMER_DEL_UNIQKEY" in message.properties
        derived = naive.Unit(
            unit_bytes=naive.UNIT_BYTES,
            prev_pos=last.get(place.slot, -1),
            magic=1 | naive.UNIT_ROLL * place.is_roll | naive.UNIT_DELETE * is_delete,
            write_ms=unit.write_ms,
            delta_ms=place.time_ms - unit.write_ms,
            message_offset=message.offset,
            message_bytes=message.size_bytes,
            topic_hash=naive.java_hash(message.properties["REAL_TOPIC"]),
        )
        parts[offset] = naive.encode_unit(derived)
        last[place.slot] = offset
    data = joined(store.segments("timerlog"))
    assert padded((parts[at] for at in sorted(parts)), len(data)) == data
    assert end == sum(map(len, parts.values()))


def test_wheel_follows_from_the_timer_log(store: GoldenStore) -> None:
    chains: dict[int, list[int]] = {}
    for offset, unit in store.timer_log.units.items():
        chains.setdefault(unit.time_ms // store.state["precision_ms"], []).append(offset)
    units = store.timer_log.units
    expected = bytearray(2 * SLOT_COUNT * naive.SLOT_BYTES)
    for number, chain in chains.items():
        slot = naive.Slot(
            number, chain[0], chain[-1], naive.slot_net_count(units[offset] for offset in chain)
        )
        at = naive.slot_index(number, SLOT_COUNT) * naive.SLOT_BYTES
        expected[at : at + naive.SLOT_BYTES] = naive.encode_slot(slot)
        assert list(naive.walk_chain(units, slot.last_offset)) == chain[::-1]
    assert store.wheel == expected


def test_slots_are_as_listed(store: GoldenStore) -> None:
    precision_ms, read_ms = store.state["precision_ms"], store.state["read_ms"]
    pending = {n: slot for n, slot in store.slots.items() if n * precision_ms >= read_ms}
    assert pending == {
        line["time_ms"] // precision_ms: naive.Slot(
            line["time_ms"] // precision_ms, line["first"], line["last"], line["count"]
        )
        for line in store.listed("slot")
    }
    assert sum(slot.net_count for slot in pending.values()) == store.state["pending_all"]


def test_pending_timers_are_those_neither_fired_nor_deleted(store: GoldenStore) -> None:
    messages = {message.offset: message for message in store.timer_queue}
    timers: list[dict[str, str]] = []
    deletes: list[dict[str, str]] = []
    for slot in store.slots.values():
        if slot.number * store.state["precision_ms"] >= store.state["read_ms"]:
            for offset in naive.walk_chain(store.timer_log.units, slot.last_offset):
                unit = store.timer_log.units[offset]
                properties = messages[unit.message_offset].properties
                (deletes if unit.is_delete else timers).append(properties)
    named = {delete["TIMER_DEL_UNIQKEY"] for delete in deletes}
    waiting = {t["UNIQ_KEY"] for t in timers if f"{t['REAL_TOPIC']}+{t['UNIQ_KEY']}" not in named}
    gone = {m.properties["UNIQ_KEY"] for m, _ in store.copies if m.topic != naive.TIMER_TOPIC}
    gone |= {line["deletes"] for line in store.listed("delete")}
    listed = {
        line["unique_key"]
        for line in store.listed("timer")
        if line["stored_topic"] == naive.TIMER_TOPIC
    }
    assert waiting == listed - gone
    assert len(waiting) == store.state["pending_all"]


def test_cursors_are_as_listed(store: GoldenStore) -> None:
    data = (store.path / "config/timercheck").read_bytes()
    check = naive.decode_timercheck(data)
    assert padded([naive.encode_timercheck(check)], 4096) == data
    assert check.read_ms == store.state["read_ms"]
    assert check.queue_offset == check.master_queue_offset == store.state["queue_offset"]
    # A broker flushes one segment at a time: its cursor lags even after a clean close.
    assert check.timer_log_flushed_offset in store.segments("timerlog")
    assert check.timer_log_flushed_offset < store.timer_log.end
    assert check.state_version == 0
    assert check.read_ms <= check.timestamp_ms <= store.state["written_ms"]
    assert check.counter > 0


def test_checkpoint_is_two_times_of_messages(store: GoldenStore) -> None:
    data = (store.path / "checkpoint").read_bytes()
    checkpoint = naive.decode_checkpoint(data)
    assert padded([naive.encode_checkpoint(checkpoint)], 4096) == data
    stored = {message.stored_ms for message in store.log.messages}
    assert {checkpoint.commit_log_ms, checkpoint.consume_queue_ms} <= stored
    assert checkpoint[2:] == (0, 0, 0)


def test_small_files(store: GoldenStore) -> None:
    assert (store.path / "lock").read_bytes() == b"lock"
    assert (store.path / "abort.bak").read_bytes() == b""
    if store.name == "crashed":
        assert (store.path / "abort").read_text().isdecimal()
    else:
        position = (store.path / "compaction/position-checkpoint").read_text()
        assert naive.parse_json(position) == {"empty": True, "queueOffsetMap": {}}


def test_timermetrics(store: GoldenStore) -> None:
    text = (store.path / "config/timermetrics").read_text()
    assert (store.path / "config/timermetrics.bak").read_text() == text
    metrics = naive.parse_json(text)
    assert metrics.keys() == {"dataVersion", "timingCount"}
    assert metrics["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}
    assert metrics["timingCount"].keys() == {line["topic"] for line in store.listed("fired")}
    counts = [count["count"] for count in metrics["timingCount"].values()]
    if store.name == "pending":
        assert sum(counts) == store.state["pending_all"]
    else:  # A broker's own counts do not add up once timers roll: it says fewer than none.
        assert min(counts) < 0
