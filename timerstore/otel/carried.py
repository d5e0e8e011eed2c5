"""The context of a put, carried to its handler among the message's properties."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import propagate, trace
from opentelemetry.context import Context

from timerstore.consuming.delivery import Delivery


def with_context(properties: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return properties for `put`, with the present trace context beside those that are given.

    By W3C trace context that is `traceparent`, some 60 bytes, and `tracestate` if there is one.
    They stay over retries. If no span is current, nothing is added.

    >>> id = store.put(b"hello", properties=timerstore.otel.with_context({"lang": "de"}))
    """
    carried = dict(properties or {})
    propagate.inject(carried)
    return carried


def context_of(delivery: Delivery) -> Context | None:
    """Return the context that a message's put carried; None if it carried none."""
    context = propagate.extract(delivery.properties, Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None
