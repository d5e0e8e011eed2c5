"""Tests of timerstore/calls/putting."""
