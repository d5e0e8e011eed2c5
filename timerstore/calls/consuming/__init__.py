"""Consuming: what is due is handed out, each group remembers how far it has come.

    consuming.py    the calls
    group.py        a group's reading of a topic
    groupreader.py  what it shares with what it handed out, and the memory of that
    run.py          that: entries of one queue, until they are done or given back
    delivery.py     a run as a program sees it: a batch, its messages, its columns
    cursors.py      how far one group has come in a queue, and what it sent back
    window.py       what became of each entry there: kernels
    pull.py         a run of queue entries as columns: a kernel
    ready.py        what is there, handed out by one kernel; a whole run acknowledged by another
    starting.py     where a new group begins; a group that will not read again
    grouptally.py   what became of a group's messages, also over a restart
    sendback.py     appending a message again
    ackput.py       acknowledging one with what is put in its place
    putacks.py      … which of that the offsets file knows of
    constants.py    what a client goes by as well
    failure_properties.py  why it failed, as it carries that along
    dead_letters.py putting dead letters back, or dropping them

A room imports `core/`, never the store.
"""
