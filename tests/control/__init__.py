"""Tests of timerstore/control."""
