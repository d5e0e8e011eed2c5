"""The rules of retrying, with handlers that are coroutines: the rows of the consumer's rules.md."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore.aio
from tests.aio.loops import run
from tests.consumer.test_retry_rules import LISTS, RULES, TIMEOUT, Play, handler
from tests.small_store import SMALL
from timerstore import ManualClock, TimerStore
from timerstore.consumer.consumer import stepper_of
from timerstore.testing.disk import QuietDisk

pytestmark = pytest.mark.timeout(120)
HOURS = timedelta(hours=4)
FIRST_TIMES = [row for row in RULES if row[1] == "0"]
"""What attempts count for is not asked here again: the rules are the same functions."""


class AsyncPlay(Play):
    """The same, with a consumer for asyncio, which a manual clock does not step."""

    def __init__(self, path: Path, *, attempt: int, what: str) -> None:
        self.clock = ManualClock()
        self.store = TimerStore(path, config=SMALL, clock=self.clock, disk=QuietDisk())
        self.seen: list[tuple[int, int, bytes]] = []
        self.acting_ms, self.attempt, self.act = 0, attempt, handler(what, self.clock)
        late = TIMEOUT + timedelta(seconds=1)
        self.taken_ms = late // timedelta(milliseconds=1) if what == "takes too long" else 0

    async def play(self, bodies: list[bytes], **options: Any) -> None:
        async with timerstore.aio.attach(self.store) as store:
            self.async_consumer = timerstore.aio.Consumer(store, "g", timeout=TIMEOUT, **options)

            @self.async_consumer.on("t")
            async def handle(got: Any) -> Any:
                await asyncio.sleep(0)
                return self.handle(got)

            await store.put_many(bodies, topic="t")
            stop_ms = self.clock.now_ms + HOURS // timedelta(milliseconds=1)
            while self.clock.now_ms < stop_ms:
                await self.async_consumer.step()
                now_ms = self.clock.now_ms
                stepper = stepper_of(self.async_consumer._workings)
                assert stepper is not None
                at_ms = stepper.next_ms(now_ms, max(stop_ms, now_ms + 1))
                self.clock.advance(timedelta(milliseconds=at_ms - now_ms))
            assert await self.async_consumer.close()
        self.workings = self.async_consumer._workings


@pytest.mark.parametrize("row", FIRST_TIMES, ids=" ".join)
def test_one_message(row: list[str], tmp_path: Path) -> None:
    group, attempt, what, expected = row
    play = AsyncPlay(tmp_path, attempt=int(attempt), what=what)
    run("asyncio", lambda: play.play([b"body"], broadcast=group == "broadcast"))
    assert play.acting_ms, "the handler was not called"
    found = play.becomes(b"body", play.dead())
    assert found == ("gone" if expected in ("acknowledged", "logged") else expected)
    play.finish()


@pytest.mark.parametrize("row", LISTS, ids=" ".join)
def test_a_list(row: list[str], tmp_path: Path) -> None:
    what, *expected = row
    play = AsyncPlay(tmp_path, attempt=0, what=what)
    run("asyncio", lambda: play.play([b"0", b"1", b"2"], batch_count=3))
    dead = play.dead()
    found = [play.becomes(body, dead) for body in (b"0", b"1", b"2")]
    assert found == ["gone" if each == "acknowledged" else each for each in expected]
    play.finish()
