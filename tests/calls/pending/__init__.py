"""Tests of timerstore/calls/pending."""
