"""Tests of timerstore/django."""
