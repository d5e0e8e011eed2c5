"""Tests of `timerstore/cli/`."""
