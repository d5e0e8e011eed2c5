"""Tests of timerstore/store."""
