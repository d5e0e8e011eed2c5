"""Tests of timerstore/otel."""
