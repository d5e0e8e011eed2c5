"""Consuming: what is due is handed out, each group remembers how far it has come.

    consuming.py    the calls
    group.py        a group's reading of a topic; deliveries, batches
    batchcolumns.py a batch's columns
    blocks.py       the memory that they lie in
    cursors.py      how far one group has come in a queue
    starting.py     where a new group begins
    pace.py         waiting for more, where much is coming
    tally.py        what became of a group's messages
    tallyfile.py    that, over a restart
    retries.py      what a group sent back
    queued.py       what stands in a queue, read without handing it out
    sendback.py     appending a message again
    failures.py     why it failed, as it carries that along
    dead_letters.py putting dead letters back, or dropping them

A room imports `core.py`, never the store.
"""
