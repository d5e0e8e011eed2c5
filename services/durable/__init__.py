"""What makes durable what was written.

flush.py           the thread that flushes, its checkpoints
group_commit.py    many wait for one fsync
capture.py         a checkpoint, captured in one kernel
ahead_file.py      what is pending, as of a clean close
cancelled_file.py  what was cancelled, as of a clean close
"""
