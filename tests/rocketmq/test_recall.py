"""Ids of a cluster's timers with their handles; what `connect` refuses."""

import base64
import socketserver
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.rocketmq
from timerstore import ClusterError, InvalidArgumentError, ManualClock, UnknownTimerError
from timerstore.rocketmq.sending import (
    check_cluster_topic,
    check_key_and_tag,
    check_properties,
    handles_of,
    known_id,
    new_id,
    whole_seconds_ms,
)
from timerstore.values.ids import ID_DIGITS, parse_id

DUE_MS = 1_900_000_000_000


def told(handle: str) -> list[str]:
    return base64.urlsafe_b64decode(handle).decode().split(" ")


def test_seconds_are_rounded_up() -> None:
    rounded = [whole_seconds_ms(each) for each in (0, 1, 999, 1_000, 1_001)]
    assert rounded == [0, 1_000, 1_000, 1_000, 2_000]


def test_new_ids_are_ids_of_their_time() -> None:
    ids = [new_id(DUE_MS) for _ in range(1_000)]
    assert len(set(ids)) == 1_000 and {len(id) for id in ids} == {ID_DIGITS}
    for id in ids:
        parts = parse_id(id)
        assert parts is not None and parts.due_ms == DUE_MS
        (handle,) = handles_of("t", "broker-a", parts)
        assert told(handle) == ["v1", "t", "broker-a", str(DUE_MS - 1), id]


def test_ids_of_a_store_have_a_handle_for_each_way_of_moving(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", clock=ManualClock(DUE_MS - 10_000)) as store:
        even, odd = (store.put(b"x", at_ms=DUE_MS + more) for more in (0, 1))
        level = store.put(b"x", delay_level=5)
    for id, times_ms in ((even, (DUE_MS - 1, DUE_MS + 1)), (odd, (DUE_MS + 999, DUE_MS + 2))):
        handles = handles_of("orders", "broker-b", known_id(id.lower()))
        wanted = [["v1", "orders", "broker-b", str(each), id] for each in times_ms]
        assert [told(each) for each in handles] == wanted
    with pytest.raises(UnknownTimerError, match="delay level"):
        known_id(level)


@pytest.mark.parametrize("id", ["", "order:42", "0" * 31, "0" * 33, "g" * 32, None, 7])
def test_what_is_no_id(id: Any) -> None:
    with pytest.raises(UnknownTimerError, match="no id"):
        known_id(id)


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost", ":8081", "localhost:", "localhost:x", "a:0", "a:65536", "a:1:2"),
        *("a b:1", "a:1;b:2", None, 8081),
        *("http://a:1", "rocketmq:a:1", "rocketmq//a:1", "rocketmq://", "rocketmq://a", "a:\u0661"),
        *("rocketmq://a:1/", "rocketmq://u@a:1", "rocketmq://a:0"),
    ],
)
def test_what_is_no_address(address: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="address is"):
        timerstore.rocketmq.connect(address)


@pytest.mark.parametrize("scheme", ["", "rocketmq://"])
def test_nobody_is_there(scheme: str) -> None:
    with pytest.raises(ClusterError, match=r"Nobody answers at 127\.0\.0\.1:9 "):
        timerstore.rocketmq.connect(f"{scheme}127.0.0.1:9", timeout=1)


# RocketMQ's client calls what Python has renamed.
@pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated")
def test_somebody_else_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # there the client's log goes

    class Other(socketserver.BaseRequestHandler):
        """Says nothing, and hangs up, as a name server does with what it does not know."""

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        with pytest.raises(ClusterError, match=rf"127\.0\.0\.1:{port} is no proxy"):
            timerstore.rocketmq.connect(f"127.0.0.1:{port}", timeout=5)
        server.shutdown()


@pytest.mark.parametrize(
    "given",
    [
        *({"invisible": each} for each in (9, 0, -1, 43_201, timedelta(days=1), "x", True)),
        *({"timeout": each} for each in (0, 0.5, -1, 3_601, "x")),
        *({"tls": each} for each in (1, "yes")),
        *({"access_key": each} for each in (None, 7)),
    ],
)
def test_wrong_settings(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(given))):
        timerstore.rocketmq.connect("127.0.0.1:9", **given)


def test_what_a_cluster_would_hand_out_changed() -> None:
    check_key_and_tag("user:7", "paid")
    for key in ("a b", " a", "a\tb", "a\n"):
        with pytest.raises(InvalidArgumentError, match="blank"):
            check_key_and_tag(key, None)
    for tag in ("a|b", " "):
        with pytest.raises(InvalidArgumentError, match="tag is"):
            check_key_and_tag(None, tag)
    for properties in ({" ": "x"}, {"x": " "}):
        with pytest.raises(InvalidArgumentError, match="blank"):
            check_properties(properties)
    assert check_cluster_topic("%RETRY%group") == "%RETRY%group"
    with pytest.raises(InvalidArgumentError, match=r"no \|"):
        check_cluster_topic("a|b")


def test_common_calls_are_those_of_a_store(tmp_path: Path) -> None:
    def remind(timers: timerstore.rocketmq.CommonCalls) -> str:
        at = datetime(2100, 1, 1, tzinfo=UTC)
        return timers.put(b"x", topic="t", at=at, key="k", tag="t", properties={"a": "b"})

    with timerstore.open(tmp_path / "s") as store:
        timer = store.get(remind(store))
        assert timer is not None and timer.key == "k"
