"""Moving a store's timers to a cluster, here a list that refuses or ends where it is told to."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import chain, cycle, repeat
from pathlib import Path

import pytest

import timerstore
from tests.small_store import SMALL
from timerstore import ClusterError, InvalidArgumentError, ManualClock, TimerStore, TimerStoreError
from timerstore.rocketmq.sending import Judge, Moved, Sending, move_pending, note_of, read_note
from timerstore.store.store import StillStore

NOW_MS = 1_900_000_000_000
DAY_MS = 86_400_000


class Killed(BaseException):
    """What ends a process."""


class Cluster:
    """Takes timers; `fails` says after how many, and how."""

    def __init__(self, *, fails_after: int = 1 << 30, kills: bool = False) -> None:
        self.got: list[Sending] = []
        self.fails_after, self.kills = fails_after, kills
        self.refused: set[str] = set()
        self.busy: Iterator[bool] = repeat(False)

    def why_not(self, topic: str) -> str:
        return "the cluster has no such topic" if topic == "unknown" else ""

    def send_many(
        self, sendings: Iterable[Sending]
    ) -> Iterator[tuple[Sending, TimerStoreError | None]]:
        for each in sendings:
            if each.id in self.refused:
                yield each, InvalidArgumentError("no")
                return  # as the client does, whose chunk is broken off
            if next(self.busy):
                error = ClusterError("busy")
                error.busy = True
                yield each, error
                return
            if len(self.got) >= self.fails_after:
                if self.kills:
                    raise Killed
                yield each, ClusterError("no answer")
                return
            self.got.append(each)
            yield each, None


def move(store: TimerStore, cluster: Cluster, topic: str | None = None) -> Moved:
    judge = Judge(cluster, NOW_MS, 10 * DAY_MS)
    return move_pending(store, cluster, judge, store.path, topic=topic)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with 200 timers that can go."""
    with timerstore.open(tmp_path / "s", config=SMALL, clock=ManualClock(NOW_MS)) as store:
        for i in range(200):
            given = {"key": f"k{i}", "tag": "t", "properties": {"n": str(i)}}
            given |= {"expires_ms": NOW_MS + 200_000 + i} if i % 3 else {}
            topic = "a" if i % 2 else "b"
            store.put(b"%d" % i, topic=topic, at_ms=NOW_MS + 100_000 + 7 * i, **given)
    return tmp_path / "s"


def opened(path: Path) -> TimerStore:
    return timerstore.open(path, config=SMALL, clock=ManualClock(NOW_MS))


def test_all_go_once_as_they_were(path: Path) -> None:
    cluster = Cluster()
    with opened(path) as store:
        wanted = {timer.id: timer for timer in store.pending()}
        assert move(store, cluster, topic="a").count == 100
        assert store.count() == store.count("b") == 100
        assert move(store, cluster).count == 100
        assert store.count() == 0 and move(store, cluster).count == 0
    assert not note_of(path).exists()
    assert len(cluster.got) == 200
    for each in cluster.got:
        timer = wanted.pop(each.id)
        assert each.due_s is not None and 0 <= each.due_s * 1_000 - timer.due_ms < 1_000
        assert each[2] == timer.body and (each.topic, each.key) == (timer.topic, timer.key)
        assert each.tag == timer.tag
        expires_ms = each.properties.pop("TIMER_EXPIRES_MS", None)
        assert expires_ms == (None if timer.expires_ms is None else str(timer.expires_ms))
        assert each.properties == timer.properties


def test_what_is_overdue_goes_with_its_time(path: Path) -> None:
    """A topic that is for timers takes no message without a time."""
    cluster, later_ms = Cluster(), NOW_MS + 101_100
    with StillStore(path, config=SMALL, clock=ManualClock(later_ms)) as store:
        judge = Judge(cluster, later_ms, DAY_MS)
        assert move_pending(store, cluster, judge, path).count == 200
    overdue = [each for each in cluster.got if each.due_s and each.due_s * 1_000 < later_ms]
    assert len(overdue) > 50 and None not in {each.due_s for each in cluster.got}


@pytest.mark.parametrize("is_paused", [False, True])
def test_nothing_fires_and_what_is_paused_stays_so(path: Path, is_paused: bool) -> None:
    given = {"config": SMALL, "clock": ManualClock(NOW_MS + DAY_MS)}
    if is_paused:
        with opened(path) as store:
            store.pause("firing", keep=True)
    with StillStore(path, **given) as store:
        assert store.count() == 200 and not store.pull("a", group="g", timeout=0)
    with timerstore.open(path, **given) as store:
        assert store.count() == (200 if is_paused else 0)


def test_nothing_fires_when_a_kept_pause_ends(path: Path) -> None:
    with opened(path) as store:
        store.pause("firing", duration=timedelta(days=2), keep=True)
    clock = ManualClock(NOW_MS + DAY_MS)
    with StillStore(path, config=SMALL, clock=clock) as store:
        clock.advance(timedelta(days=2))
        assert store.count() == 200 and not store.pull("a", group="g", timeout=0)
    with timerstore.open(path, config=SMALL, clock=clock) as store:
        assert store.count() == 0


@pytest.mark.tier("prove", only=("False-[01]*", "False-65", "True-[16]*"))
@pytest.mark.parametrize("fails_after", [0, 1, 63, 64, 65, 130, 199])
@pytest.mark.parametrize("kills", [False, True])
def test_broken_off_it_goes_on(path: Path, fails_after: int, kills: bool) -> None:
    cluster = Cluster(fails_after=fails_after, kills=kills)
    with opened(path) as store:
        with pytest.raises(Killed if kills else ClusterError):
            move(store, cluster)
        under_way = read_note(path)
        assert 0 < len(under_way) <= 64
        left = {timer.id for timer in store.pending()}
    lost = {each.id for each in cluster.got} & left
    assert lost <= set(under_way) and (kills or not lost)
    cluster.fails_after = 1 << 30
    with opened(path) as store:
        move(store, cluster)
        assert store.count() == 0
    times = Counter(each.id for each in cluster.got)
    assert len(times) == 200 and max(times.values()) <= 2
    assert {id for id, count in times.items() if count == 2} == lost
    assert read_note(path) == []


def test_what_the_cluster_refuses_stays(path: Path) -> None:
    cluster = Cluster()
    with opened(path) as store:
        ids = [timer.id for timer in store.pending()]
        cluster.refused = {ids[0], ids[70], ids[199]}
        moved = move(store, cluster)
        assert moved.count == 197 and set(moved.stays) == cluster.refused
        assert {timer.id for timer in store.pending()} == cluster.refused
    assert max(Counter(each.id for each in cluster.got).values()) == 1


def test_a_busy_cluster_is_asked_again(path: Path) -> None:
    """All go once; what it refused is no timer that may come twice."""
    cluster, waits_s = Cluster(), list[float]()
    with opened(path) as store:
        judge = Judge(cluster, NOW_MS, 10 * DAY_MS)
        given = {"store": store, "target": cluster, "judge": judge, "path": path}
        cluster.busy = chain(repeat(True, 3), cycle((False, False, True)))
        assert move_pending(**given, sleep=waits_s.append).count == 200
        assert store.count() == 0
    assert waits_s[:3] == [1.0, 2.0, 4.0] and set(waits_s[3:]) == {1.0}
    assert max(Counter(each.id for each in cluster.got).values()) == 1


def test_a_cluster_that_stays_busy(path: Path) -> None:
    cluster, waits_s = Cluster(), list[float]()
    with opened(path) as store:
        judge = Judge(cluster, NOW_MS, 10 * DAY_MS)
        cluster.busy = chain(repeat(False, 100), repeat(True))
        with pytest.raises(ClusterError, match="busy"):
            move_pending(store, cluster, judge, path, sleep=waits_s.append)
        assert store.count() == 100 == len(cluster.got)
    assert sum(waits_s) == 60.0


def test_ids_of_another_topic_stay_in_the_note(path: Path) -> None:
    """One run was killed, and the next moves another topic."""
    cluster = Cluster(fails_after=30, kills=True)
    with opened(path) as store:
        with pytest.raises(Killed):
            move(store, cluster, topic="a")
        doubted = set(read_note(path))
        cluster.fails_after = 1 << 30
        move(store, cluster, topic="b")
        assert set(read_note(path)) == doubted
        move(store, cluster)
    assert read_note(path) == []


def test_a_table_of_what_cannot_go(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL, clock=ManualClock(NOW_MS)) as store:
        at = {"delay": timedelta(hours=1)}
        goes = store.put(b"x", topic="t", **at)
        store.put(b"x", topic="t|u", **at)
        store.put(b"x", topic="unknown", **at)
        store.put(b"x", topic="t", delay=timedelta(days=10, seconds=1))
        store.put(b"x", topic="t", key="a b", **at)
        store.put(b"x", topic="t", tag="a|b", **at)
        store.put(b"x", topic="t", properties={"a": " "}, **at)
        store.put(b"x", topic="t", properties={"a": "x" * 16_383}, **at)
        store.put(b"x", topic="group", **at)
        cluster = Cluster()
        rows = Judge(cluster, NOW_MS, 10 * DAY_MS).table(store.pending())
        assert sum(row.count for row in rows) == store.count() == 9
        reasons = {row.why.split(" ")[0] for row in rows}
        assert len([row for row in rows if row.why]) == 7 and "" in reasons
        for words in (
            "further ahead",
            "no such topic",
            "16,384 bytes",
            "key has a blank",
            "tag has a |",
            "has a |",
        ):
            assert any(words in row.why for row in rows), words
        assert move(store, cluster).count == 2
        assert goes in {each.id for each in cluster.got} and store.count() == 7


def test_a_note_that_is_none(path: Path) -> None:
    for text in ("", "{", "{}", "[1]"):
        note_of(path).write_text(text)
        with pytest.raises(InvalidArgumentError, match=r"[Rr]emove it"):
            read_note(path)
