"""The parts that we use of RocketMQ's client below its `Producer`, `SimpleConsumer`.

These parts have public names, but their authors promise nothing about them. `SimpleConsumer` itself
asks one broker at a time, acknowledges one message in a call, and knows no dead letters. So the
client is pinned, and `check_parts` compares what is installed with what is used here. The errors
are the client's own; `library.py` tells them in our words.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from concurrent.futures import Future
from importlib import import_module
from importlib.metadata import version
from operator import attrgetter
from typing import Any, Final

from timerstore.errors import InvalidArgumentError

TESTED: Final = "5.1.2"
"""The version of the client that all was tried with."""
_CALL: Final = ("endpoints", "req", "metadata", "timeout")
_CLIENT: Final = "rocketmq.v5.client:Client."
_RPC: Final = "rocketmq.v5.client.connection:RpcClient."
_MODEL: Final = "rocketmq.v5.model:"
_PROTOCOL: Final = "rocketmq.grpc_protocol:"
PARTS: Final[dict[str, tuple[str, ...] | None]] = {
    _CLIENT + "sign": (),
    _CLIENT + "on_new_endpoints": ("endpoints",),
    _CLIENT + "client_configuration.fget": None,
    _CLIENT + "route_manager.fget": None,
    _CLIENT + "rpc_client.fget": None,
    "rocketmq.v5.client:ClientConfiguration.request_timeout.fget": None,
    "rocketmq.v5.client:ClientConfiguration.rpc_endpoints.fget": None,
    "rocketmq.v5.client.client_route_manager:ClientRouteManager.retrieve_topic_route_data": (
        "topic",
    ),
    "rocketmq.v5.client.connection:RpcEndpoints.endpoints.fget": None,
    _RPC + "get_channel_io_loop": (),
    _RPC + "query_topic_route_async": _CALL,
    _RPC + "receive_message": _CALL,
    _RPC + "ack_message_async": _CALL,
    _RPC + "forward_message_to_dead_letter_queue_async": _CALL,
    _MODEL + "TopicRouteData.message_queues.fget": None,
    _MODEL + "MessageQueue.accept_message_types.fget": None,
    _MODEL + "MessageQueue.endpoints.fget": None,
    _MODEL + "MessageQueue.is_master_broker": (),
    _MODEL + "MessageQueue.is_readable": (),
    _MODEL + "MessageQueue.message_queue0": (),
    _MODEL + "Message.fromProtobuf": ("message",),
    _MODEL + "Message.message_id.fset": None,
    _MODEL + "Message.endpoints.fset": None,
    _MODEL + "Message.receipt_handle.fset": None,
    _MODEL + "Message.transport_delivery_timestamp.fset": None,
    "rocketmq.v5.util:MessagingResultChecker.check": ("status",),
    _PROTOCOL + "AckMessageEntry": None,
    _PROTOCOL + "AckMessageRequest": None,
    _PROTOCOL + "Code": None,
    _PROTOCOL + "ForwardMessageToDeadLetterQueueRequest": None,
    _PROTOCOL + "MessageType": None,
    _PROTOCOL + "QueryRouteRequest": None,
    _PROTOCOL + "ReceiveMessageRequest": None,
}
"""Each part, by module and name, with the arguments that it is passed; None: it is not called."""


def check_parts() -> None:
    """Raise InvalidArgumentError if the client that is installed is not as it was."""
    for name, given in PARTS.items():
        if not _is_as_used(name, given):
            installed = version("rocketmq-python-client")
            raise InvalidArgumentError(
                f"rocketmq-python-client {installed} is not as timerstore uses it: {name} is not "
                "there, or takes other arguments. Install the version that was tested: "
                f"pip install rocketmq-python-client=={TESTED}"
            )


def _is_as_used(name: str, given: tuple[str, ...] | None) -> bool:
    """Tell whether there is such a part that takes what it is passed, and needs no more."""
    module, _, path = name.partition(":")
    try:
        part = attrgetter(path)(import_module(module))
    except (ImportError, AttributeError):
        return False
    if given is None:
        return True
    takes = inspect.signature(part).parameters
    needs = {each.name for each in takes.values() if each.default is each.empty} - {"self"}
    return needs <= set(given) <= set(takes)


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


# --- a client


def tell_again(consumer: Any, endpoints: Any) -> None:
    """Make a consumer known again to a proxy that has started anew."""
    loop = consumer.rpc_client.get_channel_io_loop()  # a stream is made in no other thread
    loop.call_soon_threadsafe(consumer.on_new_endpoints, endpoints)


def _answer(client: Any, name: str, endpoints: Any, request: Any) -> Any:
    """Return the answer of a call that the client's own classes do not offer."""
    call, timeout_s = getattr(client.rpc_client, name), client.client_configuration.request_timeout
    begun = call(endpoints, request, metadata=client.sign(), timeout=timeout_s)
    return begun.result(timeout_s + 1.0)
