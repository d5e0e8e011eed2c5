"""Tests beside RocketMQ."""
