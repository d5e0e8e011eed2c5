"""A store as a broker leaves it: messages that we did not write, or check."""

from collections import Counter
from pathlib import Path

from tests import naive
from tests.table_stores import write_log

TIMERS, LEVELS = "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"
PUT_MS = 1_800_000_000_000


def timer(
    topic: str, body: bytes, due_ms: int, key: str, more: dict[str, str] | None = None
) -> naive.Message:
    """A pending timer as a broker stores it: rounded down to a second, one less where it is whole.

    A producer's key, no CRC of the whole message.
    """
    properties = {
        "KEYS": "order",
        "TIMER_DELIVER_MS": str(due_ms),
        "UNIQ_KEY": key,
        "REAL_TOPIC": topic,
        "REAL_QID": "0",
        "TIMER_OUT_MS": str((due_ms - 1) // 1_000 * 1_000),
        **(more or {}),
    }
    return of_broker(TIMERS, body, properties)


def of_broker(
    topic: str, body: bytes, properties: dict[str, str], *, queue_id: int = 0
) -> naive.Message:
    """A message that a broker stored, which has no checksum."""
    return naive.Message(
        topic,
        body,
        properties,
        queue_id=queue_id,
        born_ms=PUT_MS,
        stored_ms=PUT_MS,
        store_host=naive.BROKER_HOST,
        has_crc=False,
    )


def at_level(topic: str, body: bytes, level: int, key: str) -> naive.Message:
    """A message that waits in a delay level."""
    properties = {
        "DELAY": str(level),
        "UNIQ_KEY": key,
        "REAL_TOPIC": topic,
        "REAL_QID": "0",
    }
    return of_broker(LEVELS, body, properties, queue_id=level - 1)


def filling(message: naive.Message, segment_bytes: int) -> naive.Message:
    """The same with a body that makes it as large as a segment allows."""
    message.body += bytes(segment_bytes - 8 - message.size_bytes)
    return message


def write_store(path: Path, messages: list[naive.Message], segment_bytes: int) -> Path:
    """Write a store that holds nothing but its commit log; all else is rebuilt from that."""
    end, counts = 0, Counter[tuple[str, int]]()
    for message in messages:
        message.queue_offset = counts[message.topic, message.queue_id]
        counts[message.topic, message.queue_id] += 1
        message.offset = naive.place_behind(segment_bytes, end, message.size_bytes)
        end = message.offset + message.size_bytes
    count = end // segment_bytes + 1
    return write_log(path, naive.lay_out(messages, segment_bytes, count), segment_bytes)
