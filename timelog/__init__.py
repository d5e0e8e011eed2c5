"""Append-only logs."""
