"""Backups: their points, taken of a store that may be open; in a folder, or as objects elsewhere.

backup.py         taking a point of a store
snapshot.py       what of a store goes into a backup
taken.py          what taking one did
points.py         a point; the lock of a folder
timeline.py       whether a store was restored to before a point
progress.py       how far a long work is
building.py       a store that gets its name once it is whole
report.py         what an audit found

A backup, from the bottom up:

destination.py    where its objects lie: S3, a folder, any file system that pyarrow has
frames.py         how an object is packed
pieces.py         pieces of the log, by name
chains.py         who may write
catalog.py        what is there
retention.py      removing what is not needed
ship.py           adding a point
merging.py        many small pieces become one
follower.py       adding points all the time
follow_status.py  what a follower says of itself
fetching.py       laying it down again
standby.py        its last point, kept in a folder
restore.py        a store out of a point, or of a time between two
lookat.py         a copy as the tables see it
asfolder.py       a copy as a folder to read
promote.py        that folder becomes the store
"""
