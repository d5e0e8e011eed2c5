"""What a broker's clients had received, but not acknowledged, when its store is taken over.

A broker counts what a client that speaks gRPC receives as read. It puts a *pop checkpoint* into its
topic `rmq_sys_REVIVE_LOG_<cluster>`, which says which entries that are, and the acknowledgements
too: as timers, which fire when the messages become visible again. Then the broker reads both, and
sends again what was not acknowledged. How far it has come is an offset of its own group.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from timerstore.core.offsets import ConsumerOffsets
from timerstore.errors import CorruptStoreError
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message, decode_message, text
from timerstore.timelog.files.jsonfile import understood, whole
from timerstore.timelog.reading.pastdamage import sound_messages
from timerstore.timelog.reading.reader import StoreReader

_PREFIX: Final = b"rmq_sys_REVIVE_LOG_"
_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_CHECKPOINT: Final = "ck"  # the tags of the three kinds of messages
_ACK: Final = "ack"
_BATCH_ACK: Final = "bAck"
_BITS: Final = 32
_SHORT: Final = {
    "topic": "t",
    "consumerGroup": "c",
    "queueId": "q",
    "startOffset": "so",
    "popTime": "pt",
    "ackOffset": "ao",
    "ackOffsetList": "aol",
}
"""As older brokers name what acknowledgements say."""
_TAGS, _REAL_TOPIC = fmt.PROPERTY_TAGS.decode(), fmt.PROPERTY_REAL_TOPIC.decode()

_Popped = tuple[str, str, int, int, int]
"""One receipt: topic, group, queue id, first index, when."""


def take_back_popped(engine: Engine, offsets: ConsumerOffsets) -> int:
    """Have the groups go on with what was received and not acknowledged; return how many entries.

    Entries that were acknowledged behind these stay done. O(bytes of the log) if there is a topic
    of pop checkpoints, else O(topics).
    """
    handed, done = defaultdict[_Popped, set[int]](set), defaultdict[_Popped, set[int]](set)
    for message in _revive_messages(engine):
        try:
            with understood("the pop checkpoint"):
                _take(message, json.loads(message.body), handed, done, offsets)
        except CorruptStoreError as e:
            engine.damage.note("commitlog", message.offset, e.reason)
    open_entries = defaultdict[tuple[str, str, int], set[int]](set)
    for popped, indexes in handed.items():
        open_entries[popped[:3]] |= indexes - done[popped]
    return sum(offsets.take_back(*queue, found) for queue, found in open_entries.items())


def _revive_messages(engine: Engine) -> Iterator[Message]:
    """Yield the messages of the topics of pop checkpoints, and the timers for them."""
    names = {topic for topic in engine.queues.topics if topic.startswith(_PREFIX)}
    if not names:
        return
    lengths = [len(name) for name in names]
    reader = StoreReader(
        engine.path, engine.level_ms, precision_ms=engine.precision_ms, folder=engine.disk.folder
    )
    log = engine.commitlog
    for rows in sound_messages(reader, log.start, log.end):
        mine = np.isin(rows.topic_bytes, lengths) | np.isin(rows.real_topic_bytes, lengths)
        for offset in rows.offset[mine & (rows.is_delete == 0)].tolist():
            message = decode_message(reader.commitlog.view(offset), offset)
            if {message.topic, message.properties.get(_REAL_TOPIC)} & set(map(text, names)):
                yield message


def _take(
    message: Message,
    said: dict[str, Any],
    handed: dict[_Popped, set[int]],
    done: dict[_Popped, set[int]],
    offsets: ConsumerOffsets,
) -> None:
    """Note what a message says. A checkpoint that the broker has looked at has nothing open."""
    kind = message.properties.get(_TAGS)
    if kind not in (_CHECKPOINT, _ACK, _BATCH_ACK):
        return
    said = {_SHORT.get(name, name): value for name, value in said.items()}
    start, queue_id = whole(said["so"]), whole(said["q"])
    popped = str(said["t"]), str(said["c"]), queue_id, start, whole(said["pt"])
    if kind == _ACK:
        done[popped].add(whole(said["ao"]))
    elif kind == _BATCH_ACK:
        done[popped].update(whole(each) for each in said["aol"])
    else:
        count, bits, steps = whole(said["n"]), int(said["bm"]), said.get("d")
        indexes = [start + whole(each) for each in steps or range(count)][:count]
        handed[popped].update(
            index for i, index in enumerate(indexes) if i >= _BITS or not bits >> i & 1
        )
        if message.topic != message.properties.get(_REAL_TOPIC, message.topic):
            return  # it waits still
        looked_at = offsets.table.get(f"{message.topic}@{_GROUP}", {}).get(str(message.queue_id))
        if looked_at is not None and message.queue_index <= looked_at:
            done[popped].update(indexes)
