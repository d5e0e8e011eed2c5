"""Tests of timerstore/consumer."""
