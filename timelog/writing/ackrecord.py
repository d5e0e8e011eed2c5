"""Acknowledgement records: messages that say which delivery the puts behind them acknowledge.

A record and its puts are appended as one; an opening after a crash takes them as one
(`services/opening/recover_torn.py`). Records have a topic of their own, which nobody else reads.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from timerstore.timelog.writing.compose import compose

ACKS_TOPIC: Final = b"rmq_sys_timerstore_acks"
ACKS_GROUP: Final = "timerstore"
"""The group whose offset in that topic says which records `config/consumerOffset.json` knows."""
PUTS_MAX: Final = 1_024 - 1
"""Puts of one record; a stage does not hold more messages."""


class AckRecord(NamedTuple):
    """Who has consumed the entry of which queue, and how many puts follow."""

    group: str
    topic: str
    queue_id: int
    queue_index: int
    put_count: int


def compose_record(record: AckRecord, born_ms: int) -> bytes:
    """Return the message that says so; only what its place decides is missing."""
    return compose(ACKS_TOPIC, json.dumps(record).encode(), b"", born_ms=born_ms)


def read_record(body: bytes) -> AckRecord | None:
    """Return what a message of the topic says; None if it was not written by us.

    >>> read_record(b'["mailer", "jobs", 0, 17, 2]').queue_index
    17
    """
    try:
        group, topic, *numbers = json.loads(body)
    except (ValueError, TypeError):
        return None
    if not (isinstance(group, str) and isinstance(topic, str) and len(numbers) == 3):
        return None
    if not all(type(each) is int and each >= 0 for each in numbers):
        return None
    return AckRecord(group, topic, *numbers)
