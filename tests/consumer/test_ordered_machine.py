"""The ordered consumer on a manual clock, at random, with crashes: nothing overtakes in a line.

A play puts messages of a few keys, whose handlers fail as often as their body says; it moves the
clock, closes the store or kills it, also out of a handler. What happened is judged at the end, by
the order in which the messages were fired. Each wrong variant is found by one of the plays.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.history import Act, Acts
from tests.small_store import SMALL
from tests.tiers import how_many
from timerstore import Consumer, Delivery, InvalidArgumentError, ManualClock, Retry, TimerStore
from timerstore.calls.consuming.consuming import Consuming, begin_groups
from timerstore.consumer.sources import Lines, OrderedSubscription
from timerstore.jit.kernel import INTERPRETED
from timerstore.testing.disk import QuietDisk

PLAYS = how_many("ORDERED_PLAYS", 3 if INTERPRETED else 4, 40)
STEPS = 40
LEVELS_MS = SMALL.delay_levels_ms()
MAX_ATTEMPTS = 3


class Killed(KeyboardInterrupt):
    """The process is gone."""


@dataclass
class Event:
    """What a handler did: `begins`, then `done`, `failed`, `dead`; or the process was `killed`."""

    what: str
    body: bytes
    now_ms: int
    attempt: int


class Play(Acts):
    """A store with an ordered consumer, and what happened."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.ordered: Any = self.rnd.choice([True, "key", "key"])
        self.config = replace(
            SMALL,
            durability=self.rnd.choice(["group", "process"]),
            inflight_count_max=self.rnd.choice([1, 4, 1000]),
            inflight_span_max=self.rnd.choice([8, 2000]),
        )
        self.events: list[Event] = []
        self.scripts: dict[bytes, list[str]] = {}
        self.keys: dict[bytes, str | None] = {}
        self.open()

    def open(self) -> None:
        self.clock = ManualClock(self.now_ms)
        self.store = TimerStore(self.path, config=self.config, clock=self.clock, disk=QuietDisk())
        begin_groups(self.store.consuming, [("t", "audit")], "earliest")
        self.consumer = self.new_consumer()

    def new_consumer(self) -> Consumer:
        consumer = Consumer(
            *(self.store, "g"),
            ordered=self.ordered,
            max_attempts=MAX_ATTEMPTS,
            timeout=timedelta(seconds=10),
            pull_count=self.rnd.choice([1, 3, 32]),
        )
        consumer.subscribe("t", self.handle)
        consumer.start()
        return consumer

    def note(self, what: str, body: bytes, attempt: int) -> None:
        self.events.append(Event(what, body, self.clock.now_ms, attempt))

    def handle(self, d: Delivery) -> Retry | None:
        self.note("begins", d.body, d.attempt)
        script = self.scripts[d.body]
        act = script.pop(0) if script else ""
        if act == "kill":
            self.store.abandon()
            raise Killed
        if act == "slow":
            self.clock.advance(timedelta(seconds=12))  # longer than its time: nothing comes of it
        fails = act in ("raise", "retry 1", "retry 3 h")
        failed = fails and d.attempt < MAX_ATTEMPTS
        dead = act == "give up" or (fails and not failed)
        self.note("failed" if failed else "dead" if dead else "done", d.body, d.attempt)
        if act == "raise":
            raise OSError("no luck")
        return {
            "retry 1": Retry(delay_level=1),
            "retry 3 h": Retry(delay=timedelta(hours=3)),
            "give up": Retry(delay_level=-1),
        }.get(act)

    # --- what a program does

    def put(self) -> None:
        body = b"%d" % len(self.scripts)
        acts = ["raise", "raise", "retry 1", "retry 3 h", "give up", "slow", "kill", ""]
        self.scripts[body] = self.rnd.choices(acts, k=self.rnd.choice([0, 0, 0, 1, 3, 6]))
        self.keys[body] = self.rnd.choice(["a", "a", "b", "c", None])
        delay = timedelta(milliseconds=self.rnd.choice([0, 0, 1, 500, 5_000]))
        self.store.put(body, topic="t", key=self.keys[body], delay=delay)

    def advance(self) -> None:
        ms = self.rnd.choice([0, 1, 700, 9_999, 10_000, 61_000])
        self.clock.advance(timedelta(milliseconds=ms))

    def kill(self) -> None:
        if self.rnd.random() < 0.5:
            self.store.flush()
            self.note("saved", b"", 0)
        self.store.abandon()
        raise Killed

    def reopen(self) -> None:
        self.consumer.close()
        self.store.close()
        self.open()

    def change_hands(self) -> None:
        """Another consumer goes on, in the same process."""
        self.consumer.close()
        self.consumer = self.new_consumer()

    def acts(self) -> list[tuple[int, Act]]:
        ends = [(1, self.kill), (1, self.reopen), (1, self.change_hands)]
        return [(8, self.put), (6, self.advance), *ends]

    def run(self) -> None:
        try:
            self.play()
        except BaseException:
            self.store.abandon()
            raise
        self.consumer.close()
        self.store.close()

    def play(self) -> None:
        """Let things happen until every message has ended, and judge."""
        self.happen(STEPS)
        for _ in range(400):
            self.do(lambda: self.clock.advance(timedelta(minutes=5)))
            if all(not script for script in self.scripts.values()) and not self.unfinished():
                break
        self.judge()

    def do(self, act: Act) -> None:
        try:
            act()
        except Killed:
            self.note("killed", b"", 0)
            self.now_ms = self.clock.now_ms + self.rnd.choice([0, 1, 30_000])
            self.open()
        self.now_ms = self.clock.now_ms

    def unfinished(self) -> set[bytes]:
        return set(self.scripts) - {e.body for e in self.events if e.what in ("done", "dead")}

    # --- what must hold

    def judge(self) -> None:
        assert not self.unfinished(), "a message is lost"
        fired = [d.body for d in self.store.consume("t", group="audit", timeout=0)]
        assert sorted(fired) == sorted(self.scripts)
        before: dict[bytes, list[bytes]] = {}
        lines: defaultdict[str, list[bytes]] = defaultdict(list)
        for body in fired:
            key = "" if self.ordered is True else self.keys[body]
            before[body] = [] if key is None else list(lines[key])
            if key is not None:
                lines[key].append(body)
        ended: set[bytes] = set()
        running: set[bytes] = set()
        failed: dict[bytes, Event] = {}
        saved = False
        safe: dict[bytes, Event] = {}
        for event in self.events:
            if event.what == "saved":
                safe = dict(failed)
                saved = True
            elif event.what == "killed":
                running.clear()
                failed = safe if saved else {}
                saved = False
            elif event.what == "begins":
                late = [each for each in before[event.body] if each not in ended]
                assert not late, f"{event} overtakes {late}"
                assert not running & set(before[event.body]), f"{event} does not wait"
                known = failed.get(event.body)
                if known is not None and event.body not in ended:
                    self.judge_attempt(event, known)
                running.add(event.body)
            else:
                running.discard(event.body)
                failed.pop(event.body, None)
                if event.what == "failed":
                    failed[event.body] = event
                else:
                    ended.add(event.body)
        letters = {each.body for each in self.store.dead_letters("g")}
        assert letters >= {e.body for e in self.events if e.what == "dead"} - {
            e.body for e in self.events if e.what == "done"
        }

    def judge_attempt(self, event: Event, known: Event) -> None:
        """How often it failed is known over a restart, and it does not come too soon."""
        assert event.attempt == known.attempt + 1, f"{event} after {known}"
        waited_ms = event.now_ms - known.now_ms
        assert waited_ms >= LEVELS_MS[0], f"{event} comes too soon after {known}"


@pytest.mark.parametrize("seed", range(PLAYS))
def test_nothing_overtakes(tmp_path: Path, seed: int) -> None:
    Play(tmp_path, seed).run()


def all_at_once(self: Lines, tasks: Any) -> list[Any]:
    return list(tasks)


def lets_go(hold: Callable[..., None]) -> Callable[..., None]:
    def wrong(self: OrderedSubscription, task: Any, wait_ms: int) -> None:
        hold(self, task, wait_ms)
        following = self.next_after(task)
        if following is not None:
            self.hold_back(following, 0)

    return wrong


VARIANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "nobody waits": lambda p: p.setattr(Lines, "enter", all_at_once),
    "a failure lets the next one go": lambda p: p.setattr(
        OrderedSubscription, "hold", lets_go(OrderedSubscription.hold)
    ),
    "what waits is not given back": lambda p: p.setattr(
        OrderedSubscription, "waiting", lambda self: []
    ),
    "attempts are forgotten": lambda p: p.setattr(Consuming, "_all_held_back", lambda self: {}),
    "it comes at once after a restart": lambda p: p.setattr(
        OrderedSubscription, "_is_early", lambda self, task: False
    ),
    "the last of a line takes the others along": lambda p: p.setattr(
        Lines, "leave", lambda self, task: (self._waiting.pop(task.line, None), None)[1]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_wrong_variants_are_found(
    tmp_path: Path, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    VARIANTS[variant](monkeypatch)
    for seed in range(60):
        try:
            Play(tmp_path / str(seed), seed).run()
        except (AssertionError, InvalidArgumentError):  # it overtakes, or cannot be read alone
            return
    pytest.fail(f"{variant}: not found")
