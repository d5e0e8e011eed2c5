"""RocketMQ's own client, `rocketmq-python-client`, with its errors in our words.

Its manners, as far as they show: importing it makes `~/logs/rocketmq_python/`, writes its log
there, configures `logging`, and so closes handlers that were configured before. It knows whole
seconds. A consumer's first calls fail with 50001, until the proxy has heard of the consumer.
`ack_async` returns nothing. Some of its threads stay after `shutdown`. If a heartbeat fails, it
raises in a callback, so `logging` gets a traceback every few seconds: that is kept back here. It
does not tell why it has no route of a topic.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable
from typing import Any, Final, TypeVar

from timerstore.errors import ClusterError, InvalidArgumentError, TimerStoreError, TooLateError
from timerstore.rocketmq.clientparts import TESTED, ask_route, check_parts, known_route

log = logging.getLogger("timerstore")

_T = TypeVar("_T")
_HANDLE_IS_OVER: Final = 40_013
_NOT_ALLOWED: Final = (40_100, 40_300)
_ARGUMENTS: Final = frozenset(
    (
        *("BadRequestException", "IllegalArgumentException", "PayloadEmptyException"),
        *("PayloadTooLargeException", "RequestHeaderFieldsTooLargeException"),
    )
)
"""Errors of the client that are about what was passed."""
_AWAY: Final = "cannot find broker"
"""What a proxy says as such an error, and is none."""
_OF_ANOTHER_TYPE: Final = ("the expected type is", "queue accept message types")
"""What it says, or the client, of a topic for other messages, or if it has not heard of a topic's
type yet."""
_BUSY: Final = "flow control"
"""What a broker says that has too much to do; it has nothing of the call then."""
_NO_GRPC: Final = "UNAVAILABLE"
"""What gRPC says of a connection that it cannot use."""


def load() -> Any:
    """Import the client; raise InvalidArgumentError if it is not installed, or has changed."""
    try:
        import rocketmq
    except ImportError as e:
        raise InvalidArgumentError(
            f"RocketMQ's client cannot be imported ({e}). Install it: "
            f"pip install rocketmq-python-client=={TESTED}"
        ) from e
    check_parts()
    logging.getLogger("concurrent.futures").addFilter(is_no_heartbeat)
    return rocketmq


def is_no_heartbeat(record: logging.LogRecord) -> bool:
    """Keep back the tracebacks of heartbeats that failed: the calls that fail say it."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__name__ != "AioRpcError"


def check_address(address: object) -> tuple[str, int]:
    """Return host and port of a proxy, or refuse them. It may begin with `rocketmq://`."""
    text = address if isinstance(address, str) else ""
    parts = re.fullmatch(r"(?:rocketmq://)?([^\s:/?#@;]+):([0-9]+)", text)
    if parts is None:
        raise InvalidArgumentError(
            f"address is {address!r}. Pass host and port of a proxy for gRPC, such as "
            '"rocketmq://localhost:8081" or "localhost:8081".'
        )
    host, port = parts[1], int(parts[2])
    if not 0 < port < 1 << 16:
        raise InvalidArgumentError(f"address is {address!r}. Pass a port from 1 to 65535.")
    return host, port


def check_reachable(address: str, timeout_s: float) -> None:
    """Raise ClusterError if nobody listens there: the client itself would not say so."""
    try:
        socket.create_connection(check_address(address), timeout_s).close()
    except OSError as e:
        raise ClusterError(
            f"Nobody answers at {address} ({e}). Start the proxy, or pass the address at which it "
            "listens for gRPC (grpcServerPort, 8081 by default)."
        ) from e


def route_of(what: str, client: Any, topic: str) -> Any | None:
    """Return where a topic's queues are; None if the cluster shows no such topic.

    If the client has no route of it, the proxy is asked once more: then it is known why.
    """
    try:
        return known_route(client, topic)
    except Exception as e:
        log.debug("%s: %s", topic, e)
    from rocketmq.grpc_protocol import Code

    status = asked(what, lambda: ask_route(client, topic)).status
    if status.code in (Code.TOPIC_NOT_FOUND, Code.NOT_FOUND):
        return None
    if status.code != Code.OK:
        raise refused(what, status)
    return asked(what, lambda: known_route(client, topic))


def check_proxy(address: str, client: Any) -> None:
    """Raise ClusterError if what listens there speaks no gRPC; then the client is ended."""
    try:
        route_of(f"connecting to {address}", client, "timerstore")
    except TimerStoreError as e:
        if _NO_GRPC not in str(e):
            log.debug("%s", e)  # a proxy, whose first call says what is the matter
            return
        client.shutdown()
        raise ClusterError(
            f"What listens at {address} is no proxy. Pass the address at which one listens for "
            "gRPC (grpcServerPort, 8081 by default), not that of a name server or a broker."
        ) from e


def check_route(what: str, client: Any, topic: str) -> Any:
    """Return where a topic's queues are; raise ClusterError if the cluster shows none."""
    route = route_of(what, client, topic)
    if route is None:
        raise ClusterError(
            f"{what}: the cluster does not show the topic {topic}. Make it with mqadmin "
            "updateTopic and -a +message.type=MIXED (its broker needs enableMixedMessageType = "
            "true), or see that its broker runs."
        )
    return route


def asked(what: str, call: Callable[[], _T]) -> _T:
    """Return what a call of the client returns; raise its errors as ours. `what`: what was done."""
    try:
        return call()
    except TimerStoreError:
        raise
    except Exception as e:
        raise translated(what, e) from e


def translated(what: str, error: BaseException) -> TimerStoreError:
    """Return the error of ours for one of the client."""
    if isinstance(error, TimerStoreError):
        return error
    text = " ".join(str(error).split()) or type(error).__name__
    if getattr(error, "code", None) == _HANDLE_IS_OVER:
        return TooLateError(
            f"{what}: the message was hidden for too short a time, or was acknowledged or sent "
            "back before. If it was not, it comes again. Pass a longer invisible to connect."
        )
    if any(each in text for each in _OF_ANOTHER_TYPE):
        return ClusterError(
            f"{what}: this topic is for messages of another type ({text.rstrip('.')}). If its "
            "broker has just started, try again in a minute. Else set the topic's message.type to "
            "MIXED, with mqadmin updateTopic."
        )
    if type(error).__name__ in _ARGUMENTS and _AWAY not in text:
        return InvalidArgumentError(f"{what}: the cluster takes less: {text}. Pass something else.")
    if getattr(error, "code", None) in _NOT_ALLOWED:
        return ClusterError(
            f"{what}: the cluster refuses this access_key and secret_key ({text.rstrip('.')}). "
            "Pass those of a user to connect who may do it."
        )
    if _BUSY in text:
        error = ClusterError(f"{what}: the cluster is busy ({text.rstrip('.')}). Try again later.")
        error.busy = True
        return error
    if "handshake failed" in text:
        return ClusterError(
            f"{what}: the proxy's certificate is not trusted. Set the variable "
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH to a file with the certificate that signed it, then "
            "start again."
        )
    if type(error).__name__ == "AioRpcError":
        text = f"{error.code().name}, {error.details()}"  # type: ignore[attr-defined]
    if isinstance(error, TimeoutError) or text.startswith("DEADLINE_EXCEEDED"):
        text = "no answer came in time"
    return ClusterError(
        f"{what}: {text[:500].rstrip('.')}. Look at the proxy and its broker, then try again."
    )


def refused(what: str, status: Any) -> TimerStoreError:
    """Return the error of ours for an answer of the proxy."""
    error = RuntimeError(f"{status.code}, {status.message}")
    error.code = status.code  # type: ignore[attr-defined]
    return translated(what, error)
