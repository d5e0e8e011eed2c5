"""Consuming: what is due is handed out, each group remembers how far it has come.

    consuming.py    the calls
    group.py        a group's reading of a topic
    groupreader.py  what it shares with what it handed out
    run.py          that: entries of one queue, until they are done or given back
    delivery.py     a run as a program sees it: a batch, its messages
    batchcolumns.py a run's columns
    lentblocks.py   the memory that they lie in
    cursors.py      how far one group has come in a queue
    window.py       what became of each entry there: kernels
    ready.py        what is there, handed out by one kernel; a whole run acknowledged by another
    starting.py     where a new group begins
    pace.py         waiting for more, if much is coming
    grouptally.py   what became of a group's messages
    tallyfile.py    that, over a restart
    retries.py      what a group sent back
    read_queue.py   what stands in a queue, read without handing it out
    sendback.py     appending a message again
    forgetgroup.py  a group that will not read again
    ack_by_id.py    acknowledging by id, also for another process
    puts.py         what a handler wants put in a message's place
    ackput.py       acknowledging one with what is put in its place
    putacks.py      … which of that the offsets file knows of
    constants.py    what a client goes by as well
    failures.py     why it failed, as it carries that along
    dead_letters.py putting dead letters back, or dropping them

A room imports `core/`, never the store.
"""
