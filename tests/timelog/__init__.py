"""Tests of timelog."""
