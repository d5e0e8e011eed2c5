"""What goes: segments that nobody needs, once pending timers were copied out of them.

upkeep.py      the flush thread, which makes checkpoints, cleans and removes
retention.py   removes the segments that nobody needs again; how far that reaches
cleaning.py    moves pending timers out of the oldest segments
pass_units.py  the units that it reads, the deletes that it drops
"""
