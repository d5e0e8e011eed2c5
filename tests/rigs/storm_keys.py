"""What one thread at a time does with a key, or with a chain's token: each answer is known.

Where a signal ended a call, both outcomes are allowed until somebody looks; where it was refused,
nothing was done.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from timerstore import Delivery, StoreClosedError, StoreFullError, TimerStore

PARKED, KEYED, CHAINS = "parked", "keyed", "chains"
REFUSED = StoreClosedError, StoreFullError
DAY_MS = 86_400_000
PARKED_FROM_MS = 60 * DAY_MS
PARKED_FOR_MS = 5 * DAY_MS
_BEGUN_MS = time.time_ns() // 1_000_000


def far_due(rng: random.Random) -> int:
    """Return a time that does not come, in a range in which nobody else puts."""
    return _BEGUN_MS + PARKED_FROM_MS + rng.randrange(PARKED_FOR_MS)


class Keyed:
    """The timers of a key that lie far ahead: as (id, body), as long as nothing is uncertain."""

    def __init__(self, topic: str, key: str) -> None:
        self.topic, self.key = topic, key
        self.ids: dict[str, bytes] = {}
        self.allowed: Callable[[dict[str, bytes]], bool] | None = None
        self.serial = 0

    def next_body(self) -> bytes:
        """Return a body that tells this put from all others."""
        self.serial += 1
        return f"{self.key}:{self.serial}".encode()

    def doing(
        self,
        call: Callable[[], Any],
        allowed: Callable[[dict[str, bytes]], bool],
        *,
        may_be_partly_refused: bool = False,
    ) -> Any:
        """Call; where that is ended, what is there must be as before, or `allowed`."""
        self.allowed = allowed
        try:
            return call()
        except REFUSED:
            if not may_be_partly_refused:
                self.allowed = lambda _: False
            raise

    def done(self, ids: dict[str, bytes]) -> None:
        """Note what is pending now; the call had an end."""
        self.ids, self.allowed = ids, None

    def look(self, store: TimerStore) -> dict[str, bytes]:
        """Return what is pending with the key."""
        return {each.id: each.body for each in store.pending(topic=self.topic, key=self.key)}

    def resolve(self, store: TimerStore) -> None:
        """Look what a call did that was ended, and what is there at all."""
        found, allowed = self.look(store), self.allowed
        certain = found == self.ids
        assert certain or (allowed is not None and allowed(found)), (
            f"{self.topic} {self.key}: {found}, not {self.ids}; {allowed}"
        )
        self.done(found)

    # --- calls

    def step(self, store: TimerStore, rng: random.Random) -> None:
        """Do something, and hold the answer against what is known."""
        if self.allowed is not None:
            self.resolve(store)
        calls = [self.get, self.list, self.move]
        if self.topic == KEYED:
            calls += [self.put, self.put_if_absent, self.replace, self.cancel_key, self.cancel]
        rng.choice(calls)(store, rng)

    def put(self, store: TimerStore, rng: random.Random) -> None:
        """Put one more; mostly where there is none."""
        if len(self.ids) and rng.random() < 0.7:
            return
        self._put(store, rng, before=self.ids)

    def park(self, store: TimerStore, rng: random.Random) -> None:
        """Put the only one."""
        self._put(store, rng, before={})

    def put_if_absent(self, store: TimerStore, rng: random.Random) -> None:
        """Put where there is none; else the id of one that is there comes back."""
        before = dict(self.ids)
        if not before:
            self._put(store, rng, before={}, if_absent=True)
            return
        given: dict[str, Any] = {"topic": self.topic, "key": self.key, "at_ms": far_due(rng)}
        id = self.doing(lambda: store.put(b"nobody", if_absent=True, **given), lambda _: False)
        assert id in before, f"{id} instead of {before}"
        self.done(before)

    def replace(self, store: TimerStore, rng: random.Random) -> None:
        """Put one in the place of the only one, if there is any."""
        if len(self.ids) < 2:
            self._put(store, rng, before={}, replace=True)

    def _put(
        self, store: TimerStore, rng: random.Random, before: dict[str, bytes], **how: Any
    ) -> None:
        body, kept = self.next_body(), dict(before)

        def is_there(found: dict[str, bytes]) -> bool:
            new = {id: each for id, each in found.items() if id not in kept}
            return list(new.values()) == [body] and len(found) == len(kept) + 1

        given: dict[str, Any] = {"topic": self.topic, "key": self.key, "at_ms": far_due(rng)}
        id = self.doing(lambda: store.put(body, **given, **how), is_there)
        self.done({**kept, id: body})

    def move(self, store: TimerStore, rng: random.Random) -> None:
        """Reschedule one."""
        if not self.ids:
            return
        old = rng.choice(list(self.ids))
        body, rest = self.ids[old], {id: each for id, each in self.ids.items() if id != old}

        def is_moved(found: dict[str, bytes]) -> bool:
            new = {id: each for id, each in found.items() if id not in rest}
            return list(new.values()) == [body] and old not in new and len(found) == len(self.ids)

        id = self.doing(lambda: store.reschedule(old, at_ms=far_due(rng)), is_moved)
        self.done({**rest, id: body})

    def cancel_key(self, store: TimerStore, _: random.Random) -> None:
        """Cancel all."""
        before = dict(self.ids)
        count = self.doing(
            lambda: store.cancel_key(self.topic, self.key),
            lambda found: found.items() <= before.items(),
            may_be_partly_refused=True,
        )
        assert count == len(before), f"{self.key}: {count} cancelled of {before}"
        self.done({})

    def cancel(self, store: TimerStore, rng: random.Random) -> None:
        """Cancel one."""
        if not self.ids:
            return
        id = rng.choice(list(self.ids))
        rest = {other: body for other, body in self.ids.items() if other != id}
        assert self.doing(lambda: store.cancel(id), lambda found: found == rest), f"{id} not there"
        self.done(rest)
        assert store.get(id) is None

    def get(self, store: TimerStore, rng: random.Random) -> None:
        """Get one by its key, and one by its id."""
        found = store.get_key(self.topic, self.key)
        assert (found is None) == (not self.ids), f"{self.key}: {found}, not {self.ids}"
        assert found is None or self.ids.get(found.id) == found.body, f"{found} of {self.ids}"
        if self.ids:
            id = rng.choice(list(self.ids))
            timer = store.get(id)
            assert timer is not None, f"{id} of {self.key} is not there"
            assert timer.body == self.ids[id]

    def list(self, store: TimerStore, _: random.Random) -> None:
        """List them."""
        found = self.look(store)
        assert found == self.ids, f"{self.key}: {found}, not {self.ids}"


class Chain:
    """A token that goes on by `ack_and_put_many`, with more or fewer puts beside it.

    Only one thread has it at a time. The next may have it before this one's call returns.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.begun: list[int] = []  # steps, as they are tried
        self.refused: list[int] = []
        self.done: set[int] = set()

    def may_be_at(self, step: int) -> bool:
        """Tell whether the token may come at a step."""
        before = step - 1
        was_tried = self.begun.count(before) > self.refused.count(before)
        return step not in self.done and (step == 0 or before in self.done or was_tried)

    def bodies(self, step: int) -> list[bytes]:
        """Return what a step puts: up to four files of a queue."""
        count = random.Random(self.number << 32 | step).choice([1, 30, 150, 320])
        return [f"{self.number}:{step}:{i}".encode() for i in range(count)]

    def go_on(self, delivery: Delivery, topic: str, rng: random.Random) -> None:
        """Acknowledge, and put the next token with what belongs to this step."""
        step = int(delivery.body.split(b":")[1])
        assert self.may_be_at(step), f"chain {self.number} at {step}: {self.done}, {self.begun}"
        self.begun = [each for each in self.begun if each >= step - 1]
        due_ms = time.time_ns() // 1_000_000 + rng.randrange(500)
        puts: list[Any] = [{"body": f"{self.number}:{step + 1}".encode()}]
        puts += [{"body": body, "topic": topic, "at_ms": due_ms} for body in self.bodies(step)]
        self.begun.append(step)
        try:
            ids = delivery.ack_and_put_many(puts)
        except REFUSED:
            self.refused.append(step)
            raise
        self.done.add(step)
        assert len(set(ids)) == len(puts)
