"""RocketMQ's own client, `rocketmq-python-client`, with its errors in our words.

Its manners, as far as they show: importing it makes `~/logs/rocketmq_python/`, writes its log
there, configures `logging`, and so closes handlers that were configured before. It knows whole
seconds. A consumer's first calls fail with 50001, until the proxy has heard of the consumer.
`ack_async` returns nothing. Some of its threads stay after `shutdown`. If a heartbeat fails, it
raises in a callback, so `logging` gets a traceback every few seconds: that is kept back here. It
does not tell why it has no route of a topic.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from importlib.metadata import version
from typing import Any, Final, TypeVar

from timerstore.errors import ClusterError, InvalidArgumentError, TimerStoreError, TooLateError

# Some of what is used lies below its `Producer` and `SimpleConsumer`: these have public names, but
# their authors promise nothing about them. `SimpleConsumer` itself asks one broker at a time,
# acknowledges one message in a call, and knows no dead letters. So the client is pinned.


TESTED: Final = "5.1.2"
"""The version of the client that all was tried with."""


# --- routes


def ask_route(client: Any, topic: str) -> Any:
    """Ask the proxy where a topic's queues are; return its answer, with a status."""
    from rocketmq.grpc_protocol import QueryRouteRequest

    request = QueryRouteRequest()
    request.topic.name = topic
    endpoints = client.client_configuration.rpc_endpoints
    request.endpoints.CopyFrom(endpoints.endpoints)
    return _answer(client, "query_topic_route_async", endpoints, request)


def known_route(client: Any, topic: str) -> Any:
    """Return where a topic's queues are, as the client knows; it asks if it does not."""
    return client.route_manager.retrieve_topic_route_data(topic)


def broker_of(queue: Any) -> str:
    """Return the name of a queue's broker."""
    return str(queue.message_queue0().broker.name)


def readable_queues(route: Any) -> dict[str, Any]:
    """Return a queue of each broker that hands messages out, by the broker's name."""
    queues = route.message_queues
    return {broker_of(q): q for q in queues if q.is_readable() and q.is_master_broker()}


def takes_type(route: Any, name: str) -> bool:
    """Tell whether all queues take messages of a type, such as "DELAY"; if it is not known, yes."""
    from rocketmq.grpc_protocol import MessageType

    unknown, wanted = MessageType.Value("MESSAGE_TYPE_UNSPECIFIED"), MessageType.Value(name)
    return all({unknown, wanted} & set(q.accept_message_types) for q in route.message_queues)


# --- messages


def message_kind() -> type[Any]:
    """Return the client's class of messages, changed so that a message keeps its id."""
    from rocketmq import Message

    class Sent(Message):  # type: ignore[misc]
        """A message whose id was made before it is sent."""

        def __init__(self, id: str) -> None:
            super().__init__()
            self._own_id = id

        @property
        def message_id(self) -> str:
            return self._own_id

        @message_id.setter
        def message_id(self, other: object) -> None:
            """Do not take the one that the producer makes."""

    return Sent


def begin_receiving(
    consumer: Any,
    group: str,
    expression: Any,
    queue: Any,
    *,
    count_max: int,
    hide_s: int,
    poll_s: int,
    timeout_s: float,
) -> Future[list[Any]]:
    """Ask a queue's broker for messages; return the call, which is under way.

    The consumer's own `receive` would choose a broker, and ask no other meanwhile.
    """
    from rocketmq.grpc_protocol import ReceiveMessageRequest

    request = ReceiveMessageRequest()
    request.group.name = group
    request.message_queue.CopyFrom(queue.message_queue0())
    request.filter_expression.type = expression.filter_type
    request.filter_expression.expression = expression.expression
    request.batch_size = count_max
    request.invisible_duration.seconds = hide_s
    request.long_polling_timeout.seconds = poll_s
    receiving = _receive(consumer, queue.endpoints, request, timeout_s)
    return asyncio.run_coroutine_threadsafe(receiving, consumer.rpc_client.get_channel_io_loop())


async def _receive(consumer: Any, endpoints: Any, request: Any, timeout_s: float) -> list[Any]:
    """Return the messages of one answer, or raise what its status says."""
    from rocketmq import Message
    from rocketmq.v5.util import MessagingResultChecker

    given = {"metadata": consumer.sign(), "timeout": timeout_s}
    came, handed_ms, status = [], None, None
    async for each in await consumer.rpc_client.receive_message(endpoints, request, **given):
        if each.HasField("message"):
            came.append(Message().fromProtobuf(each.message))
        elif each.HasField("delivery_timestamp"):
            handed_ms = each.delivery_timestamp.ToMilliseconds()
        elif each.HasField("status"):
            status = each.status
    if status is not None:
        MessagingResultChecker.check(status)
    for message in came:
        message.endpoints, message.transport_delivery_timestamp = endpoints, handed_ms
    return came


def acknowledge(consumer: Any, group: str, topic: str, messages: Sequence[Any]) -> Any:
    """Acknowledge messages that came from one broker; return its answer, with a status for each."""
    from rocketmq.grpc_protocol import AckMessageEntry, AckMessageRequest

    request = AckMessageRequest()
    request.group.name, request.topic.name = group, topic
    for each in messages:
        handle, id = each.receipt_handle, each.message_id
        request.entries.append(AckMessageEntry(message_id=id, receipt_handle=handle))
    return _answer(consumer, "ack_message_async", messages[0].endpoints, request)


def bury(consumer: Any, group: str, topic: str, message: Any) -> Any:
    """Move a message to the dead letters of a group; return the answer, with a status."""
    from rocketmq.grpc_protocol import ForwardMessageToDeadLetterQueueRequest

    request = ForwardMessageToDeadLetterQueueRequest()
    request.group.name, request.topic.name = group, topic
    request.receipt_handle, request.message_id = message.receipt_handle, message.message_id
    request.delivery_attempt = message.delivery_attempt
    request.max_delivery_attempts = 1
    name = "forward_message_to_dead_letter_queue_async"
    return _answer(consumer, name, message.endpoints, request)


def tell_again(consumer: Any, endpoints: Any) -> None:
    """Make a consumer known again to a proxy that has started anew."""
    loop = consumer.rpc_client.get_channel_io_loop()  # a stream is made in no other thread
    loop.call_soon_threadsafe(consumer.on_new_endpoints, endpoints)


def _answer(client: Any, name: str, endpoints: Any, request: Any) -> Any:
    """Return the answer of a call that the client's own classes do not offer."""
    call, timeout_s = getattr(client.rpc_client, name), client.client_configuration.request_timeout
    begun = call(endpoints, request, metadata=client.sign(), timeout=timeout_s)
    return begun.result(timeout_s + 1.0)


# --- RocketMQ's own client, which the extra `[rocketmq]` installs


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
    """Import the client; raise InvalidArgumentError if it, or its version, is not installed."""
    try:
        import rocketmq
    except ImportError as e:
        raise InvalidArgumentError(
            f"RocketMQ's client cannot be imported ({e}). Install it: "
            f"pip install rocketmq-python-client=={TESTED}"
        ) from e
    if (installed := version("rocketmq-python-client")) != TESTED:
        raise InvalidArgumentError(
            f"rocketmq-python-client {installed} is not the version that timerstore uses. Install "
            f"that: pip install rocketmq-python-client=={TESTED}"
        )
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
