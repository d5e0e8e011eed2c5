"""OpenTelemetry of an open store; needs the extra `otel`.

    instruments.py statistics as observable instruments
    tracing.py     a span around each call of a handler
    carried.py     the context of a put, among a message's properties

Only the API is needed; the program chooses the SDK, if any, and where to export to.
"""

from timerstore.otel.carried import with_context
from timerstore.otel.instruments import register
from timerstore.otel.tracing import Tracing

__all__ = ["Tracing", "register", "with_context"]
