"""Tests of timerstore/consuming."""
