"""Tests of timerstore/outbox."""
