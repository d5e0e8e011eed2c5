"""What is pending: looking at it, cancelling it, moving it to another time.

    look.py        listing, counting, one timer by its id
    byid.py        one ordinary timer by its id, in a kernel or two
    cancel.py      cancelling, rescheduling
    overdue.py     what may have been taken already
    foreign.py     ids of delay levels, and what a broker wrote
    timers.py      the timer that a caller sees

A room imports `core.py`, never the store.
"""
