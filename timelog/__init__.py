"""Append-only logs: every byte that stands on disk, how it comes there, how it is read.

From the bottom up; a room imports only from those that stand before it:

    bytes    what the bytes mean: messages, units, texts, limits
    files    maps and files: how bytes reach a disk, which files there are
    reading  ranges of a log as rows, a store's directory for reading alone
    writing  the one appender, what it frames, queues, the key index

Above them stands what RocketMQ calls so:

    timerlog.py the timer log, its files with its units
"""
