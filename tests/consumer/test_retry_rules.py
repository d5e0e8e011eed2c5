"""The rules of retrying: each row of the tables in rules.md is played in a real store."""

import logging
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.markdown import ROOT
from tests.small_store import SMALL
from timerstore import (
    Consumer,
    Delivery,
    InvalidArgumentError,
    ManualClock,
    Retry,
    TimerStore,
)
from timerstore.consumer.consumersettings import DEAD, Outcome, wait_after
from timerstore.testing.disk import QuietDisk

LEVELS_MS = SMALL.delay_levels_ms()
TIMEOUT = timedelta(minutes=15)


IN_FULL = Path(__file__).with_name("rules.md")


def table(name: str, path: Path = IN_FULL) -> list[list[str]]:
    """The cells of a table of the document, a list for each row."""
    text = path.read_text()
    match = re.search(rf"<!-- {name}: begin -->\n(.*?)<!-- {name}: end -->", text, re.DOTALL)
    assert match is not None
    lines = match[1].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


RULES, LISTS = table("rules"), table("lists")


@pytest.mark.parametrize("name", ["rules", "lists", "ordered"])
def test_the_page_shows_rows_that_are_played(name: str) -> None:
    shown, played = table(name, ROOT / "docs" / "consumer.md"), table(name)
    assert shown == [row for row in played if row in shown]


class Panic(BaseException):
    """No Exception, as what an extension in Rust raises."""


def handler(what: str, clock: ManualClock) -> Callable[[Any], Any]:
    """A handler that does what a row says."""

    def run(_: Any) -> Any:
        if what == "raises":
            raise OSError("no luck")
        if what == "calls sys.exit":
            sys.exit(3)
        if what == "panics":
            raise Panic("in an extension")
        if what == "takes too long":
            clock.advance(TIMEOUT + timedelta(seconds=1))
            return None
        verb, _, value = what.partition(" ")
        assert verb == "returns"
        return eval(value, {"Retry": Retry, "timedelta": timedelta})

    return run


class Play:
    """A store with a consumer whose handler fails up to an attempt, then does what is asked."""

    def __init__(self, path: Path, *, attempt: int, what: str, **options: Any) -> None:
        self.clock = ManualClock()
        self.store = TimerStore(path, config=SMALL, clock=self.clock, disk=QuietDisk())
        self.seen: list[tuple[int, int, bytes]] = []
        self.acting_ms = 0
        # A time-out is noticed at its very end, not when the handler ends.
        self.taken_ms = TIMEOUT // timedelta(milliseconds=1) if what == "takes too long" else 0
        self.act = handler(what, self.clock)
        self.attempt = attempt
        self.consumer = Consumer(self.store, "g", timeout=TIMEOUT, **options)
        self.consumer.subscribe("t", self.handle)
        self.workings = self.consumer._workings

    def handle(self, got: Any) -> Any:
        deliveries: list[Delivery] = got if isinstance(got, list) else [got]
        now_ms, attempt = self.clock.now_ms, deliveries[0].attempt
        assert {d.topic for d in deliveries} == {"t"}
        self.seen += [(now_ms, d.attempt, d.body) for d in deliveries]
        if attempt < self.attempt:
            return Retry(delay_level=1)
        if self.acting_ms:
            return None  # it has come again: that is all we ask
        self.acting_ms = now_ms
        return self.act(got)

    def dead(self) -> dict[bytes, int]:
        """The dead letters: attempts made, by body."""
        return {d.body: d.attempt for d in self.store.consume("%DLQ%g", timeout=0)}

    def becomes(self, body: bytes, dead: dict[bytes, int]) -> str:
        """What has become of a message that the handler acted on."""
        acted = self.attempt if self.acting_ms else -1
        later = [now_ms for now_ms, attempt, b in self.seen if b == body and attempt > acted]
        if later:
            assert body not in dead and len(later) == 1
            waited_ms = later[0] - self.acting_ms - self.taken_ms
            if waited_ms in LEVELS_MS:
                return f"again after level {LEVELS_MS.index(waited_ms) + 1}"
            return f"again after {waited_ms} ms"
        if body in dead:
            assert dead[body] == self.attempt + 1
            return "dead letter"
        return "gone"

    def finish(self) -> None:
        self.workings.end()
        committed = self.workings.subscriptions[0].group.committed()
        for (topic, _), index in committed.items():
            row = self.store.core.engine.queues.row(topic.encode())
            assert index == self.store.core.engine.queues.next_index(row), "something is not done"
        self.store.close()


@pytest.mark.parametrize("row", RULES, ids=" ".join)
def test_one_message(row: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group, attempt, what, expected = row
    play = Play(tmp_path, attempt=int(attempt), what=what, broadcast=group == "broadcast")
    play.consumer.start()
    id = play.store.put(b"body", topic="t", key="key", properties={"a": "b"})
    caplog.set_level(logging.INFO, "timerstore")
    play.clock.advance(timedelta(hours=4))
    assert play.acting_ms, "the handler was not called"
    found = play.becomes(b"body", play.dead())
    failed = [record for record in caplog.records if id in record.getMessage()]
    if expected in ("acknowledged", "logged"):
        assert found == "gone"
        assert (expected == "logged") == any(each.levelno == logging.ERROR for each in failed)
    else:
        assert found == expected
    if what in ("raises", "calls sys.exit", "panics"):
        assert any(record.exc_info for record in failed), "the exception was not logged"
    play.finish()


@pytest.mark.parametrize("row", LISTS, ids=" ".join)
def test_a_list(row: list[str], tmp_path: Path) -> None:
    what, *expected = row
    play = Play(tmp_path, attempt=0, what=what, batch_count=3)
    play.store.put_many([b"0", b"1", b"2"], topic="t")
    play.consumer.start()
    play.clock.advance(timedelta(hours=4))
    assert [body for _, _, body in play.seen[:3]] == [b"0", b"1", b"2"]
    dead = play.dead()
    found = [play.becomes(body, dead) for body in (b"0", b"1", b"2")]
    assert found == [each.replace("acknowledged", "gone") for each in expected]
    play.finish()


def outcome(delay_level: int = 0, *, timed_out: bool = False, **more: Any) -> Outcome:
    return Outcome(0, delay_level, None, timed_out, 1.0, **more)


def test_what_a_message_waits_for() -> None:
    assert [wait_after(n, outcome(), 16) for n in range(17)] == [*range(3, 19), DEAD]
    assert wait_after(0, outcome(), 0) == DEAD
    assert wait_after(3, outcome(7), 4) == 7


def test_a_consumer_may_say_how_long() -> None:
    backoff = (timedelta(seconds=1), timedelta(seconds=5))
    found = [wait_after(n, outcome(), 3, backoff) for n in range(4)]
    assert found == [backoff[0], backoff[1], backoff[1], DEAD]
    assert wait_after(0, outcome(3, timed_out=True), 3, backoff) == backoff[0]
    assert wait_after(0, outcome(3), 3, backoff) == 3
    assert wait_after(0, outcome(DEAD), 3, backoff) == DEAD
    minute = timedelta(minutes=1)
    assert wait_after(0, outcome(delay=minute), 3, backoff) == minute


WRONG_DELAYS = (-5, True, timedelta(seconds=-1), timedelta.max, "1s")


@pytest.mark.parametrize(
    "bad",
    [
        *({"delay_level": 1.5}, {"ack_index": -1}, {"ack_index": True}, {"reason": 5}),
        *({"delay": each} for each in WRONG_DELAYS),
        {"delay": timedelta(seconds=1), "delay_level": 1},
    ],
)
def test_retry_refuses(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        Retry(**bad)


@pytest.mark.parametrize("bad", [5, timedelta(1), "1s", [], *([each] for each in WRONG_DELAYS)])
def test_backoff_is_refused(tmp_path: Path, bad: Any) -> None:
    store = TimerStore(tmp_path, config=SMALL, clock=ManualClock(), disk=QuietDisk())
    with store, pytest.raises(InvalidArgumentError, match="backoff"):
        Consumer(store, "g", backoff=bad)


@pytest.mark.parametrize("ordered", [False, True, "key"])
def test_a_delay_of_ones_own_outlives_crashes_and_counts(tmp_path: Path, ordered: Any) -> None:
    """To the millisecond, over a kill in each wait, until it is a dead letter that says why."""
    clock, waits = ManualClock(), [timedelta(milliseconds=1_234), timedelta(hours=5)]
    seen: list[tuple[int, int]] = []

    def fail(d: Delivery) -> Retry:
        seen.append((d.attempt, clock.now_ms))
        asked = timedelta(seconds=9) if d.attempt == 2 else None
        return Retry(delay=asked, reason=f"no luck in attempt {d.attempt}")

    def opened() -> TimerStore:
        store = TimerStore(tmp_path, config=SMALL, clock=clock, disk=QuietDisk())
        consumer = Consumer(store, "g", ordered=ordered, backoff=waits, max_attempts=4)
        consumer.subscribe("t", fail)
        consumer.start()
        return store

    store = opened()
    id = store.put(b"x", topic="t", key="k")
    began_ms, expected_ms = clock.now_ms, [0]
    for wait in (*waits, timedelta(seconds=9), waits[-1]):
        expected_ms.append(expected_ms[-1] + wait // timedelta(milliseconds=1))
        clock.advance(timedelta(0))
        if not ordered:  # an ordered consumer holds the message itself back, see consumer.md
            assert store.count() == 1
        store.flush()
        store.abandon()
        clock = ManualClock(clock.now_ms)
        store = opened()
        clock.advance(wait - timedelta(milliseconds=1))
        assert len(seen) == len(expected_ms) - 1
        clock.advance(timedelta(milliseconds=1))
    assert seen == [(i, began_ms + at_ms) for i, at_ms in enumerate(expected_ms)]
    (letter,) = store.dead_letters("g")
    assert (letter.id, letter.attempts, letter.error_type) == (id, 5, "retry")
    assert letter.error_text == "no luck in attempt 4"
    store.close()
