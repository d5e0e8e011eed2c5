"""Tests of timerstore/recurring."""
