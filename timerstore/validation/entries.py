"""Looking at a range of a consume queue: its entries, each with the message it points to."""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.tables.queues import find_queue
from timerstore.timelog import audit as kernels
from timerstore.timelog.format import ENTRY_BYTES, QUEUE_ENTRY
from timerstore.timelog.jit.record import Words
from timerstore.timelog.message import FOUND_WORDS
from timerstore.validation.findings import Findings
from timerstore.validation.salvaged import lost_entries

_CHUNK_ENTRIES: Final = 65_536


def look_at_entries(findings: Findings, name: str, start: int, stop: int) -> None:
    """Look at the entries with indexes in [start, stop) of a queue. O(entries)."""
    view = findings.scope.view
    topic, queue_id = find_queue(name)
    queue = view.reader.queues[topic, queue_id]
    encoded = np.frombuffer(topic.encode("utf-8", "surrogateescape"), np.uint8)
    for first in range(start, stop, _CHUNK_ENTRIES):
        count = min(_CHUNK_ENTRIES, stop - first)
        data = np.frombuffer(queue.read(first * ENTRY_BYTES, count * ENTRY_BYTES), np.uint8)
        verdicts = _judge(findings, data, first, encoded, queue_id)
        wrong = (verdicts == kernels.ENTRY_WRONG) | (verdicts == kernels.ENTRY_NONE)
        places = np.arange(first, first + count)[: len(verdicts)]
        sizes = data.view(QUEUE_ENTRY)["size"][: len(verdicts)]
        # What a broker left out at the start of a file that was made ahead.
        wrong &= (places * ENTRY_BYTES % queue.segment_bytes > 0) | (places == 0) | (sizes > 1)
        if not view.cut.is_open:
            wrong |= verdicts == kernels.ENTRY_BEHIND
        # Gaps, and entries of removed messages, stand before all others.
        old = (verdicts == kernels.ENTRY_BLANK) | (verdicts == kernels.ENTRY_REMOVED)
        good = np.flatnonzero(verdicts == kernels.ENTRY_GOOD)
        if len(good):
            wrong[good[0] :] |= old[good[0] :]
        entries = np.frombuffer(data[: len(verdicts) * ENTRY_BYTES], QUEUE_ENTRY)
        wrong[wrong] &= ~lost_entries(view.reader, entries[wrong])
        at = places * ENTRY_BYTES
        reason = "the entry points to no message of this queue and index"
        findings.judge("entry_message", wrong, name, at, reason)
        findings.tally.counts["entries"] += int((~old).sum())


def _judge(
    findings: Findings, data: np.ndarray, first: int, topic: np.ndarray, queue_id: int
) -> Words:
    view = findings.scope.view
    log = view.reader.commitlog
    verdicts = np.zeros(len(data) // ENTRY_BYTES, np.int64)
    found, state = np.zeros(FOUND_WORDS, np.int64), np.zeros(2, np.int64)
    while True:
        done = kernels.judge_entries(
            log.table,
            data,
            first,
            topic,
            queue_id,
            log.start,
            view.log_stop,
            found,
            verdicts,
            state,
        )
        if done == len(verdicts):
            return verdicts
        number = int(state[1]) // log.segment_bytes
        if number in log.numbers:
            log.map(number)
        else:
            verdicts[done] = kernels.ENTRY_WRONG
            state[0] = done + 1
