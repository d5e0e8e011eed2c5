"""Tests of `timerstore/spark/`."""
