"""Backups: their points, taken of a store that may be open; in a folder, or as objects elsewhere.

backup_content.py what of a store goes into a backup
report.py         points of a backup, reports, how far a long work is

A backup, from the bottom up:

destination.py    where its objects lie: S3, a folder, any file system that pyarrow has
chains.py         who may write; whether a store was restored to before a point
catalog.py        what is there: points, pieces of the log, how an object is packed
backup.py         taking a backup: adding a point, removing what none needs
follower.py       adding points all the time, merging small pieces
follow_status.py  what a follower says of itself
fetching.py       laying it down again: a store that gets its name once it is whole
standby.py        its last point, kept in a folder
restore.py        a store out of a point, or of a time between two; a copy as a folder
lookat.py         a copy as the tables see it
promote.py        that folder becomes the store
"""
