"""What is pending: looking at it, cancelling it, moving it to another time.

    pending.py    the calls; timers by their key
    listing.py    all in order, or as an Arrow table; how many fall due when
    is_pending.py what became of the timers of some ids; messages that wait, as arrays
    cancel.py     one timer of any kind by its id: looked at, cancelled, moved
    timers.py     the timer that a caller sees; an ordinary one by its id, in a kernel or two

A room imports `core/`, never the store.
"""
