"""What all services share: the arrays of an open store, its clock, the words they wait by.

    world.py         all shared arrays of a store; stages; waking enqueue-get
    state.py         what only one service writes; the queues between them; the delay levels
    needs.py         what services ask Python for
    claims.py        how far slots are claimed, what of them is owed, how cursors jump
    floor.py         which units are superseded by cleaning
    clock.py         the wall clock, or one that a test moves
    background.py    threads whose end is never silent

What only one service writes has that owner, see `state.py`; interpreted runs check it.
"""
