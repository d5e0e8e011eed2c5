"""Consuming: what is due is handed out, each group remembers how far it has come.

    consuming.py    the calls; where a new group begins, a group that will not read again
    group.py        a group's reading of a topic
    groupreader.py  what it shares with what it handed out, and the memory of that; which
                    acknowledgements beside puts the offsets file knows of
    run.py          that: entries of one queue, until they are done, given back, or replaced
    delivery.py     a run as a program sees it: a batch, its messages, its columns; what a client
                    goes by as well; why a message failed, as it carries that along
    cursors.py      how far one group has come in a queue, and what it sent back
    window.py       what became of each entry there: kernels
    pull.py         a run of queue entries as columns: a kernel
    ready.py        what is there, handed out by one kernel; a whole run acknowledged by another
    turns.py        who is handed out when, if a consumer has a rate
    grouptally.py   what became of a group's messages, also over a restart
    sendback.py     appending a message again
    dead_letters.py putting dead letters back, or dropping them

A room imports `core/`, never the store.
"""
