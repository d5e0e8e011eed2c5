"""What makes durable what was written.

flush.py           checkpoints
group_commit.py    many wait for one fsync
clean_close.py     what is pending, and what was cancelled, as of a clean close
"""
