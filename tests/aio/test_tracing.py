"""Spans around handlers that are coroutines: each in its own context, however they interleave."""

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore.aio
from tests.aio.loops import LOOPS, run, until
from tests.small_store import SMALL

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from timerstore.otel import Tracing

CONFIG = replace(SMALL, delay_levels="1h", durability="group")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", LOOPS)
def test_each_handler_has_its_own_span(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    caplog.set_level(logging.WARNING, "opentelemetry")

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=CONFIG) as store:
            consumer = timerstore.aio.Consumer(
                *(store, "g"),
                hooks=[Tracing(tracer_provider=provider)],
                timeout=timedelta(milliseconds=300),
            )

            @consumer.on("t")
            async def handle(d: timerstore.aio.Delivery) -> None:
                await asyncio.sleep(int(d.body) / 1_000)
                with tracer.start_as_current_span(d.id):
                    await asyncio.sleep(0.005)
                if d.body == b"2":
                    raise ValueError("no luck")
                if d.body == b"3":
                    await asyncio.sleep(30)

            async with consumer:
                await store.put_many([b"9", b"1", b"2", b"3", b"5"], topic="t")
                await until(lambda: len(exporter.get_finished_spans()) == 10)

    run(kind, main)
    provider.shutdown()
    spans = exporter.get_finished_spans()
    handled = {span.context.span_id: span for span in spans if span.name == "process t"}
    assert len(handled) == 5
    for span in spans:
        if span.name != "process t":
            assert span.parent is not None
            attributes = handled.pop(span.parent.span_id).attributes or {}
            assert attributes["messaging.message.id"] == span.name
    told = [r.getMessage() for r in caplog.records if r.name.startswith("opentelemetry")]
    assert told == []
