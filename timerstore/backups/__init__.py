"""Backups: their points, taken of a store that may be open.

backup.py         taking a point of a store
points.py         the list of a backup's points
timeline.py       whether a store was restored to before a point
segmentcopies.py  bytes of segments, with their checksums
building.py       a store that gets its name once it is whole
report.py         what an audit found
"""
