"""Recovering past damage: where the commit log can be read again behind a place where it cannot.

Beside it files that were cut or lost, and what a crash has torn at the log's end.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from timerstore.errors import CorruptStoreError
from timerstore.jit.record import Words
from timerstore.services.calls.appending import append_all, compose_delete
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import QUEUES, TIMERS
from timerstore.services.opening.recover_settled import find_timer
from timerstore.timelog.bytes.decode import decode_message, identity_of
from timerstore.timelog.files.checkpoint import TimerCheckpoint
from timerstore.timelog.files.nonzero import last_used
from timerstore.timelog.files.segments import SegmentedFile
from timerstore.timelog.files.segmenttable import apron_bytes
from timerstore.timelog.reading.pastdamage import (
    NO_COPIES,
    LogRanges,
    copies_of,
    fired_source,
    lost_up_to,
    read_framed,
    rolled_sources,
)
from timerstore.timelog.reading.reader import ReadSegments, StoreReader
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.timelog.writing.append import new_stage
from timerstore.timelog.writing.compose import Staged, read_record, stage_messages

NO_NEXT_MESSAGE: Final = -1


class DamagedLog:
    """The places of a commit log that were passed over while it was scanned.

    What was flushed, or has something sound behind it, was whole once: that it cannot be read now
    is damage. `durable` is where the flushed part ends, None if no file says it.
    """

    def __init__(self, engine: Engine, durable: int | None) -> None:
        self.engine, self.durable = engine, durable
        self.ranges = LogRanges()
        self.lost_bytes = 0
        self._starts, self._start_count = np.zeros(64, np.int64), 0
        self._reader: StoreReader | None = None

    def resume(self, offset: int, reason: str) -> int:
        """Return where to go on if there is no message at `offset`; NO_NEXT_MESSAGE at the end."""
        log = self.engine.commitlog
        stop = log.files_end if self.durable is None else self.durable
        if offset >= stop:
            return NO_NEXT_MESSAGE
        following = self._read().next_message(offset, stop)
        if following < 0:
            if self.durable is None:
                return NO_NEXT_MESSAGE
            following = self.durable
        self.engine.damage.note("commitlog", offset, lost_up_to(reason, offset, following))
        self.ranges.add(offset, following)
        self.lost_bytes += following - offset
        self._keep(np.array([offset]))
        return following

    @property
    def starts(self) -> Words:
        """Where these places begin, and what stands in those that a salvage found."""
        return self._starts[: self._start_count]

    def _keep(self, offsets: Words) -> None:
        """Keep where some places begin; O(1) each over many calls."""
        stop = self._start_count + len(offsets)
        if stop > len(self._starts):
            self._starts = np.resize(self._starts, 2 * stop)
        self._starts[self._start_count : stop] = offsets
        self._start_count = stop

    def take_fillers(self, rows: LoggedMessages) -> None:
        """Take what stands in the place of lost messages, as scanned rows."""
        if len(rows):
            self.lost_bytes += int(rows.size.sum())
            self._keep(rows.offset)

    def fired_from(self, offset: int) -> int:
        """Return the source of a fired copy that is damaged at `offset`; NO_SOURCE if unknown."""
        reader = self._read()
        return fired_source(reader, read_framed(reader, offset))

    def rolled_from(self, origins: list[Words], copies: list[Words]) -> tuple[Words, Words]:
        """Return the sources of rolled copies that are damaged, with the copies made of those.

        `copies` were made of `origins`; see `rolled_sources`. O(log) if any is damaged.
        """
        known = np.concatenate([np.zeros(0, np.int64), *origins])
        places = np.concatenate([np.zeros(0, np.int64), *copies])[self.ranges.contains(known)]
        reader = self._read()
        made = [copies_of(read_framed(reader, place)) for place in np.sort(places).tolist()]
        found = rolled_sources(reader, np.concatenate([NO_COPIES, *made]), known)
        return found[:, 0], found[:, 2]

    def _read(self) -> StoreReader:
        if self._reader is None:
            self._reader = self.engine.open_reader()
        return self._reader


# --- Files that were cut or lost: what was flushed must be there with its full length.
#
# A file that is shorter, and all zeros, was about to be made when a process ended; that holds only
# if nothing of it was ever made durable. The commit log is the truth, so what it lost is an error,
# and nothing is changed. Timer log and consume queues are made anew from it (`rebuild.py`).


def check_files(
    engine: Engine,
    checkpoint: TimerCheckpoint | None,
    rebuilt: list[str],
    *,
    is_live: bool = False,
) -> None:
    """Raise CorruptStoreError if the commit log was cut, or an index that is not made anew.

    A broker's checkpoint, or none, does not say how much of the log was flushed: then only the last
    file can have been about to be made. How much of a queue was flushed nobody says. While another
    process may remove files, it is not asked whether some are missing before the first.
    """
    log, timerlog = engine.commitlog, engine.timerlog
    first = None if checkpoint is None or is_live else checkpoint.lost_from(log.start)
    if first is not None:
        offset = first // log.segment_bytes * log.segment_bytes
        raise CorruptStoreError(log.name, offset, "this segment is missing")
    log.flushed_end = max(log.start, log.files_end - log.segment_bytes)
    if checkpoint is not None and not checkpoint.by_broker:
        log.flushed_end = log.durable_end = checkpoint.commitlog_flushed
    lost = log.find_lost()
    if lost is not None:
        raise lost
    if checkpoint is not None and TIMERS not in rebuilt:
        timerlog.flushed_end = checkpoint.timerlog_flushed
        if not checkpoint.by_broker:
            timerlog.durable_end = checkpoint.timerlog_flushed
        lost = timerlog.find_lost()
        if timerlog.start > checkpoint.timerlog_from and not is_live:
            offset = checkpoint.timerlog_from
            lost = CorruptStoreError(timerlog.name, offset, "this segment is missing")
    if lost is None and QUEUES not in rebuilt:
        for file in engine.queues.files:  # was it lost, its entries are missed
            file.forget_unmade()
        found = (file.find_lost(whole=True) for file in engine.queues.files)
        lost = next((each for each in found if each is not None), None)
    if lost is not None:
        raise lost


# --- What a crash has torn at the commit log's end: a message, a batch of them, or a reschedule.
#
# An acknowledgement record and its puts are appended under one taking of the append lock, so
# nothing stands behind a batch that is not whole. It is cut off the log as half a message is, and a
# backup ends before it.


def torn_bytes(engine: Engine, end: int) -> int:
    """Return how many bytes stand behind the log's end that were not written whole."""
    number, position = divmod(end, engine.commitlog.segment_bytes)
    if number not in engine.commitlog.numbers:
        return 0
    file = engine.commitlog.ensure(number)
    used = engine.disk.used_ranges(file)
    tail = file.view[position : max(position, used[-1][1] if used else 0)]
    # What is behind the apron may be of an earlier use.
    if not tail[: apron_bytes(file.length)].any():
        return 0
    return last_used(tail) + 1


def torn_batch(
    log: SegmentedFile | ReadSegments, part: LoggedMessages, records: Words, lacking: int = 0
) -> tuple[int, int]:
    """Return how many puts a batch at the end of scanned messages lacks, and where its record is.

    `records`: which of `part` are acknowledgement records. `lacking`: what was returned of the
    messages before `part`; if the record is among those, it is at −1. O(1), and one is decoded.
    """
    if not len(records):
        return max(0, lacking - len(part)), -1
    last = int(records[-1])
    offset = int(part.offset[last])
    record = read_record(decode_message(log.view(offset), offset).body)
    stop = last + 1 if record is None else last + 1 + record.put_count
    return max(0, stop - len(part)), last


def complete_reschedule(engine: Engine, last: LoggedMessages, now_ms: int) -> bool:
    """Append the delete that a crash tore off the replacement at the log's end, if it did.

    `last`: the log's last message, as a scanned row. Returns whether one was appended. A copy of a
    replacement tells nothing, nor does a broker's, which names no source: the delete stands before.
    """
    if not last.is_replacement or last.origin >= 0 or last.roll_times > 0:
        return False
    if int(last.offset) + int(last.size) != engine.commitlog.end:
        return False
    replaced = _read_replaced(engine, int(last.offset))
    if replaced is None:
        return False
    topic, key = replaced
    high, low = (np.array([each], np.int64) for each in identity_of(topic, key, engine.store_tag))
    if engine.cancelled.contains(high, low)[0]:  # it would be taken off the count once more
        return False
    old = find_timer(engine, int(high[0]), int(low[0]))
    if old < 0:
        return False
    timer = decode_message(engine.commitlog.view(old), old)
    engine.cancelled.add(high, low)
    due_ms, row = int(timer.properties["TIMER_OUT_MS"]), engine.queues.row(topic)
    delete = compose_delete(engine, topic, key, due_ms, now_ms)
    what = Staged(delete, 0, 0, row, -1, due_ms, timer.born_ms, len(timer.body))
    stage = new_stage(4, 8192)
    append_all(engine, stage, stage_messages(stage, [what]), now_ms)
    return True


def _read_replaced(engine: Engine, offset: int) -> tuple[bytes, bytes] | None:
    """Return the topic and the unique key that a replacement names."""
    message = decode_message(engine.commitlog.view(offset), offset)
    key, topic = message.properties.get("TIMER_REPLACES"), message.properties.get("REAL_TOPIC")
    if not key or topic is None:
        return None
    return os.fsencode(topic), key.encode("utf-8", "surrogateescape")
