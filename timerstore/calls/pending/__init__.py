"""What is pending: looking at it, cancelling it, moving it to another time.

    pending.py      the calls
    listing.py      all in order, or how many fall due when
    pendingtable.py all as an Arrow table
    get.py          one of any kind by its id
    byid.py         one ordinary timer by its id, in a kernel or two
    is_pending.py   what became of the timers of some ids
    cancel.py       cancelling
    reschedule.py   moving to another time
    replacement.py  timers whose first message is gone
    keyed.py        timers by their key
    found.py        messages that wait, as arrays
    overdue.py      what may have been taken already
    unlinked.py     copies that have no unit yet, each read once
    find_by_id.py   what an id stands for, if that is to be cancelled or moved
    timers.py       the timer that a caller sees

A room imports `core/`, never the store.
"""
