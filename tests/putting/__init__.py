"""Tests of timerstore/putting."""
