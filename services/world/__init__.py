"""What all services share: the arrays of an open store, its clock, the words they wait by.

    world.py         all shared arrays of a store
    rings.py         the queues between them
    state.py         what only one service writes
    stages.py        how long each part of their work takes
    needs.py         what services ask Python for
    level_arrays.py  the arrays of the levels
    claims.py        how far slots are claimed, and what of them is owed
    floor.py         which units are superseded by cleaning
    waking.py        whether enqueue-get must be woken
    clock.py         the wall clock, or one that a test moves
    damage.py        places that are damaged, each named once
    background.py    threads whose end is never silent

What only one service writes has that owner, see `state.py`; interpreted runs check it.
"""
