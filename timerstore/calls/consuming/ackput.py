"""Acknowledging a message with what is put in its place, as one.

The message is acknowledged if and only if the next one is there. So one append decides: a *record*,
a message of a topic of our own that names group, topic, queue, index and how many puts follow; then
the puts, all under one taking of the append lock. Recovery cuts off a batch that is not whole, as
it cuts off half a message.

Offsets are written at checkpoints only, so opening applies the records behind what the offsets file
knows. Up to which record that is, is itself an offset in that file, of a group in the records'
topic. The file can say it because it also holds what is done behind the committed index, in runs. A
checkpoint reads that offset first, then what is ahead, then what is committed, and waits until the
log is durable as far as these say. `tests/models/ack_model.py` tries all orders with all crashes,
and fails if one of these rules is taken away.

A message is *claimed* before anything is appended in its place, so only one of a put, a `nack` and
a consumer whose handler took too long comes. With `if_absent` the look at the key and the append
are one hold of the key index's lock. A property of the put that names what it acknowledges would
need no record, but each kernel that copies messages would have to drop it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from timerstore.calls.consuming.cursors import QueueCursor
from timerstore.calls.consuming.delivery import NAMES, Put, checked
from timerstore.calls.consuming.groupreader import Place, Reader
from timerstore.calls.putting.putter import check_level, compose_timer, stage_at_level
from timerstore.calls.putting.putting import Putting
from timerstore.core.gate import inside
from timerstore.errors import InvalidArgumentError, TimerStoreError, TooLateError
from timerstore.services.calls.appending import append_all
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.writing.append import STAGE_BYTES
from timerstore.timelog.writing.compose import (
    ACKS_TOPIC,
    AckRecord,
    Staged,
    compose_record,
    stage_messages,
)
from timerstore.values.check_arguments import (
    check_body,
    check_topic,
    encode_properties,
    given_delay,
    resolve_due_ms,
)
from timerstore.values.ids import format_id
from timerstore.values.kinds import check_bool


@inside
def ack_and_put(
    group: Reader,
    cursor: QueueCursor,
    place: Place,
    settle: Callable[[], None],
    puts: Sequence[Put],
) -> list[str]:
    """Acknowledge a message that was handed out, and put; see `Delivery.ack_and_put_many`.

    The one append is what decides: its first message says who has consumed what, the puts follow.
    `settle` acknowledges.
    """
    core, putting = group.core, group.putting
    core.check_putting()
    core.check_unlocked()
    now_ms, given = core.clock.now_ms, checked(puts)
    entries = [_compose(putting, group.topic, put, now_ms) for put in given]
    unless = [_condition(put, group.topic) for put in given]
    if len(set(unless) - {None}) < len([each for each in unless if each is not None]):
        raise InvalidArgumentError(
            "Two puts with if_absent have the same topic and key. Leave one out."
        )
    if any(entry.row == 0 for entry in entries):
        putting.admission.enter()
    row, index = place
    queues = core.engine.queues
    where = text(queues.topics[row]), int(queues.table.queue_id[row])
    record = AckRecord(group.name, *where, index, len(entries))
    length = sum(len(entry.message) for entry in entries) + len(compose_record(record, now_ms))
    if length > STAGE_BYTES:
        raise InvalidArgumentError("All puts together take more than 4 MiB. Put fewer at once.")
    if not group.claim(cursor, place):
        raise TooLateError(
            "Nothing was put: the message was acknowledged or sent back before, perhaps because "
            "its handler took too long."
        )
    try:
        putting.space.check()
        number = group.put_acks.begin()
        ids = _append(group, number, record, entries, unless, now_ms)
    except TimerStoreError:
        group.release(place)
        raise
    settle()
    group.put_acks.end(number)
    core.after_append(now_ms, min(entry.due_ms for entry in entries))
    return ids


def _append(
    group: Reader,
    number: int,
    record: AckRecord,
    entries: list[Staged],
    unless: list[tuple[str, str] | None],
    now_ms: int,
) -> list[str]:
    """Append all as one, except what is pending; return the ids. After an error nothing is there.

    A signal's exception may come when they are there: then what is under way stays so, and the
    record is applied when the store is opened again.
    """
    core, keys = group.core, group.put_acks.keys
    engine, stage = core.engine, core.take_stage()
    try:
        with keys.lock.guard() if any(unless) else nullcontext():
            ids = [names and keys.find(*names) for names in unless]
            new = [i for i, id in enumerate(ids) if id is None]
            data = compose_record(record._replace(put_count=len(new)), now_ms)
            first = Staged(data, engine.queues.row(ACKS_TOPIC), 0, -1, 0)
            count = stage_messages(stage, [first, *(entries[i] for i in new)])
            append_all(engine, stage, count, now_ms)
        group.put_acks.appended(engine.commitlog.end)
        for i, place in zip(new, stage.offset[1:count].tolist(), strict=True):
            mark = fmt.LEVEL_MARK if entries[i].row else 0
            ids[i] = format_id(entries[i].due_ms, place | mark, engine.store_tag)
    except TimerStoreError:
        group.put_acks.end(number)
        raise
    finally:
        core.free_stage(stage)
    return [id for id in ids if id is not None]


def _condition(put: dict[str, Any], own_topic: str) -> tuple[str, str] | None:
    """Return topic and key of a put that is left out if such a timer is pending."""
    if_absent, key, topic = put.get("if_absent", False), put.get("key"), put.get("topic")
    check_bool(if_absent, "if_absent")
    if not if_absent:
        return None
    if key is None:
        raise InvalidArgumentError("if_absent was passed without a key. Pass key as well.")
    return own_topic if topic is None else topic, key


def _compose(putting: Putting, own_topic: str, put: dict[str, Any], now_ms: int) -> Staged:
    """Compose one message, and say where it is staged."""
    core, engine = putting.core, putting.core.engine
    given = dict.fromkeys(NAMES) | put
    topic = check_topic(own_topic if given["topic"] is None else given["topic"])
    encoded = encode_properties(given["key"], given["tag"], given["properties"])
    body = check_body(given["body"], len(encoded), engine.content_bytes_max)
    delay = given_delay(given["delay"], given["delay_ms"])
    times = delay, given["at"], given["at_ms"]
    if given["delay_level"] is not None:
        level = check_level(engine, given["delay_level"], *times)
        return stage_at_level(engine, level, topic, body, encoded, now_ms)
    due_ms = resolve_due_ms(now_ms, *times, core.engine.config.max_delay_ms)
    putting.congestion.check(due_ms, now_ms)
    return compose_timer(engine, topic, body, due_ms, encoded, given["tag"])
