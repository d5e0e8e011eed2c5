"""Backups: their points, taken of a store that may be open; in a folder, or as objects elsewhere.

backup.py         taking a point of a store
taking.py         what of a store goes into a backup
taken.py          what taking one did
points.py         the list of a backup's points, in a folder
timeline.py       whether a store was restored to before a point
segmentcopies.py  bytes of segments, with their checksums
building.py       a store that gets its name once it is whole
report.py         what an audit found

A remote backup, from the bottom up:

destination.py    where its objects lie: S3, a folder, any file system that pyarrow has
frames.py         how an object is packed
pieces.py         pieces of the log, by name
chains.py         who may write
catalog.py        what is there
thinning.py       removing what is not needed
ship.py           adding a point
fetching.py       laying it down again
"""
