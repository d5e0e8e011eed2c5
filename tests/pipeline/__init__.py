"""Tests of the pipeline: what it counts, its tables, its rules."""
