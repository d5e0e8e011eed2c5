"""Who reads a topic for a group: what its runs share with who hands them out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from timerstore.calls.consuming.cursors import QueueCursor
from timerstore.calls.consuming.grouptally import GroupTally
from timerstore.calls.consuming.pace import Pace
from timerstore.calls.consuming.putacks import PutAcks
from timerstore.calls.consuming.ready import ReadyCalls, new_ready
from timerstore.calls.consuming.retries import GroupRetries
from timerstore.calls.putting.putting import Putting
from timerstore.errors import CorruptStoreError, TooLateError
from timerstore.services.world.clock import ManualClock
from timerstore.timelog.bytes.decode import Message, decode_message

Place = tuple[int, int]
"""A queue's row, and an index in it."""


class Reader:
    """A group at one topic; `Group` hands out for it."""

    def __init__(
        self,
        retries: GroupRetries,
        putting: Putting,
        put_acks: PutAcks,
        tally: GroupTally,
        topic: str,
    ) -> None:
        """`retries`: what all groups of its name share."""
        self.core, self.topic, self.name = retries.core, topic, retries.name
        self.gate, self.putting, self.put_acks = retries.core.gate, putting, put_acks
        self.retries, self.lock, self.tally = retries, retries.lock, tally
        tally.count_by_kernel()
        self.pace = Pace()
        topic_bytes = topic.encode("utf-8", "surrogateescape")
        durable = self.core.flusher.commit.words
        self.ready = new_ready(
            *(self.core.engine, durable, tally.counts, self.pace.words, topic_bytes),
            hides=self.core.is_group,  # what is not durable yet
        )
        self.ready_calls = ReadyCalls(self.core.engine, self.ready)
        clock = self.core.clock
        self.hand_clock = clock if isinstance(clock, ManualClock) else None
        """The clock, if it is moved by hand."""
        self.claimed: set[Place] = set()
        """What is being appended again."""
        self.keeps_ahead = False
        """Whether the offsets file is to know what is done behind the committed indexes."""

    def claim(self, cursor: QueueCursor, place: Place) -> bool:
        """Take a message for who appends what comes in its place; False: it is too late for that.

        Of several that try only one may; to settle it ends that, or `release`.
        """
        self.core.check_process()
        with self.lock.guard():
            if cursor.state_of(place[1]) == "done" or place in self.claimed:
                return False
            self.claimed.add(place)
            return True

    def release(self, place: Place) -> None:
        """Say that nothing came in its place."""
        self.core.check_process()
        with self.lock.guard():
            self.claimed.discard(place)

    @contextmanager
    def claiming(self, cursor: QueueCursor, place: Place) -> Iterator[None]:
        """Claim a message; if an exception comes out, it is released."""
        if not self.claim(cursor, place):
            raise TooLateError("The message was acknowledged or sent back before.")
        try:
            yield
        except BaseException:
            self.release(place)
            raise

    def count_failed(self, failed: int, retried: int, dead: int) -> None:
        """Count what failed, and what became of it: sent back, or given up."""
        self.core.check_process()
        with self.lock.guard():
            self.tally.counts.failed += failed
            self.tally.counts.retried += retried
            self.tally.counts.dead += dead

    def decode(self, offset: int, pins: list[Any]) -> Message:
        """Decode a message whose segment is pinned."""
        segment_bytes = self.core.engine.commitlog.segment_bytes
        for file in pins:
            start = int(file.path.name)
            if start <= offset < start + segment_bytes:
                return decode_message(file.view[offset - start :], offset)
        raise CorruptStoreError("commitlog", offset, "its segment is gone")
