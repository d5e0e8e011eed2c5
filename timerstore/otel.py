"""OpenTelemetry of an open store; needs the extra `otel`.

Statistics are observable instruments, named as for Prometheus. A span around each call of a handler
is a hook, whose names and attributes are those of the semantic conventions for messaging. Only the
API is needed; the program chooses the SDK, if any, and where to export to.

Ground rules of the hook: `_calls` is a dictionary whose items are put in by the handler's thread,
and taken out by the thread that finds what became of it; a token of a context is given back only in
that context.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, Token
from typing import Final

from opentelemetry import context as contexts
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.util.types import AttributeValue

from timerstore.calls.consuming.delivery import Delivery
from timerstore.consumer.consumersettings import Outcome
from timerstore.metrics.table import METRICS, Metric, Told, read_told
from timerstore.watching.any_store import AnyStore

__all__ = ["Tracing", "register", "with_context"]

PREFIX: Final = "timerstore."
FRESH_S: Final = 0.5
"""Statistics so old serve all instruments of one collection, which ask one after the other."""


def register(
    store: AnyStore, meter_provider: MeterProvider | None = None, **attributes: str
) -> None:
    """Make an observable instrument of each statistic of a store.

    They are read when the meter provider collects. `attributes` tell several stores of a process
    apart. Once the store is closed nothing is observed. Of topics, and of pairs of a topic with a
    group, as many are as for Prometheus. Histograms are not among them; how long handlers take
    `Tracing` records.

    >>> timerstore.otel.register(store, name="reminders")
    """
    _Instruments(store, attributes).make(meter_provider)


class _Instruments:
    """The instruments of one store, which keep it no longer than its program does."""

    def __init__(self, store: AnyStore, attributes: Mapping[str, str]) -> None:
        self._store, self._attributes = weakref.ref(store), dict(attributes)
        self._stats: Told | None = None
        self._read_s = float("-inf")

    def make(self, meter_provider: MeterProvider | None) -> None:
        """Make them."""
        meter = metrics.get_meter("timerstore", meter_provider=meter_provider)
        kinds = {
            "gauge": meter.create_observable_gauge,
            "counter": meter.create_observable_counter,
        }
        for each in METRICS:
            if each.kind in kinds:
                given = [self._callback(each)], each.unit, each.text
                kinds[each.kind](PREFIX + each.name, *given)

    def _callback(self, metric: Metric) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(options: CallbackOptions) -> Iterator[Observation]:
            stats = self._read()
            for value, labels in () if stats is None else metric.rows(stats):
                named = dict(zip(metric.labels, labels, strict=True))
                yield Observation(value, {**self._attributes, **named})

        return observe

    def _read(self) -> Told | None:
        """Return statistics of just now; None once the store is closed, or gone."""
        now_s = time.monotonic()
        if now_s - self._read_s >= FRESH_S:
            self._stats, self._read_s = read_told(self._store), now_s
        return self._stats


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


SYSTEM: Final = "timerstore"
OPERATION: Final = "process"
DURATION: Final = "messaging.process.duration"
BOUNDS_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
    *(300.0, 900.0),
)
"""Those of `stats().groups`."""
Attributes = dict[str, AttributeValue]


class _Call:
    """A call of a handler, from `before` to `after`."""

    __slots__ = ("attributes", "ended", "span", "token")

    def __init__(self, span: Span, attributes: Attributes) -> None:
        self.span, self.attributes, self.ended = span, attributes, False
        self.token: Token[Context] = contexts.attach(trace.set_span_in_context(span))


_calls_of: ContextVar[tuple[_Call, ...]] = ContextVar("timerstore_calls", default=())
"""The calls that a thread, or a task of an event loop, is in; a manual clock that is advanced by a
handler begins others."""


class Tracing:
    """A `Hook`: one span for each call of a handler, and the histogram of how long they took.

    The span is current while the handler runs, so spans that it makes are its children. Of a
    message that carried a context (`with_context`) it is linked to the span that put it; with
    `continues` it is its child, in the same trace. A handler that gets lists has one span for each
    list, with a link for each message that carried a context. A call that failed, took too long, or
    asked for a retry ends with the status ERROR.

    >>> consumer = timerstore.Consumer(store, "mailer", hooks=[timerstore.otel.Tracing()])
    """

    def __init__(
        self,
        *,
        continues: bool = False,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        """Use the global providers, or those that are passed."""
        self._continues = continues
        self._tracer = trace.get_tracer("timerstore", tracer_provider=tracer_provider)
        self._duration = metrics.get_meter(
            "timerstore", meter_provider=meter_provider
        ).create_histogram(
            DURATION,
            unit="s",
            description="How long handlers took",
            explicit_bucket_boundaries_advisory=BOUNDS_S,
        )
        self._calls: dict[Delivery, _Call] = {}

    def before(self, deliveries: list[Delivery]) -> None:
        """Begin a span, which is current from here on."""
        self._leave_ended()
        first, is_list = deliveries[0], len(deliveries) > 1
        shared = _shared(first)
        carried = [(each, context_of(each)) for each in deliveries]
        parent = carried[0][1] if self._continues and not is_list else None
        links = [
            Link(trace.get_current_span(context).get_span_context(), _of(each) if is_list else None)
            for each, context in carried
            if context is not None and parent is None
        ]
        more: Attributes = (
            {"messaging.batch.message_count": len(deliveries)} if is_list else _of(first)
        )
        span = self._tracer.start_span(
            f"{OPERATION} {first.topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes={**shared, **more},
            links=links,
        )
        interrupted = self._calls.pop(first, None)
        if interrupted is not None:
            interrupted.span.end()
            interrupted.ended = True
        self._calls[first] = call = _Call(span, shared)
        _calls_of.set((*_calls_of.get(), call))

    def after(self, deliveries: list[Delivery], outcome: Outcome) -> None:
        """End the span with what became of the messages."""
        call = self._calls.pop(deliveries[0], None)
        if call is None:
            return
        error = _error_type(outcome)
        if error is not None:
            call.attributes["error.type"] = error
            call.span.set_attribute("error.type", error)
            call.span.set_attribute("timerstore.ack_count", outcome.ack_count)
            if outcome.error is not None:
                call.span.record_exception(outcome.error)
            call.span.set_status(Status(StatusCode.ERROR, _said(deliveries, outcome)))
        call.span.end()
        call.ended = True
        self._duration.record(outcome.elapsed_ms / 1000, call.attributes)
        if call in _calls_of.get():
            self._leave_ended()

    def _leave_ended(self) -> None:
        """Make the span that ended no longer current; a timeout ends it in another thread."""
        calls = _calls_of.get()
        while calls and calls[-1].ended:
            contexts.detach(calls[-1].token)
            calls = calls[:-1]
        _calls_of.set(calls)


def _shared(delivery: Delivery) -> Attributes:
    """Return what spans and the histogram have."""
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": OPERATION,
        "messaging.operation.type": OPERATION,
        "messaging.destination.name": delivery.topic,
        "messaging.consumer.group.name": delivery.group,
    }


def _of(delivery: Delivery) -> Attributes:
    """Return what is said of one message."""
    return {
        "messaging.message.id": delivery.id,
        "messaging.message.body.size": len(delivery.body),
        "messaging.destination.partition.id": str(delivery.queue_id),
        "timerstore.queue_index": delivery.queue_index,
        "timerstore.offset": delivery.offset,
        "timerstore.attempt": delivery.attempt,
        "timerstore.due_ms": delivery.due_ms,
        "timerstore.lateness_ms": delivery.lateness_ms,
    }


def _error_type(outcome: Outcome) -> str | None:
    if outcome.timed_out:
        return "timeout"
    if outcome.error is not None:
        return type(outcome.error).__qualname__
    return None if outcome.delay_level is None else "retry"


def _said(deliveries: list[Delivery], outcome: Outcome) -> str:
    if outcome.timed_out:
        return f"the handler had not ended after {outcome.elapsed_ms:.0f} ms"
    if outcome.error is not None:
        return str(outcome.error)
    return f"{outcome.ack_count} of {len(deliveries)} succeeded"
