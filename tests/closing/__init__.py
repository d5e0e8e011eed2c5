"""Tests of timerstore/closing."""
