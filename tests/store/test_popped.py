"""What a broker's clients had received without acknowledging it comes again, once."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests import naive
from tests.rigs import broker
from timerstore import Config, ManualClock, TimerStore

REVIVE, REVIVE_GROUP = "rmq_sys_REVIVE_LOG_Here", "CID_RMQ_SYS_REVIVE_GROUP"
COUNT, READ = 30, 25


def popped(start: int, steps: list[int], bits: int = 0, **more: Any) -> tuple[str, dict[str, Any]]:
    """A pop checkpoint: its tag, what it says."""
    said = {"so": start, "pt": 7, "it": 20_000, "bm": bits, "n": len(steps), "d": steps}
    return "ck", said | {"q": 0, "t": "t", "c": "g", "bn": "broker-a", "ro": 0} | more


def done(start: int, *indexes: int, long: bool = False) -> tuple[str, dict[str, Any]]:
    """An acknowledgement of one entry, or of several; `long`: with the names of older brokers."""
    names = ("startOffset", "popTime", "queueId", "topic", "consumerGroup")
    said = dict(
        zip(names if long else ("so", "pt", "q", "t", "c"), (start, 7, 0, "t", "g"), strict=True)
    )
    if len(indexes) > 1:
        return "bAck", said | {"ackOffsetList" if long else "aol": list(indexes)}
    return "ack", said | {"ackOffset" if long else "ao": indexes[0]}


def fired(said: tuple[str, dict[str, Any]], *, real: bool = True) -> naive.Message:
    """One that has come into the broker's own topic; with `real` it was a timer before."""
    properties = {"TAGS": said[0]} | ({"REAL_TOPIC": REVIVE} if real else {})
    return broker.of_broker(REVIVE, json.dumps(said[1]).encode(), properties)


def waiting(said: tuple[str, dict[str, Any]], number: int) -> naive.Message:
    """One that waits as a timer."""
    body, key = json.dumps(said[1]).encode(), f"Q{number}"
    return broker.timer(REVIVE, body, broker.PUT_MS + 60_000, key, {"TAGS": said[0]})


def taken_over(path: Path, notes: list[naive.Message], table: dict[str, Any]) -> ManualClock:
    """Make a broker's store in which the group `g` counts as having read READ messages."""
    sent = [broker.of_broker("t", b"%d" % i, {"UNIQ_KEY": f"P{i}"}) for i in range(COUNT)]
    broker.write_store(path, sent + notes, 1 << 16)
    (path / "config").mkdir(exist_ok=True)
    check = naive.TimerCheck(broker.PUT_MS, 0, 0, 0, 0, broker.PUT_MS, 1)
    data = naive.encode_timercheck(check).ljust(4_096, b"\0")
    (path / "config" / "timercheck").write_bytes(data)
    offsets = {"offsetTable": {"t@g": {"0": READ}} | table}
    (path / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    return ManualClock(broker.PUT_MS + 1_000, force=True)


def open_it(path: Path, clock: ManualClock) -> TimerStore:
    return TimerStore(path, config=Config(durability="process"), clock=clock)


def read(store: TimerStore) -> list[int]:
    with_ack = store.pull("t", group="g", timeout=0)
    found = [int(delivery.body) for delivery in with_ack]
    with_ack.ack()
    return sorted(found) + (read(store) if found else [])


REST = list(range(READ, COUNT))


@pytest.mark.parametrize("long", [False, True])
def test_each_that_no_acknowledgement_names(tmp_path: Path, long: bool) -> None:
    notes = [
        fired(popped(0, [0, 1, 2, 3])),  # the broker has looked at this one
        fired(popped(4, [0, 1, 2, 3])),
        fired(done(4, 5, long=long)),
        waiting(popped(8, [0, 2, 4], bits=2), 1),  # 10 was acknowledged before it was noted
        waiting(done(8, 8, 12, long=long), 2),
        fired(popped(14, []), real=False),
        fired(popped(15, [], n=3)),  # as older brokers say which
        waiting(popped(20, [0, 1]), 3),
        waiting(done(21, 20), 4),  # of another receipt
    ]
    clock = taken_over(tmp_path / "s", notes, {f"{REVIVE}@{REVIVE_GROUP}": {"0": 0}})
    again = [4, 6, 7, 15, 16, 17, 20, 21]
    with open_it(tmp_path / "s", clock) as store:
        assert store.core.findings.by_broker
        assert store.stats().recovery["taken_back_count"] == len(again)
        store.abandon()
    with open_it(tmp_path / "s", clock) as store:  # nothing was settled before the kill
        assert read(store) == again + REST
        store.flush()
    with open_it(tmp_path / "s", clock) as store:
        assert read(store) == []
        clock.advance(timedelta(minutes=5))
        assert read(store) == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"so":1}', b'{"so":-1,"n":"x"}', b"\xff"])
def test_a_note_that_says_nothing_is_named_and_passed_by(tmp_path: Path, body: bytes) -> None:
    odd = broker.of_broker(REVIVE, body or b" ", {"TAGS": "ck"})
    clock = taken_over(tmp_path / "s", [odd, fired(popped(3, [0])), fired(popped(5, [0]))], {})
    with open_it(tmp_path / "s", clock) as store:
        assert [place["file"] for place in store.stats().damage] == ["commitlog"]
        assert read(store) == [3, 5, *REST]


def test_other_queues_and_groups_stay(tmp_path: Path) -> None:
    notes = [
        fired(popped(1, [0], c="other")),
        fired(popped(1, [0], q=3)),
        fired(popped(1, [0], t="u")),
    ]
    notes += [fired(popped(READ, [0, 1]))]  # not counted as read
    clock = taken_over(tmp_path / "s", notes, {"u@g": {"0": 0}})
    with open_it(tmp_path / "s", clock) as store:
        assert store.stats().recovery["taken_back_count"] == 0
        assert read(store) == REST
