"""Tests of wheel."""
