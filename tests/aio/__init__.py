"""Tests of timerstore/aio."""
