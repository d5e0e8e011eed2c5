"""Spans around handlers: what they are named, what they are linked to, how they end."""

import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.small_store import SMALL
from timerstore import Consumer, ManualClock, Outcome, Retry, TimerStore
from timerstore.testing.disk import QuietDisk

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from timerstore.otel import Tracing, with_context

SECOND = timedelta(seconds=1)


class Traced:
    """A store with a consumer whose handlers are traced in memory."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.store = TimerStore(path, config=SMALL, clock=self.clock, disk=QuietDisk())
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)

    def consumer(self, handler: Any, *, continues: bool = False, **options: Any) -> Consumer:
        tracing = Tracing(
            continues=continues, tracer_provider=self.provider, meter_provider=self.meters
        )
        consumer = Consumer(self.store, "g", hooks=[tracing], **options)
        consumer.subscribe("t", handler)
        return consumer

    def spans(self) -> list[ReadableSpan]:
        spans = self._exporter.get_finished_spans()
        self._exporter.clear()
        return list(spans)


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    traced = Traced(tmp_path / "store")
    yield traced
    traced.store.close()
    traced.provider.shutdown()
    traced.meters.shutdown()


def test_a_message_has_its_span(traced: Traced) -> None:
    def handle(delivery: object) -> None:
        with traced.tracer.start_as_current_span("inside"):
            traced.clock.advance(timedelta(milliseconds=30))

    consumer = traced.consumer(handle)
    id = traced.store.put(b"body", topic="t", delay=SECOND)
    traced.clock.advance(2 * SECOND)
    assert consumer.step() == 1
    inside, span = traced.spans()
    assert (span.name, span.kind) == ("process t", SpanKind.CONSUMER)
    row = traced.store.core.engine.queues.row(b"t")
    assert dict(span.attributes or {}) == {
        "messaging.system": "timerstore",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "t",
        "messaging.consumer.group.name": "g",
        "messaging.message.id": id,
        "messaging.message.body.size": 4,
        "messaging.destination.partition.id": "0",
        "timerstore.queue_index": 0,
        "timerstore.offset": traced.store.core.engine.queues.read(row, 0, 1)[0]["offset"],
        "timerstore.attempt": 0,
        "timerstore.due_ms": traced.clock.now_ms - 1_030,
        "timerstore.lateness_ms": 0,
    }
    assert span.status.status_code is StatusCode.UNSET and span.links == () and not span.parent
    assert inside.parent is not None and inside.parent.span_id == span.context.span_id
    assert not trace.get_current_span().get_span_context().is_valid  # it was left


@pytest.mark.parametrize("continues", [False, True])
def test_the_context_of_a_put_is_carried_over_retries(traced: Traced, continues: bool) -> None:
    consumer = traced.consumer(
        lambda d: Retry(delay_level=1) if d.attempt == 0 else None, continues=continues
    )
    with traced.tracer.start_as_current_span("order") as order:
        properties = with_context({"lang": "de"})
        traced.store.put(b"x", topic="t", properties=properties)
    assert properties.keys() == {"lang", "traceparent"}
    consumer.step()
    traced.clock.advance(10 * SECOND)
    consumer.step()
    _, first, second = traced.spans()
    for attempt, span in enumerate((first, second)):
        assert (span.attributes or {})["timerstore.attempt"] == attempt
        if continues:
            assert span.parent is not None and span.links == ()
            assert span.parent.span_id == order.get_span_context().span_id
        else:
            (link,) = span.links
            assert link.context.span_id == order.get_span_context().span_id
            assert span.parent is None
    assert first.status.status_code is StatusCode.ERROR
    assert (first.attributes or {})["error.type"] == "retry"
    assert second.status.status_code is StatusCode.UNSET


def test_nothing_is_carried_where_no_span_is_current() -> None:
    assert with_context() == {} and with_context({"a": "b"}) == {"a": "b"}


def test_a_list_has_one_span_with_links(traced: Traced) -> None:
    consumer = traced.consumer(lambda many: Retry(ack_index=1), batch_count=3)
    with traced.tracer.start_as_current_span("order"):
        for properties in (with_context(), {}, with_context()):
            traced.store.put(b"x", topic="t", properties=properties)
    assert consumer.step() == 3
    _, span = traced.spans()
    attributes = dict(span.attributes or {})
    assert attributes["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes
    assert attributes["timerstore.ack_count"] == 1
    assert len(span.links) == 2
    assert all("messaging.message.id" in (link.attributes or {}) for link in span.links)
    assert span.status.description == "1 of 3 succeeded"


def test_a_failure_is_recorded(traced: Traced, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    def handle(delivery: object) -> None:
        traced.clock.advance(timedelta(milliseconds=40))
        raise OSError("the mail server is away")

    traced.store.put(b"x", topic="t")
    traced.consumer(handle).step()
    (span,) = traced.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "the mail server is away"
    assert (span.attributes or {})["error.type"] == "OSError"
    assert [event.name for event in span.events] == ["exception"]
    data = traced.reader.get_metrics_data()
    assert data is not None
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    (point,) = metric.data.data_points
    assert (metric.name, metric.unit, point.count) == ("messaging.process.duration", "s", 1)
    assert point.sum == pytest.approx(0.04) and dict(point.attributes)["error.type"] == "OSError"


def test_a_time_out_ends_the_span(traced: Traced, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    consumer = traced.consumer(lambda d: traced.clock.advance(10 * SECOND), timeout=5 * SECOND)
    traced.store.put(b"x", topic="t")
    consumer.step()
    (span,) = traced.spans()
    assert (span.attributes or {})["error.type"] == "timeout"
    assert span.status.description == "the handler had not ended after 10000 ms"


def test_what_another_thread_ended_is_left_with_the_next(traced: Traced) -> None:
    tracing = Tracing(tracer_provider=traced.provider, meter_provider=traced.meters)
    traced.store.put_many([b"x", b"y"], topic="t")
    one, two = list(traced.store.pull("t", timeout=0))
    tracing.before([one])
    late = Outcome(0, 3, None, True, 10)
    other = threading.Thread(target=tracing.after, args=([one], late))
    other.start()
    other.join()
    assert not trace.get_current_span().is_recording()
    tracing.before([two])
    (ended,) = traced.spans()
    assert trace.get_current_span().is_recording()
    tracing.after([two], Outcome(1, None, None, False, 1))
    (span,) = traced.spans()
    assert span.parent is None and ended.context.span_id != span.context.span_id
    assert not trace.get_current_span().get_span_context().is_valid


def test_an_interrupted_call_begins_again(traced: Traced) -> None:
    tracing = Tracing(tracer_provider=traced.provider, meter_provider=traced.meters)
    traced.store.put(b"x", topic="t")
    (delivery,) = list(traced.store.pull("t", timeout=0))
    tracing.before([delivery])
    tracing.before([delivery])
    tracing.after([delivery], Outcome(1, None, None, False, 1))
    tracing.after([delivery], Outcome(1, None, None, False, 1))  # of nothing that is known
    assert len(traced.spans()) == 2
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.slow
def test_threads_have_their_own_spans(tmp_path: Path) -> None:
    traced = Traced(tmp_path / "unused")
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        seen, done = [], threading.Event()

        def handle(delivery: Any) -> None:
            seen.append(trace.get_current_span().get_span_context().span_id)
            if len(seen) == 200:
                done.set()

        consumer = Consumer(
            *(store, "g"),
            threads=4,
            hooks=[Tracing(tracer_provider=traced.provider, meter_provider=traced.meters)],
        )
        consumer.subscribe("t", handle)
        with consumer:
            store.put_many([b"x"] * 200, topic="t")
            assert done.wait(60)
        spans = traced.spans()
        assert sorted(span.context.span_id for span in spans) == sorted(seen)
        assert len(set(seen)) == 200 and all(span.parent is None for span in spans)
    traced.store.close()
    traced.provider.shutdown()
    traced.meters.shutdown()
