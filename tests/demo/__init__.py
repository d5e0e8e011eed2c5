"""Tests of timerstore/demo."""
