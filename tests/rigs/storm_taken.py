"""What a group was handed, by its entries: none twice that is done, no timer fired twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from timerstore import Batch, Delivery
from timerstore.calls.consuming.run import Run

_RETRY = "%RETRY%"


def run_of(batch: Batch) -> Run:
    """Return what a batch of an open store shows."""
    assert isinstance(batch, Run)
    return batch


def queue_of(run: Run) -> str:
    """Return the queue that a run is of: its topic's, or that of the group's retries."""
    return run.reader.core.engine.queues.topics[run.cursor.row].decode()


def entry_of(delivery: Delivery) -> tuple[Run, list[int]]:
    """Return the run of a delivery, and its index in the queue."""
    run = delivery._handed
    assert isinstance(run, Run)
    return run, [int(run.indexes[delivery._i])]


class Taken:
    """The entries of all queues that one group was handed.

    Within one opening no entry comes again that is done; over a clean close none that lies before
    the first that is not. Each step is one for threads.
    """

    def __init__(self, failures: list[str]) -> None:
        self.failures = failures
        self.opening = 0
        self.done: set[tuple[str, int]] = set()  # in this opening
        self.kept: Counter[str] = Counter()  # all before this index is done for good
        self.fired: dict[str, int] = {}  # the index of each timer in its topic's queue
        self.sent_back: dict[str, set[int]] = {}  # its indexes among the retries

    def take(self, run: Run, indexes: list[int], ids: list[str]) -> None:
        """Note what was handed out."""
        if not ids:
            return
        queue = queue_of(run)
        for index, id in zip(indexes, ids, strict=True):
            if index < self.kept[queue] or (queue, index) in self.done:
                self.failures.append(
                    f"{id}, entry {index} of {queue}, came after it was done: kept "
                    f"{self.kept[queue]}, opening {self.opening}"
                )
            if queue.startswith(_RETRY):
                self.sent_back.setdefault(id, set()).add(index)
            elif (before := self.fired.setdefault(id, index)) != index:
                self.failures.append(f"{id} fired twice: entries {before}, {index} of {queue}")

    def end(self, run: Run, indexes: list[int]) -> None:
        """Note that entries are done; the call that did it has returned."""
        if indexes:
            queue = queue_of(run)
            self.done.update((queue, index) for index in indexes)

    def reopened(self, offset_of: Callable[[str], int] | None, *, clean: bool = True) -> None:
        """Begin another opening, behind a clean close, with the offsets that it has kept.

        They stand behind all that was done without a gap, and nothing before them comes again. What
        was done behind a gap does. Without `offset_of` nobody knows all that is done. A close that
        failed, as on a full disk, was not `clean`: what was done since a checkpoint comes again.
        """
        if offset_of is not None:
            for queue in {*self.kept, *(queue for queue, _ in self.done)}:
                end = self.kept[queue]
                while (queue, end) in self.done:
                    end += 1
                self.kept[queue] = offset_of(queue)
                if clean and self.kept[queue] < end:
                    self.failures.append(f"{queue}: offset {self.kept[queue]} is kept, not {end}")
        self.done.clear()
        self.opening += 1
