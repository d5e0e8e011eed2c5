"""Tests of timerstore/page."""
