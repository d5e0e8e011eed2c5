"""Tests of serving a store to other processes."""
