"""What RocketMQ's client raises, told in our words; waits while nobody answers."""

import logging

import grpc
import pytest

from timerstore import ClusterError, InvalidArgumentError, StoreClosedError, TooLateError
from timerstore.rocketmq.clustersource import Away
from timerstore.rocketmq.library import is_no_heartbeat, refused, translated


class Status:
    """An answer of a proxy."""

    def __init__(self, code: int, message: str) -> None:
        self.code, self.message = code, message


def raised(code: grpc.StatusCode, details: str) -> BaseException:
    metadata = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, metadata, metadata, details)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (raised(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"), "no answer came in time"),
        (TimeoutError(), "no answer came in time"),
        (raised(grpc.StatusCode.UNAVAILABLE, "Connection refused"), "UNAVAILABLE, Connection ref"),
        (raised(grpc.StatusCode.UNAVAILABLE, "Tls handshake failed"), "SSL_ROOTS_FILE_PATH"),
        (RuntimeError("x" * 5_000), "Look at the proxy"),
        (RuntimeError(), "RuntimeError. Look at"),
    ],
)
def test_what_a_program_is_told(error: BaseException, said: str) -> None:
    told = translated("putting 7", error)
    assert type(told) is ClusterError and str(told).startswith("putting 7: ")
    assert said in str(told) and len(str(told)) < 700 and ".." not in str(told)


def test_a_busy_broker_has_nothing_of_the_call() -> None:
    for said in ("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control", "under flow control, max"):
        told = translated("putting 7", RuntimeError(said))
        assert isinstance(told, ClusterError) and told.busy and not told.unsure
        assert "Try again later" in str(told)


def test_what_a_proxy_answers() -> None:
    assert "access_key" in str(refused("x", Status(40_100, "check signature failed.")))
    assert isinstance(refused("x", Status(40_013, "expired")), TooLateError)
    closed = StoreClosedError("closed")
    assert translated("x", closed) is closed


def test_a_broker_that_is_away_is_no_wrong_argument() -> None:
    exception = type("BadRequestException", (Exception,), {})
    assert isinstance(translated("x", exception("too far ahead")), InvalidArgumentError)
    away = translated("x", exception("cannot find broker broker-a"))
    assert type(away) is ClusterError
    said = "TopicMessageType validate failed, the expected type is UNSPECIFIED, but actual is DELAY"
    unknown = translated("x", exception(said))
    assert type(unknown) is ClusterError and "try again in a minute" in str(unknown)


def test_waits_grow_and_two_lines_tell(caplog: pytest.LogCaptureFixture) -> None:
    error = ClusterError("reading t: no answer came in time. Look at the proxy, then try again.")
    with caplog.at_level(logging.INFO, "timerstore"):
        away = Away(100.0, error)
        waits = [away.until_s - 100.0]
        for _ in range(8):
            now_s = away.until_s
            away.again(now_s, error)
            waits.append(away.until_s - now_s)
        away.back(away.until_s)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    first, last = (each.getMessage() for each in caplog.records)
    assert "30 s" in first and ".." not in first and last == "reading t: it answers after 151 s"


def test_heartbeats_that_fail_make_no_traceback() -> None:
    kept = []
    for error in (raised(grpc.StatusCode.UNAVAILABLE, "away"), ValueError("ours"), None):
        about = None if error is None else (type(error), error, None)
        record = logging.LogRecord("x", logging.ERROR, "", 0, "callback", None, about)
        kept.append(is_no_heartbeat(record))
    assert kept == [False, True, True]
