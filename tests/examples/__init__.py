"""Tests of programs in `examples/` that take several processes."""
