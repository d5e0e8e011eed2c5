"""What makes durable what was written.

flush.py           checkpoints; what a clean close leaves
group_commit.py    many wait for one fsync
"""
