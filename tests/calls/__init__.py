"""Tests of what each call of a store does."""
