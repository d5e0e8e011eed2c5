"""Tests of `timerstore/rocketmq/` that need no cluster."""
