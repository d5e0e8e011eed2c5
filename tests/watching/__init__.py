"""Tests of timerstore/watching."""
