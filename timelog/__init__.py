"""Append-only logs: every byte that stands on disk, how it comes there, how it is read.

What stands where:

    format.py         every byte that stands on disk, declared once
    limits.py         how large a message may be
    identity.py       what a store was made with: its tag, its sizes
    timeridentity.py  who a timer is
    idtext.py         timer ids as text, many at once
    text.py           numbers as text, inside properties

Files and maps:

    segments.py      a log over segment files
    segmenttable.py  by which kernels find a byte of it
    blocks.py        its blocks, allocated ahead and opened before a write
    epochs.py        what is dropped while kernels look at it
    pinned.py        segments that stay in a table of one's own
    disk.py          the one place through which bytes reach a disk
    names.py         the names that files of a store can have
    nonzero.py       where memory that others may change is not zero
    sharing.py       a lock on a log's folder, for who reads it
    lockfile.py      one process at a time has a store open
    smallfile.py     small files read whole
    jsonfile.py      JSON that a broker reads or writes
    checkpoint.py    which cursors are durable
    oserrors.py      what the operating system refuses, told as an error of ours

Writing:

    frame.py         new messages and copies, framed in a stage
    compose.py       single messages, whose properties differ each time
    append.py        the one appender: commit log with queues
    blank.py         what closes a segment
    filler.py        what stands where a log is lost
    ackrecord.py     who has consumed what, when a put says so
    tally.py         counts of timers by topic
    tallysums.py     … summed over time
    consumequeue.py  the entries of a topic's queue
    keyindex.py      which messages carry a key, RocketMQ's IndexFile
    unit.py          the 52-byte units of the timer log

Reading:

    message.py     the parts of a message in its bytes
    decode.py      one message as Python values
    scan.py        a range of the commit log as rows of numbers
    pull.py        a run of queue entries as columns
    columns.py     messages as columns: texts, properties
    units.py       units of the timer log as columns
    copies.py      which message is a copy of which, where a broker does not say
    reader.py      a store's directory, for reading alone
    steady.py      its small files as of one moment
    logend.py      where a log ends that was not closed
    pastdamage.py  where reading goes on past what is damaged
    logranges.py   which offsets lie in one of many ranges
    audit.py       messages or units as an auditor looks at them

What kernels are made with, and all that touches the compiler: `jit/`.
"""
