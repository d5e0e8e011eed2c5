"""Tests of timerstore/offline."""
