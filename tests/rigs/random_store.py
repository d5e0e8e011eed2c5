"""Stores that random histories leave behind: what is put, moved, sent back, how they end."""

from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from tests.rigs.history import LEVELS, Act, History
from timerstore.calls.consuming.sendback import send_back

LEVEL_COUNT = len(LEVELS.split())


class Left(NamedTuple):
    """A store that a history left behind."""

    path: Path
    pending: int
    was_closed: bool


class MadeUp(History):
    """A history that others judge; what was handed out is put back and sent back too."""

    def settle(self) -> None:
        self.play(self.now_ms, self.now_ms)

    def forget(self, durable: int, *, power: bool) -> None:
        """Name nothing that a crash has undone."""
        known = {root.key for root in self.ledger().roots.values()}
        self.put = {id: end for id, end in self.put.items() if id in known}

    def someone_puts_back(self) -> None:
        rnd = self.rnd
        batch = self.store.pull("a", timeout=0, max_count=rnd.randrange(1, 5))
        for delivery in batch:
            delivery.nack(timedelta(milliseconds=rnd.randrange(10_000)))
        batch.ack()

    def someone_sends_back(self) -> None:
        """What was sent back once comes from its own topic, and may be sent back again."""
        rnd = self.rnd
        topic = rnd.choice(("a", "b", "%RETRY%g"))
        batch = self.store.pull(topic, group="g", timeout=0, max_count=rnd.randrange(1, 5))
        for delivery in batch:
            message = delivery._handed.message(delivery._i)
            level = rnd.randrange(1, LEVEL_COUNT + 1)
            send_back(self.store.putting, "g", message, delay_level=level)
        batch.ack()

    def acts(self) -> list[tuple[int, Act]]:
        return [*super().acts(), (4, self.someone_puts_back), (6, self.someone_sends_back)]

    def leave(self) -> Left:
        self.happen(self.rnd.randrange(10, 120))
        self.settle()
        pending, is_closed = self.store.count(), self.rnd.random() < 0.5
        (self.store.close if is_closed else self.store.abandon)()
        return Left(self.path, pending, is_closed)
