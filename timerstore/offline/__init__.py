"""Stores that nobody has open: what is pending there, as rows, or whether all is right.

    pending.py      what is pending, read from the files alone
    export.py       that as Parquet, Arrow or CSV
    verify.py       every byte: the public call
    auditlog.py     its part of the commit log
    audittimers.py  its part of the timer log and the wheel
    auditcursors.py its part of cursors

A room imports `core.py`, never the store.
"""
