"""What goes: segments that nobody needs, once pending timers were copied out of them.

retention.py   the flush thread; removes the segments that nobody needs; how far that reaches
cleaning.py    moves pending timers out of the oldest segments
pass_units.py  the units that it reads, the deletes that it drops
"""
