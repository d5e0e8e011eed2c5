"""Tests of timerstore/pending."""
