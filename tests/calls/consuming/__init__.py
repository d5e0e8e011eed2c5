"""Tests of timerstore/calls/consuming."""
