"""What goes: segments that nobody needs, once pending timers were copied out of them.

retention.py   removes the segments that nobody needs again
reach.py       up to which offset only pending timers keep the log
cleaning.py    moves pending timers out of the oldest segments
forgetting.py  the deletes that it drops
pass_units.py  the units that it reads
"""
