"""Stores that nobody has open: what is pending there, as rows, or whether all is right.

    export.py       what is pending, fired, or all messages, as Parquet, Arrow or JSON
    verify.py       every byte: the public call
    report.py       what an audit found
    auditlog.py     its part of the commit log
    audittimers.py  its part of the timer log and the wheel
    auditcursors.py its part of cursors

A room imports `core.py`, never the store.
"""
