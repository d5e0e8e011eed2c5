"""OpenTelemetry of an open store; needs the extra `otel`.

    instruments.py statistics as observable instruments
    tracing.py     a span around each call of a handler

Only the API is needed; the program chooses the SDK, if any, and where to export to.
"""

from timerstore.otel.instruments import register
from timerstore.otel.tracing import Tracing, with_context

__all__ = ["Tracing", "register", "with_context"]
