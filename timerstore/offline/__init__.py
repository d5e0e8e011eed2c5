"""Stores that nobody has open, or somebody else: rows of them, whether all is right, backups.

    export.py       what is pending, fired, or all messages, as Parquet, Arrow or JSON
    verify.py       every byte: the public call
    report.py       what an audit found
    auditlog.py     its part of the commit log
    audittimers.py  its part of the timer log and the wheel
    auditcursors.py its part of cursors
    auditbackup.py  its part of a backup's points
    backup.py       taking a point of a store
    points.py       the list of a backup's points
    copying.py      bytes of segments, with their checksums
    timeline.py     whether a store was restored to before a point
    restore.py      a store out of a point, or of a time between two
    salvage.py      a store out of whatever is left of one
    leftovers.py    its files, copied as far as they can be read
    lostranges.py   what is lost of its log, covered with fillers
    building.py     a store that gets its name once it is whole

A room imports `core.py`, never the store.
"""
