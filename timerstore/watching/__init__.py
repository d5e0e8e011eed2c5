"""Watching: what an operator wants to know of a store.

    topics.py        what each topic holds, what became of its timers, when the others fall due
    topicmetrics.py  that, for Prometheus

A room imports `core.py` and other rooms, never the store.
"""
