"""Fuzzing: each target takes any bytes, and may raise nothing but what is documented."""
