"""RocketMQ's own client, `rocketmq-python-client`: all that touches it.

Its manners, as far as they show: importing it makes `~/logs/rocketmq_python/`, writes its log
there, configures `logging`, and so closes handlers that were configured before. It knows whole
seconds. A consumer's first calls fail with 50001, until the proxy has heard of the consumer.
`ack_async` returns nothing. Some of its threads stay after `shutdown`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final, TypeVar

from timerstore.errors import ClusterError, InvalidArgumentError, TimerStoreError, TooLateError

_T = TypeVar("_T")
_HANDLE_IS_OVER: Final = 40_013
_ARGUMENTS: Final = frozenset(
    (
        *("BadRequestException", "IllegalArgumentException", "PayloadEmptyException"),
        *("PayloadTooLargeException", "RequestHeaderFieldsTooLargeException"),
    )
)
"""Errors of the client that are about what was passed."""


def load() -> Any:
    """Import the client; raise InvalidArgumentError if the extra is not installed."""
    try:
        import rocketmq
    except ImportError as e:
        raise InvalidArgumentError(
            f"RocketMQ's client cannot be imported ({e}). Install it: "
            "pip install 'timerstore[rocketmq]'."
        ) from e
    return rocketmq


def check_address(address: object) -> tuple[str, int]:
    """Return host and port of a proxy, or refuse them."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or ":" in host or not port.isascii() or not port.isdigit():
        raise InvalidArgumentError(
            f'address is {address!r}. Pass that of a proxy for gRPC, such as "localhost:8081".'
        )
    if not 0 < int(port) < 1 << 16:
        raise InvalidArgumentError(f"address is {address!r}. Pass a port from 1 to 65535.")
    return host, int(port)


def check_reachable(address: str, timeout_s: float) -> None:
    """Raise ClusterError if nobody listens there: the client itself would not say so."""
    try:
        socket.create_connection(check_address(address), timeout_s).close()
    except OSError as e:
        raise ClusterError(
            f"Nobody answers at {address} ({e}). Start the proxy, or pass the address at which it "
            "listens for gRPC (grpcServerPort, 8081 by default)."
        ) from e


def message_kind() -> type[Any]:
    """Return the client's class of messages, changed so that a message keeps its id."""
    library = load()

    class Sent(library.Message):  # type: ignore[name-defined, misc]
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
    text = " ".join(str(error).split()) or type(error).__name__
    if getattr(error, "code", None) == _HANDLE_IS_OVER:
        return TooLateError(
            f"{what}: the message was hidden for too short a time, or was acknowledged or sent "
            "back before. If it was not, it comes again. Pass a longer invisible to connect."
        )
    if type(error).__name__ in _ARGUMENTS:
        return InvalidArgumentError(f"{what}: the cluster takes less: {text}. Pass something else.")
    if "failed to fetch topic" in text:
        return ClusterError(
            f"{what}: the cluster does not show the topic. Make it with mqadmin updateTopic and "
            "-a +message.type=MIXED, or see that its broker runs."
        )
    return ClusterError(f"{what}: {text[:500]}. Look at the proxy and its broker, then try again.")
